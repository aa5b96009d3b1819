package app_test

import (
	"bytes"
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/podgauge/podgauge/internal/app"
	"github.com/podgauge/podgauge/internal/cli"
	"github.com/podgauge/podgauge/internal/config"
	"github.com/podgauge/podgauge/internal/web/api"
	"github.com/podgauge/podgauge/test/helpers/docs"
	"github.com/podgauge/podgauge/test/helpers/require"
)

// TestWrongCommandLines checks that each invalid command line causes one line and exit status 2.
func TestWrongCommandLines(t *testing.T) {
	for _, c := range []struct {
		args    []string
		env     map[string]string
		wantErr string
	}{
		{args: []string{"--no-such-flag"}, wantErr: "no-such-flag"},
		{args: []string{"stray"}, wantErr: `unexpected argument "stray"`},
		{args: []string{"version", "stray"}, wantErr: `podgauge version: unexpected argument "stray"` + "\n"},
		{args: []string{"help", "stray"}, wantErr: `podgauge help: unknown command "stray"` + "\n"},
		{args: []string{"completion", "tcsh"}, wantErr: `podgauge completion: `},
		{args: []string{"--kubelet-dir=/s", "status"}, wantErr: `unknown flag: --kubelet-dir`},
		{args: []string{"--web.listen-address=9400"}, wantErr: `podgauge: --web.listen-address "9400": expected host:port or :port` + "\n"},
		{args: []string{"--log.level=loud"}, wantErr: "--log.level"},
		{args: []string{"doctor", "--no-such-flag"}, wantErr: "podgauge doctor: unknown flag: --no-such-flag\n"},
		{args: []string{"doctor", "--output=xml"}, wantErr: `podgauge doctor: --output "xml": expected table, wide, json or yaml` + "\n"},
		{args: []string{"--log.format=xml"}, wantErr: "--log.format"},
		{args: []string{"--kubelet-dir="}, wantErr: "--kubelet-dir"},
		{args: []string{"--pods-api-fallback-socket=/" + strings.Repeat("x", 107)}, wantErr: "108 bytes, at most 107 for a socket\n"},
		{args: []string{"--metrics.include=nvidia_["}, wantErr: `podgauge: --metrics.include, --metrics.exclude: "nvidia_[" is not a valid name pattern` + "\n"},
		{args: []string{"--metrics.set=most"}, wantErr: `podgauge: --metrics.set: "most" is not a set: expected none, minimal, default or full` + "\n"},
		{args: []string{"--metrics.dcgm=5"}, wantErr: `podgauge: --metrics.dcgm "5": expected 4.8, 4.9 or both` + "\n"},
		{args: []string{"--metrics.exclude=a,b\\"}, wantErr: "--metrics.exclude"},
		{args: []string{"--metrics.pod-labels=none"}, wantErr: `--metrics.pod-labels "none": expected device or allocation`},
		{args: []string{"--metrics.series-limit=0"}, wantErr: "--metrics.series-limit 0: expected at least 1"},
		{args: []string{"--config-file=/no/such/file"}, wantErr: "/no/such/file"},
		{args: []string{"--mig-strategy=some"}, wantErr: `podgauge: --mig-strategy: "some": expected none, single or mixed` + "\n"},
		{args: []string{"--device-list-strategy=envvar,cdi"}, wantErr: `podgauge: --device-list-strategy: "cdi": expected envvar, volume-mounts, cdi-annotations or cdi-cri` + "\n"},
		{args: []string{"--nvidia-driver-root"}, wantErr: "podgauge: flag needs an argument: --nvidia-driver-root\n"},
		{args: []string{"--device-plugin=maybe"}, wantErr: `podgauge: --device-plugin: "maybe": expected true or false` + "\n"},
		{args: []string{"--unhealthy-after=soon"}, wantErr: `podgauge: --unhealthy-after: "soon": expected a duration such as 30s` + "\n"},
		{args: []string{"--unhealthy-after=1ms"}, wantErr: "podgauge: --unhealthy-after: expected at least 1s\n"},
		{args: []string{"--allocations.max-age=0"}, wantErr: `podgauge: --allocations.max-age: expected at least 1s` + "\n"},
		{args: []string{"--incidents.max-age=1s"}, wantErr: "podgauge: --incidents.max-age: expected at least 1m\n"},
		{args: []string{"--incidents.max-count=0"}, wantErr: "podgauge: --incidents.max-count: expected 4 to 10000\n"},
		{args: []string{"--metrics.series-limit=many"}, wantErr: `podgauge: --metrics.series-limit: "many": expected a whole number` + "\n"},
		{args: []string{"-device-plugin=maybe"}, wantErr: `podgauge: --device-plugin: "maybe": expected true or false` + "\n"},
		{args: []string{"-nvidia-ctk-paths=x"}, wantErr: "-nvidia-ctk-paths"},
		{env: map[string]string{"KUBELET_SOCKET": "/s/other.sock"}, wantErr: `podgauge: KUBELET_SOCKET: "/s/other.sock": expected a path ending in /kubelet.sock` + "\n"},
		{args: []string{"validate", "/no/such/file"}, wantErr: "/no/such/file"},
		{env: map[string]string{"PASS_DEVICE_SPECS": "perhaps"}, wantErr: "PASS_DEVICE_SPECS"},
	} {
		var out, errs bytes.Buffer
		status := app.Run(t.Context(), testPlatform{}, c.args, fakeEnv(c.env), &out, &errs)
		line := errs.String()
		if status != cli.ExitUsage || !strings.Contains(line, c.wantErr) || strings.Count(line, "\n") != 1 || out.Len() > 0 {
			t.Errorf("%v %v: got status %d, stdout %q, stderr %q", c.args, c.env, status, out.String(), line)
		}
	}
}

