package app_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/podgauge/podgauge/internal/app"
	"github.com/podgauge/podgauge/internal/cli"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/sim"
	"github.com/podgauge/podgauge/test/helpers/require"
)

const renamedConfig = `version: v1
sharing: {timeSlicing: {renameByDefault: true, failRequestsGreaterThanOne: true, resources: [{name: nvidia.com/gpu, replicas: %d}]}}
`

// TestConfigIsFollowed checks that config changes apply while pods run, and that an invalid config changes nothing.
func TestConfigIsFollowed(t *testing.T) {
	t.Parallel()
	path := sharedConfig(t, 2)
	w := newTestApp(t, 2, "--config-file="+path)
	w.waitAllocatable(gpuResource, 4)
	writeFile(t, path, "version: v2\n")
	w.reload()
	writeFile(t, path, fmt.Sprintf(renamedConfig, 3)+"newer: {than: this}\n")
	w.reload()
	const shared = gpuResource + ".shared"
	w.waitAllocatable(shared, 6)
	w.waitAllocatable(gpuResource, 0)
	w.waitLine("podgauge_config_unknown_keys", " 1")
	if err := w.kubelet.RunPod(t.Context(), newPod("", "greedy", shared, 2)); err == nil || !strings.Contains(err.Error(), "is shared: a container can request one") {
		t.Errorf("container with two replicas: got error %v", err)
	}
	w.waitLine(`podgauge_plugin_rejections_total{reason="too_many",resource="nvidia.com/gpu.shared"}`, " 1")
}

// TestValidate checks that validate prints the effect of one config, or an error, without the kubelet.
func TestValidate(t *testing.T) {
	valid := writeConfig(t, "version: v1\n")
	file := func(text string) []string { return []string{writeConfig(t, text)} }
	renamed := writeConfig(t, fmt.Sprintf(renamedConfig, 2))
	const noConfig = "podgauge validate: no config: set FILE, --config-file or CONFIG_FILE\n"
	for _, c := range []struct {
		name      string
		args      []string
		configEnv string // CONFIG_FILE
		platform  testPlatform
		status    int
		out, errs string // substrings
	}{
		{name: "shared", args: []string{renamed}, out: "nvidia.com/gpu.shared  16 "},
		{name: "settings", args: []string{renamed}, out: "sharing.timeSlicing  nvidia.com/gpu: 2 replicas of each device as nvidia.com/gpu.shared  " + renamed},
		{name: "selected", args: file("version: v1\npodgauge: {select: {include: [0, 5]}}\n"), out: "nvidia.com/gpu  2 "},
		{name: "none selected", args: file("version: v1\npodgauge: {select: {include: [77]}}\n"), out: "RESOURCE  DEVICES  IDS\n"},
		{name: "no driver", args: []string{valid}, platform: testPlatform{err: errors.New("no driver")}, status: cli.ExitError, out: "The config is valid.\n", errs: "podgauge validate: the effect on this node is unknown: no driver\n"},
		{name: "wrong", args: file("version: v1\nflags:\n  migStrategy: some\n"), status: cli.ExitUsage, errs: ":3: flags.migStrategy"},
		{name: "an unknown key", args: file("version: v1\nflags:\n  migStrategie: mixed\n"), status: cli.ExitUsage, errs: ":3: flags.migStrategie: unknown key"},
		{name: "no file", args: []string{"/no/such/file"}, status: cli.ExitUsage, errs: "no such file"},
		{name: "flags before FILE", args: []string{"--log.level=error", valid}, out: "nvidia.com/gpu"},
		{name: "flag", args: []string{"--config-file", valid}, out: "nvidia.com/gpu"},
		{name: "variable", configEnv: valid, out: "nvidia.com/gpu"},
		{name: "FILE and variable", args: []string{valid}, configEnv: "/no/such/file", out: "nvidia.com/gpu"},
		{name: "no config", status: cli.ExitUsage, errs: noConfig},
		{name: "empty FILE", args: []string{""}, status: cli.ExitUsage, errs: noConfig},
		{name: "empty flag", args: []string{"--config-file="}, configEnv: valid, status: cli.ExitUsage, errs: noConfig},
		{name: "FILE and flag", args: []string{valid, "--config-file=" + valid}, status: cli.ExitUsage, errs: "podgauge validate: FILE and --config-file: set only one of them\n"},
		{name: "two files", args: []string{valid, "other"}, status: cli.ExitUsage, errs: `podgauge validate: unexpected argument "other"` + "\n"},
	} {
		var out, errs strings.Builder
		env := map[string]string{}
		if c.configEnv != "" {
			env["CONFIG_FILE"] = c.configEnv
		}
		status := app.Run(t.Context(), c.platform, append([]string{"validate"}, c.args...), fakeEnv(env), &out, &errs)
		if status != c.status || !strings.Contains(out.String(), c.out) || !strings.Contains(errs.String(), c.errs) || strings.Count(errs.String(), "\n") > 1 {
			t.Errorf("%s: got status %d, stdout %q, stderr %q", c.name, status, &out, &errs)
		}
	}
}

