package app

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/cli"
	"github.com/podgauge/podgauge/internal/config"
	"github.com/spf13/pflag"
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
		{args: []string{"--web.listen-address=9400"}, wantErr: "--web.listen-address"},
		{args: []string{"--web.telemetry-path=metrics"}, wantErr: "--web.telemetry-path"},
		{args: []string{"--web.telemetry-path=/healthz"}, wantErr: "--web.telemetry-path"},
		{args: []string{"--web.telemetry-path=/{x"}, wantErr: "--web.telemetry-path"},
		{args: []string{"--web.listen-address=:99999"}, wantErr: "--web.listen-address"},
		{args: []string{"--web.listen-address=:abc"}, wantErr: "--web.listen-address"},
		{args: []string{"--web.listen-address=localhost:"}, wantErr: "--web.listen-address"},
		{args: []string{"--web.telemetry-path=//metrics"}, wantErr: "--web.telemetry-path"},
		{args: []string{"--web.telemetry-path=/a/../b"}, wantErr: "--web.telemetry-path"},
		{args: []string{"--web.telemetry-path=/metrics/"}, wantErr: "--web.telemetry-path"},
		{args: []string{"--web.telemetry-path=/debug/pprof/", "--web.enable-pprof"}, wantErr: "--web.telemetry-path"},
		{args: []string{"--web.telemetry-path=/api"}, wantErr: "--web.telemetry-path"},
		{args: []string{"--web.telemetry-path=/api/v1/devices"}, wantErr: "--web.telemetry-path"},
		{args: []string{"--web.probe-address=9401"}, wantErr: `podgauge: --web.probe-address "9401": expected host:port or :port` + "\n"},
		{args: []string{"--web.config.file=/no/such/file"}, wantErr: `podgauge: --web.config.file "/no/such/file": no such file or directory` + "\n"},
		{args: []string{"--log.level=loud"}, wantErr: "--log.level"},
		{args: []string{"doctor", "--no-such-flag"}, wantErr: "podgauge doctor: unknown flag: --no-such-flag\n"},
		{args: []string{"doctor", "--output=xml"}, wantErr: `podgauge doctor: --output "xml": expected table, wide, json or yaml` + "\n"},
		{args: []string{"--log.format=xml"}, wantErr: "--log.format"},
		{args: []string{"--device-plugin=maybe"}, wantErr: "device-plugin"},
		{args: []string{"--kubelet-dir="}, wantErr: "--kubelet-dir"},
		{args: []string{"--metrics.include=nvidia_["}, wantErr: `podgauge: --metrics.include, --metrics.exclude: "nvidia_[" is not a valid name pattern` + "\n"},
		{args: []string{"--metrics.set=most"}, wantErr: `podgauge: --metrics.set: "most" is not a set: expected none, minimal, default or full` + "\n"},
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
		status := run(t.Context(), testPlatform{}, c.args, fakeEnv(c.env), &out, &errs)
		line := errs.String()
		if status != cli.ExitUsage || !strings.Contains(line, c.wantErr) || strings.Count(line, "\n") != 1 || out.Len() > 0 {
			t.Errorf("%v %v: got status %d, stdout %q, stderr %q", c.args, c.env, status, out.String(), line)
		}
	}
}

// fakeEnv returns a lookup of these environment variables.
func fakeEnv(variables map[string]string) envLookup {
	return func(name string) (string, bool) {
		value, set := variables[name]
		return value, set
	}
}

// emptyEnv looks up variables in an empty environment.
func emptyEnv(string) (string, bool) { return "", false }

func TestKubeletSocket(t *testing.T) {
	for _, c := range []struct {
		args        []string
		socket      string
		dir, errors string
		plugin      bool
	}{
		{dir: "/var/lib/kubelet/device-plugins", plugin: true},
		{args: []string{"--kubelet-dir=/k"}, dir: "/k/device-plugins", plugin: true},
		{args: []string{"--kubelet-socket=/s/kubelet.sock"}, dir: "/s", plugin: true},
		{args: []string{"--kubelet-socket=/s/kubelet.sock", "--device-plugin-dir=/d"}, dir: "/d", plugin: true},
		{args: []string{"-kubelet-socket", "/s/kubelet.sock"}, dir: "/s", plugin: true},
		{args: []string{"--kubelet-socket="}, dir: "/var/lib/kubelet/device-plugins"},
		{args: []string{"--kubelet-socket=/s/other.sock"}, errors: "expected a path ending in /kubelet.sock"},
	} {
		o, err := parseOptions(testPlatform{}, c.args, emptyEnv)
		if c.errors != "" {
			if err == nil || !strings.Contains(err.Error(), c.errors) {
				t.Errorf("%v: got error %v", c.args, err)
			}
			continue
		}
		if err != nil || o.devicePluginDir != c.dir || o.devicePlugin != c.plugin {
			t.Errorf("%v: got folder %q, plugin %t, %v", c.args, o.devicePluginDir, o.devicePlugin, err)
		}
	}
}

// FuzzTelemetryPath checks that every accepted path can be served.
func FuzzTelemetryPath(f *testing.F) {
	for _, seed := range []string{"/metrics", "/", "//", "/a/b", "/healthz", "/debug/pprof/heap", "/é", "/a//b", "/..", "/{x}", "GET /", "/a b", "/%"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, path string) {
		o := webOptions{telemetryPath: path}
		if o.checkPath() != nil {
			return
		}
		w := httptest.NewRecorder()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://localhost"+path, http.NoBody)
		if err != nil {
			return // bytes that no URL has
		}
		mux := http.NewServeMux()
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) })
		mux.HandleFunc("GET /healthz", http.NotFound)
		mux.HandleFunc("GET /debug/pprof/", http.NotFound)
		if mux.ServeHTTP(w, r); w.Code != http.StatusTeapot {
			t.Errorf("%q: got status %d", path, w.Code)
		}
	})
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
	var errs bytes.Buffer
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	w := newTestApp(t, 1)
	address := strings.TrimPrefix(w.url, "http://")
	status := run(ctx, testPlatform{}, []string{"--web.listen-address=" + address}, os.LookupEnv, io.Discard, &errs)
	if status != cli.ExitError || strings.Count(errs.String(), "\n") != 1 || !strings.Contains(errs.String(), address) {
		t.Errorf("got status %d, stderr %q", status, errs.String())
	}
}

// TestFlagTable checks that docs/reference/flags.md lists all flags, and docs/reference/cli.md all commands.
func TestFlagTable(t *testing.T) {
	checkTables(t, "../../docs/reference/flags.md", map[string]string{"flags": flagTable()})
	checkTables(t, "../../docs/reference/cli.md", map[string]string{"commands": commandTable()})
}

func commandTable() string {
	table := "|command|purpose|\n|---|---|\n"
	for _, c := range testCommands().Commands() {
		table += "|`podgauge " + strings.ReplaceAll(c.Use, "|", `\|`) + "`|" + c.Short + "|\n"
	}
	return table
}

func flagTable() string {
	f := pflag.NewFlagSet("", pflag.ContinueOnError)
	newOptions(testPlatform{}, emptyEnv).addFlags(f)
	var table strings.Builder
	table.WriteString("|flag|variable|default|meaning|\n|---|---|---|---|\n")
	f.VisitAll(func(f *pflag.Flag) {
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