// TestUnreadableCounters checks that doctor names a counters file that cannot be read, also a pipe without a writer.
func TestUnreadableCounters(t *testing.T) {
	pipe, long := filepath.Join(t.TempDir(), "pipe"), filepath.Join(t.TempDir(), "long")
	require.NoError(t, syscall.Mkfifo(pipe, 0o600))
	require.NoError(t, os.WriteFile(long, make([]byte, 128<<10+1), 0o600))
	for file, want := range map[string]string{"/no/such/file": "no such file", pipe: "not a regular file", long: "more than 128 KiB"} {
		if out, errs, _ := runCLI(t, "doctor", "-o=json", "--metrics.dcgm", "--metrics.dcgm-counters="+file); !strings.Contains(out, want) {
			t.Errorf("%s: got %s%s, want %q", file, out, errs, want)
		}
	}
}

// TestKubeletSocket checks the folder of the kubelet's socket, which doctor does not find: no such file, or a folder of
// this container.
func TestKubeletSocket(t *testing.T) {
	for args, dir := range map[string]string{
		"--kubelet-dir=/k":                                        "/k/device-plugins",
		"--kubelet-socket=/s/kubelet.sock":                        "/s",
		"--kubelet-socket=/s/kubelet.sock --device-plugin-dir=/d": "/d",
		"-kubelet-socket /s/kubelet.sock":                         "/s",
	} {
		out, errs, _ := runCLI(t, append([]string{"doctor", "-o=json"}, strings.Fields(args)...)...)
		if !strings.Contains(out, "stat "+dir+"/kubelet.sock: ") && !strings.Contains(out, dir+" belongs to the container") {
			t.Errorf("%s: got %s%s", args, out, errs)
		}
	}
	if out, errs, _ := runCLI(t, "doctor", "-o=json", "--kubelet-socket="); !strings.Contains(out, "not registered (--device-plugin=false)") {
		t.Errorf("no socket: got %s%s", out, errs)
	}
}

// TestVersion checks that flag and command print the same.
func TestVersion(t *testing.T) {
	for _, args := range [][]string{{"--version"}, {"version"}, {"doctor", "--version"}} {
		if out, errs, status := runCLI(t, args...); status != cli.ExitOK || out != "podgauge dev\n" || errs != "" {
			t.Errorf("%v: got status %d, %q %q", args, status, out, errs)
		}
	}
}

// TestTakenAddress checks that an address in use causes one line and exit status 1.
func TestTakenAddress(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	address := taken.Addr().String()
	for args, want := range map[string]string{
		"--web.listen-address=" + address:                                 "podgauge: serve metrics: listen tcp " + address + ": ",
		"--web.listen-address=127.0.0.1:0 --web.probe-address=" + address: "podgauge: serve probes: listen tcp " + address + ": ",
	} {
		_, errs, status := runCLI(t, strings.Fields(args)...)
		if status != cli.ExitError || strings.Count(errs, "\n") != 1 || !strings.HasPrefix(errs, want) {
			t.Errorf("%s: got status %d, stderr %q", args, status, errs)
		}
	}
}