// fixedListing is hardware with a constant listing.
type fixedListing struct {
	device.Backend
	devices []device.Device
	err     error
}

func (l fixedListing) Devices(context.Context) ([]device.Device, error) { return l.devices, l.err }

// TestFailOnInitError checks that the process ends if and only if the driver cannot be used.
func TestFailOnInitError(t *testing.T) {
	machine := newMachine(sim.T4)
	devices, err := machine.Devices(t.Context())
	require.NoError(t, err)
	for _, row := range []struct {
		name    string
		devices []device.Device
		err     error
		wantErr string
	}{
		{name: "no driver", err: fmt.Errorf("%w: libnvidia-ml.so.1 is missing", device.ErrNoDriver), wantErr: "no driver: libnvidia-ml.so.1 is missing"},
		{name: "no list", err: errors.New("count GPUs: unknown error"), wantErr: "count GPUs: unknown error"},
		{name: "one GPU is lost", devices: devices, err: errors.New("GPU 7: GPU is lost")},
		{name: "no GPU", devices: []device.Device{}},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := testSetup{machine: machine, backend: fixedListing{machine, row.devices, row.err}}
			if row.wantErr == "" {
				newTestAppWith(t, s, "--fail-on-init-error").waitReady()
				return
			}
			_, status, log := startApp(t, s, "--fail-on-init-error")
			got := <-status
			status <- 0
			if got != cli.ExitError || !strings.HasSuffix(log.String(), "podgauge: --fail-on-init-error: "+row.wantErr+"\n") {
				t.Errorf("got exit status %d, want 1 after %q:\n%s", got, row.wantErr, log)
			}
		})
	}
}

// TestServeWhileTheDriverInitializes checks that probes get responses during a start that needs the driver: otherwise
// the pod is killed.
func TestServeWhileTheDriverInitializes(t *testing.T) {
	t.Parallel()
	machine := newMachine(sim.T4)
	machine.HangAll()
	w := newTestAppWith(t, testSetup{machine: machine}, "--fail-on-init-error")
	w.waitLine("podgauge_nvml_up", " 0")
	machine.ReleaseHangs()
	w.waitRegistered()
}

// TestErrorsHideContent checks that no command prints a file that is not podgauge's: a user with pods/exec could read each file of the
// container.
func TestErrorsHideContent(t *testing.T) {
	dir := t.TempDir()
	config := filepath.Join(dir, "config.yaml")
	require.NoError(t, os.WriteFile(config, []byte("version: v1\nconfigs: {a: {}, b: {}}\n"), 0o600))
	for name, content := range map[string]string{
		"shadow":    "root:$6$SECRET$x:19000:0:99999:7:::\nbin:*:19000:0:99999:7:::\n",
		"duplicate": "root $6$SECRET: 1\nroot $6$SECRET: 2\n",
		"key":       "-----BEGIN EC PRIVATE KEY-----\nMHcCAQEEIB+SECRET/x==\n-----END EC PRIVATE KEY-----\n",
		"environ":   "TOKEN=SECRET\x00A=b\x00",
		"token":     "eyJhbGciOiJSUzI1NiJ9." + strings.Repeat("SECRET", 50) + ".x",
		"password":  "password: SECRET\nbasic_auth: {username: SECRET}\n",
	} {
		file := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(file, []byte(content), 0o600))
		for _, args := range [][]string{
			{"validate", file},
			{"validate", config, "--config-name-file=" + file},
			{"doctor", "--config-file=" + file},
			{"doctor", "--config-file=" + file, "--config-name-file=" + file},
			{"doctor", "--web.config.file=" + file},
			{"--web.listen-address=127.0.0.1:0", "--web.config.file=" + file},
			{"--web.listen-address=x", "--config-file=" + config, "--config-name-file=" + file},
			{"status", "--http.config.file=" + file},
		} {
			if out, errs, status := runCLI(t, args...); strings.Contains(out+errs, "SECRET") || status == cli.ExitOK || strings.Contains(out+errs, "panic") {
				t.Errorf("%v: got status %d, %s%s", args, status, out, errs)
			}
		}
	}
}
