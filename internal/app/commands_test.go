package app

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/podgauge/podgauge/internal/cli"
)

func testCommands() *cobra.Command {
	return newRootCommand(newOptions(testPlatform{}, emptyEnv), emptyEnv)
}

// TestHelp checks that the help of each command starts with its purpose and an example, and lacks the daemon's flags.
func TestHelp(t *testing.T) {
	daemonFlags := testCommands().Flags()
	for _, c := range testCommands().Commands() {
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

// TestCompletionScript checks that bash loads the script.
func TestCompletionScript(t *testing.T) {
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip(err)
	}
	script, _, _ := runCLI(t, "completion", "bash")
	path := filepath.Join(t.TempDir(), "podgauge")
	if err := os.WriteFile(path, []byte(script), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), bash, "-c", ". "+path+" && complete -p podgauge").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "podgauge") {
		t.Errorf("got %v: %s", err, out)
	}
}

// TestDaemonWithoutArguments checks that an empty command line runs the daemon without arguments of the test.
func TestDaemonWithoutArguments(t *testing.T) {
	before := os.Args
	defer func() { os.Args = before }()
	os.Args = []string{"podgauge", "version"}
	o := newOptions(testPlatform{}, emptyEnv)
	var out bytes.Buffer
	if name, err := execute(context.Background(), o, nil, emptyEnv, &out, &out); name != "podgauge" || err != nil || !o.daemon {
		t.Errorf("got %s, %v, %+v", name, err, o)
	}
}
