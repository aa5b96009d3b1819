package app

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/cli"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/sim"
	"github.com/podgauge/podgauge/internal/sim/kubelet"
	"github.com/podgauge/podgauge/test/bubble"
)

const sharingConfig = `version: v1
sharing:
  timeSlicing:
    renameByDefault: %t
    failRequestsGreaterThanOne: true
    resources:
    - {name: nvidia.com/gpu, replicas: %d}
`

// configFile is a config file that a test replaces.
type configFile struct {
	t    *testing.T
	path string
}

func (f configFile) write(text string) {
	f.t.Helper()
	if err := os.WriteFile(f.path+".new", []byte(text), 0o600); err != nil {
		f.t.Fatal(err)
	}
	if err := os.Rename(f.path+".new", f.path); err != nil {
		f.t.Fatal(err)
	}
}

// waitDeviceCounts waits until the kubelet has these numbers of devices.
func (w *testApp) waitDeviceCounts(counts map[string]int) {
	w.t.Helper()
	w.waitKubelet(fmt.Sprint("devices are ", counts), func(s kubelet.KubeletState) bool {
		for name, n := range counts {
			if r := s.Resources[name]; r.Allocatable != n || r.Capacity != n {
				return false
			}
		}
		return true
	})
}

// TestConfigIsFollowed checks that config changes apply while pods run, and that an invalid config changes nothing.
func TestConfigIsFollowed(t *testing.T) {
	f := configFile{t, filepath.Join(t.TempDir(), "config.yaml")}
	f.write(fmt.Sprintf(sharingConfig, false, 2))
	w := newTestApp(t, 2, "--config-file="+f.path)
	w.waitDeviceCounts(map[string]int{gpuResource: 4})
	f.write("version: v2\n")
	w.reload <- syscall.SIGHUP // like a signal to the process
	f.write(fmt.Sprintf(sharingConfig, true, 3) + "newer: {than: this}\n")
	w.reload <- syscall.SIGHUP
	w.waitDeviceCounts(map[string]int{gpuResource + ".shared": 6, gpuResource: 0})
	w.waitLine("podgauge_config_unknown_keys", " 1")
	twoReplicas := kubelet.PodSpec{Name: "greedy", Containers: []kubelet.ContainerSpec{{Name: "main", Limits: map[string]int{gpuResource + ".shared": 2}}}}
	if err := w.kubelet.RunPod(t.Context(), twoReplicas); err == nil || !strings.Contains(err.Error(), "is shared: a container can request one") {
		t.Errorf("container with two replicas: got error %v", err)
	}
	w.waitLine(`podgauge_plugin_rejections_total{reason="too_many",resource="nvidia.com/gpu.shared"}`, " 1")
}

// TestValidate checks that validate prints the effect of a config, or its errors, without the kubelet.
func TestValidate(t *testing.T) {
	f := configFile{t, filepath.Join(t.TempDir(), "config.yaml")}
	for _, row := range []struct {
		name, text string
		platform   testPlatform
		status     int
		out, errs  string // substrings
	}{
		{name: "shared", text: fmt.Sprintf(sharingConfig, true, 2), out: "nvidia.com/gpu.shared  16 "},
		{name: "settings", text: fmt.Sprintf(sharingConfig, true, 2), out: "sharing.timeSlicing  nvidia.com/gpu: 2 replicas of each device as nvidia.com/gpu.shared  " + f.path},
		{name: "selected", text: "version: v1\npodgauge: {select: {include: [0, 5]}}\n", out: "nvidia.com/gpu  2 "},
		{name: "none selected", text: "version: v1\npodgauge: {select: {include: [77]}}\n", out: "RESOURCE  DEVICES  IDS\n"},
		{name: "no driver", text: "version: v1\n", platform: testPlatform{errors.New("no driver")}, status: cli.ExitError, out: "The config is valid.\n", errs: "podgauge validate: the effect on this node is unknown: no driver\n"},
		{name: "wrong", text: "version: v1\nflags:\n  migStrategy: some\n", status: cli.ExitUsage, errs: ":3: flags.migStrategy"},
		{name: "an unknown key", text: "version: v1\nflags:\n  migStrategie: mixed\n", status: cli.ExitUsage, errs: ":3: flags.migStrategie: unknown key"},
		{name: "no file", status: cli.ExitUsage, errs: "no such file"},
	} {
		t.Run(row.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "missing")
			if row.text != "" {
				f.write(row.text)
				path = f.path
			}
			var out, errs bytes.Buffer
			status := run(t.Context(), row.platform, []string{"validate", path}, emptyEnv, &out, &errs)
			if status != row.status || !strings.Contains(out.String(), row.out) || !strings.Contains(errs.String(), row.errs) || strings.Count(errs.String(), "\n") > 1 {
				t.Errorf("got status %d, stdout %q, stderr %q", status, out.String(), errs.String())
			}
		})
	}
}

