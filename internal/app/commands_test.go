package app_test

import (
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/podgauge/podgauge/internal/app"
	"github.com/podgauge/podgauge/internal/cli"
)

// TestHelp checks that the help of each command starts with its purpose and an example, and lacks the daemon's flags.
func TestHelp(t *testing.T) {
	daemonFlags := app.NewCommand(testPlatform{}).Flags()
	for _, c := range app.NewCommand(testPlatform{}).Commands() {
		for _, args := range [][]string{{c.Name(), "--help"}, {"help", c.Name()}} {
			out, errs, status := runCLI(t, args...)
			if status != cli.ExitOK || errs != "" {
				t.Errorf("%v: got status %d, %s", args, status, errs)
			}
			purpose, rest, _ := strings.Cut(out, "\n\nExamples:\n  ")
			example, rest, _ := strings.Cut(rest, "\n\nUsage:\n  podgauge "+c.Name())
			if purpose == "" || !strings.Contains(example, "podgauge "+c.Name()) || rest == "" {
				t.Errorf("%v: got\n%s", args, out)
			}
			for line := range strings.Lines(rest) {
				name, found := strings.CutPrefix(strings.TrimSpace(line), "--")
				name, _, _ = strings.Cut(name, " ")
				if found && name != "web.listen-address" && name != "state-dir" && daemonFlags.Lookup(name) != nil {
					t.Errorf("%v has the daemon's --%s", args, name)
				}
			}
		}
	}
	out, _, status := runCLI(t, "--help")
	commands, flags := strings.Index(out, "\nCommands:\n"), strings.Index(out, "\nFlags:\n")
	if status != cli.ExitOK || commands < 0 || flags < commands || !strings.Contains(out[flags:], "--kubelet-dir") || !strings.Contains(out[commands:flags], "incidents") {
		t.Errorf("--help: got status %d\n%s", status, out)
	}
}

// TestCompletion checks that the scripts are for podgauge, and complete commands, flags and formats.
func TestCompletion(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish"} {
		script, errs, status := runCLI(t, "completion", shell)
		if status != cli.ExitOK || errs != "" || !strings.Contains(script, "podgauge") {
			t.Errorf("%s: got status %d, %s", shell, status, errs)
		}
		if bash, err := exec.LookPath("bash"); err == nil && shell == "bash" {
			path := filepath.Join(t.TempDir(), "podgauge")
			writeFile(t, path, script)
			if out, err := exec.CommandContext(t.Context(), bash, "-c", ". "+path+" && complete -p podgauge").CombinedOutput(); err != nil {
				t.Errorf("bash cannot load the script: %v: %s", err, out)
			}
		}
	}
	for _, c := range []struct{ args, want string }{
		{"", "incidents status doctor validate version completion help"},
		{"status --n", "--no-headers"},
		{"doctor --kubelet-d", "--kubelet-dir"},
		{"status -o ", "table wide json yaml"},
		{"help s", "status"},
	} {
		args := strings.Split(c.args, " ")
		out, _, status := runCLI(t, append([]string{cobra.ShellCompRequestCmd}, args...)...)
		var names []string
		for line := range strings.Lines(out) {
			name, _, _ := strings.Cut(strings.TrimSpace(line), "\t")
			names = append(names, name)
		}
		for want := range strings.FieldsSeq(c.want) {
			if status != cli.ExitOK || !slices.Contains(names, want) {
				t.Errorf("%q: got status %d, %q, want %s included", c.args, status, names, want)
			}
		}
	}
}