// TestFlagTable checks that docs/reference/flags.md lists all flags, and docs/reference/cli.md all commands.
func TestFlagTable(t *testing.T) {
	docs.CheckTables(t, *update, "../../docs/reference/flags.md", map[string]string{"flags": flagTable()})
	table := "|command|purpose|\n|---|---|\n"
	for _, c := range app.NewCommand(testPlatform{}).Commands() {
		table += "|`podgauge " + strings.ReplaceAll(c.Use, "|", `\|`) + "`|" + c.Short + "|\n"
	}
	docs.CheckTables(t, *update, "../../docs/reference/cli.md", map[string]string{"commands": table})
}

func flagTable() string {
	var table strings.Builder
	table.WriteString("|flag|variable|default|meaning|\n|---|---|---|---|\n")
	app.NewCommand(testPlatform{}).Flags().VisitAll(func(f *pflag.Flag) {
		_, usage := pflag.UnquoteUsage(f)
		byDefault := ""
		if f.DefValue != "" {
			byDefault = "`" + f.DefValue + "`"
		}
		variables := strings.ReplaceAll("`"+strings.Join(f.Annotations[config.EnvAnnotation], "`<br>`")+"`", "``", "")
		table.WriteString("|`--" + f.Name + "`|" + variables + "|" + byDefault + "|" + strings.ReplaceAll(usage, "<", "\\<") + "|\n")
	})
	return table.String()
}

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

// TestAPIPage checks that docs/reference/api.md has the actual responses as examples, and each field in its tables.
func TestAPIPage(t *testing.T) {
	const file = "../../docs/reference/api.md"
	page, err := os.ReadFile(file)
	require.NoError(t, err)
	examples := regexp.MustCompile(`(?s)<!-- example (\S+) -->\n(.*?)<!-- /example -->`)
	var paths []string
	for _, example := range examples.FindAllSubmatch(page, -1) {
		paths = append(paths, string(example[1]))
	}
	if len(paths) != 3 {
		t.Fatalf("examples in %s: got %q", file, paths)
	}
	bodies := newScriptedNode().serve(t, paths...)
	want := examples.ReplaceAllFunc(page, func(example []byte) []byte {
		path := string(examples.FindSubmatch(example)[1])
		var body bytes.Buffer
		require.NoError(t, json.Indent(&body, []byte(bodies[path]), "", "  "))
		return []byte("<!-- example " + path + " -->\n```json\n" + body.String() + "```\n<!-- /example -->")
	})
	if *update {
		require.NoError(t, os.WriteFile(file, want, 0o644))
	} else if !bytes.Equal(page, want) {
		t.Errorf("the examples in docs/reference/api.md differ from the responses; run make golden")
	}
	tables := examples.ReplaceAllString(string(page), "")
	for _, response := range []any{api.NodeResponse{}, api.DevicesResponse{}, api.AllocationsResponse{}, api.IncidentsResponse{}} {
		for _, field := range jsonFields(reflect.TypeOf(response)) {
			if !strings.Contains(tables, "`"+field+"`") {
				t.Errorf("docs/reference/api.md lacks %s of %T", field, response)
			}
		}
	}
}

// jsonFields returns the JSON names of a struct's fields, including nested structs.
func jsonFields(typ reflect.Type) (names []string) {
	switch typ.Kind() {
	case reflect.Pointer, reflect.Slice:
		return jsonFields(typ.Elem())
	case reflect.Struct:
		if typ == reflect.TypeFor[time.Time]() {
			return nil
		}
		for f := range typ.Fields() {
			if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" && name != "-" {
				names = append(names, name)
			}
			names = append(names, jsonFields(f.Type)...)
		}
	}
	return names
}

// TestIncidentFamilies checks the metrics of the scripted node.
func TestIncidentFamilies(t *testing.T) {
	text := newScriptedNode().serve(t, "/metrics")["/metrics"]
	lint(t, "incidents", text)
	checkGolden(t, "incidents.prom", text)
}