// TestValidateRequiresOneConfig checks that validate rejects no config, and two configs, which are ambiguous.
func TestValidateRequiresOneConfig(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.yaml")
	configFile{t, path}.write("version: v1\n")
	for _, c := range []struct {
		args   []string
		env    map[string]string
		status int
		out    string // substring
		errs   string // the whole line
	}{
		{args: []string{path}, out: "nvidia.com/gpu"},
		{args: []string{"--log.level=error", path}, out: "nvidia.com/gpu"},
		{args: []string{"--config-file", path}, out: "nvidia.com/gpu"},
		{env: map[string]string{"CONFIG_FILE": path}, out: "nvidia.com/gpu"},
		{args: []string{path}, env: map[string]string{"CONFIG_FILE": "/no/such/file"}, out: "nvidia.com/gpu"},
		{status: cli.ExitUsage, errs: "no config: set FILE, --config-file or CONFIG_FILE"},
		{args: []string{""}, status: cli.ExitUsage, errs: "no config: set FILE, --config-file or CONFIG_FILE"},
		{args: []string{"--config-file=", "--mig-strategy=mixed"}, env: map[string]string{"CONFIG_FILE": path}, status: cli.ExitUsage, errs: "no config: set FILE, --config-file or CONFIG_FILE"},
		{args: []string{path, "--config-file=" + path}, status: cli.ExitUsage, errs: "FILE and --config-file: set only one of them"},
		{args: []string{path, "other"}, status: cli.ExitUsage, errs: `unexpected argument "other"`},
		{args: []string{"--version"}, out: "podgauge dev\n"},
	} {
		var out, errs bytes.Buffer
		status := run(t.Context(), testPlatform{}, append([]string{"validate"}, c.args...), fakeEnv(c.env), &out, &errs)
		if status != c.status || !strings.Contains(out.String(), c.out) || c.errs != "" && errs.String() != "podgauge validate: "+c.errs+"\n" {
			t.Errorf("%v %v: got status %d, stdout %q, stderr %q", c.args, c.env, status, out.String(), errs.String())
		}
	}
}

// partialBackend is hardware with one GPU that cannot be described.
type partialBackend struct{ device.Backend }

func (p partialBackend) Devices(ctx context.Context) ([]device.Device, error) {
	devices, err := p.Backend.Devices(ctx)
	return devices, errors.Join(err, errors.New("GPU 7: GPU is lost"))
}

// TestLostGPUAtStart checks that a GPU that cannot be described does not affect the other GPUs.
func TestLostGPUAtStart(t *testing.T) {
	o, err := parseOptions(testPlatform{}, []string{"--fail-on-init-error"}, emptyEnv)
	if err != nil {
		t.Fatal(err)
	}
	m, err := o.openPlatform(slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	m.Backend = partialBackend{m.Backend}
	var out bytes.Buffer
	if err := o.preview(t.Context(), m, &out); err != nil || !strings.Contains(out.String(), "note: GPU 7: GPU is lost\n") || !strings.Contains(out.String(), "nvidia.com/gpu  8") {
		t.Errorf("validate: got error %v, output\n%s", err, out.String())
	}
}

// hangingBackend is hardware whose driver hangs until the channel is closed.
type hangingBackend struct {
	device.Backend
	hang chan struct{}
}

func (h hangingBackend) Devices(context.Context) ([]device.Device, error) {
	<-h.hang
	return nil, nil
}

// TestValidateWithHungDriver checks that validate ends.
func TestValidateWithHungDriver(t *testing.T) {
	o, err := parseOptions(testPlatform{}, nil, emptyEnv)
	if err != nil {
		t.Fatal(err)
	}
	bubble.Test(t, func(t *testing.T) {
		hang := make(chan struct{})
		defer close(hang)
		if err := o.preview(t.Context(), &Hardware{Backend: hangingBackend{hang: hang}}, io.Discard); err == nil || err.Error() != "the driver does not respond" {
			t.Errorf("got error %v", err)
		}
	})
}

// fixedBackend is hardware with a constant listing.
type fixedBackend struct {
	device.Backend
	devices []device.Device
	err     error
}

func (l fixedBackend) Devices(context.Context) ([]device.Device, error) { return l.devices, l.err }

// TestFailOnInitError checks that the process ends if and only if the driver cannot be used.
func TestFailOnInitError(t *testing.T) {
	machine := newMachine(sim.T4)
	devices, err := machine.Devices(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		name    string
		devices []device.Device
		err     error
		wantErr string
	}{
		{name: "no driver", err: fmt.Errorf("%w: libnvidia-ml.so.1 is missing", device.ErrNoDriver), wantErr: "--fail-on-init-error: no driver: libnvidia-ml.so.1 is missing"},
		{name: "no list", err: errors.New("count GPUs: unknown error"), wantErr: "--fail-on-init-error: count GPUs: unknown error"},
		{name: "one GPU is lost", devices: devices, err: errors.New("GPU 7: GPU is lost")},
		{name: "no GPU", devices: []device.Device{}},
	} {
		t.Run(row.name, func(t *testing.T) {
			monitor := newInitializingMonitor(t, fixedBackend{machine, row.devices, row.err})
			if err := requireDriver(t.Context(), monitor); (err == nil) != (row.wantErr == "") || err != nil && err.Error() != row.wantErr {
				t.Errorf("requireDriver: got error %v, want %q", err, row.wantErr)
			}
		})
	}
}

// newInitializingMonitor returns a running Monitor.
func newInitializingMonitor(t *testing.T, b device.Backend) *device.Monitor {
	t.Helper()
	monitor := device.NewMonitor(b, device.NewReaders(b), &device.Inventory{}, device.MonitorOptions{Log: slog.New(slog.DiscardHandler)})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- monitor.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		monitor.Drain(context.Background())
	})
	return monitor
}

// TestFailOnInitErrorWaits checks that a library that initializes for long is no error.
func TestFailOnInitErrorWaits(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		machine := newMachine(sim.T4)
		machine.HangAll()
		monitor := newInitializingMonitor(t, machine)
		ended := make(chan error, 1)
		go func() { ended <- requireDriver(t.Context(), monitor) }()
		time.Sleep(time.Hour) // of the bubble
		select {
		case err := <-ended:
			t.Errorf("while the driver initializes: got %v, want no result", err)
		default:
		}
		machine.ReleaseHangs()
		if err := <-ended; err != nil {
			t.Errorf("after the driver has responded: got error %v", err)
		}
	})
}

// TestServeWhileTheDriverInitializes checks that probes get responses during a start that needs the driver: otherwise the pod is killed.
func TestServeWhileTheDriverInitializes(t *testing.T) {
	machine := newMachine(sim.T4)
	machine.HangAll()
	w := newTestAppWith(t, testSetup{machine: machine}, "--fail-on-init-error")
	w.waitLine("podgauge_nvml_up", " 0")
	machine.ReleaseHangs()
	w.waitRegistered()
}
