package app_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/podgauge/podgauge/internal/cli"
	"github.com/podgauge/podgauge/internal/config"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/operator"
	"github.com/podgauge/podgauge/internal/sim"
	"github.com/podgauge/podgauge/internal/sim/kubelet"
	"github.com/podgauge/podgauge/internal/state"
	"github.com/podgauge/podgauge/test/helpers/expect"
	"github.com/podgauge/podgauge/test/helpers/program"
	"github.com/podgauge/podgauge/test/helpers/require"
)

// device runs `podgauge device`, and checks exit status, output and error, each a substring.
func (w *testApp) device(dir string, wantStatus int, wantOut, wantErr string, args ...string) {
	w.t.Helper()
	out, errs, status := runCLI(w.t, append(append([]string{"device"}, args...), "--state-dir="+dir)...)
	if status != wantStatus || !strings.Contains(out, wantOut) || !strings.Contains(errs, wantErr) || (errs == "") != (wantErr == "") {
		w.t.Errorf("%q: got status %d, %q, %q, want %d, %q, %q", args, status, out, errs, wantStatus, wantOut, wantErr)
	}
}

// driver runs `podgauge driver`.
func (w *testApp) driver(dir, action string) {
	w.t.Helper()
	out, errs, status := runCLI(w.t, "driver", action, "--state-dir="+dir)
	if status != cli.ExitOK || !strings.HasPrefix(out, "the driver is ") {
		w.t.Errorf("%s: got status %d, %q, %q", action, status, out, errs)
	}
}

// TestRetireMIGDeviceAndReplicas checks that all ids of a retired device, and no others, become unhealthy in the
// kubelet.
func TestRetireMIGDeviceAndReplicas(t *testing.T) {
	t.Parallel()
	machine := newMachine(sim.H100, sim.H100)
	machine.Partition(machine.GPUs()[1], "1g.10gb", "1g.10gb", "1g.10gb")
	w, dir := startWithSocket(t, testSetup{machine: machine}, "--mig-strategy=mixed", "--config-file="+sharedConfig(t, 4))
	const migResource = "nvidia.com/mig-1g.10gb"
	w.waitAllocatable(gpuResource, 4)
	w.waitAllocatable(migResource, 3)
	w.runPod(gpuPod("research", "train", 1))
	w.waitLine("nvidia_gpu_allocation_info{", " 1")
	gpu0, gpu1, mig := string(machine.GPUs()[0]), string(machine.GPUs()[1]), string(machine.AllocatableIDs()[2])
	for _, c := range []struct {
		args     []string
		out      string
		gpu, mig int // allocatable
	}{
		{[]string{"retire", "0", "--reason=fan is noisy"}, "GPU 0 (" + gpu0 + ") is retired: fan is noisy\nallocated until the pods end: research/train\n", 0, 3},
		{[]string{"retire", mig, "--reason", "slow"}, "GPU 1:1 (" + mig + ") is retired: slow\n", 0, 2},
		{[]string{"trust", "0"}, "GPU 0 (" + gpu0 + ") is healthy\nthe retirement has ended\n", 4, 2},
		{[]string{"trust", "1:1"}, "GPU 1:1 (" + mig + ") is healthy\nthe retirement has ended\n", 4, 3},
		{[]string{"retire", gpu1, "--reason=all"}, "GPU 1 (" + gpu1 + ") is retired: all\n", 4, 0},
		{[]string{"trust", "1"}, "GPU 1 (" + gpu1 + ") is healthy\nthe retirement has ended\n", 4, 3},
	} {
		w.device(dir, cli.ExitOK, c.out, "", c.args...)
		w.waitKubelet(fmt.Sprint(c.args), func(s kubelet.KubeletState) bool {
			return s.Resources[gpuResource].Allocatable == c.gpu && s.Resources[migResource].Allocatable == c.mig
		})
		gpu := slices.Index([]string{"0", gpu1}, c.args[1])
		if c.args[0] == "retire" && gpu >= 0 { // alerts depend on the series of the GPU itself, also of a partitioned one
			series := regexp.MustCompile(fmt.Sprintf(`nvidia_gpu_unhealthy_info\{.*gpu="%d",mig_uuid="".*reason="retired"`, gpu))
			w.waitScrape("the retired GPU", series.MatchString)
		}
	}
}

// TestRetiredFile checks that a device is retired while the file of all nodes lists it, with the date of the file,
// and that the fault behind is shown. Commands on the node do not change the file.
func TestRetiredFile(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), config.RetiredFile)
	write := func(content string) {
		require.NoError(t, os.WriteFile(file, []byte(content), 0o600))
	}
	machine := newMachine(sim.H100, sim.H100)
	gpu := machine.GPUs()[0]
	write("retired:\n- {device: 1650000000, reason: noisy fan, by: alice, date: 2026-11-20}\n- {device: 0324018045603, reason: of another node}\n")
	w, dir := startWithSocket(t, testSetup{machine: machine}, "--retired-file="+file,
		"--metrics.set=none", "--metrics.include=nvidia_gpu_masked_fault_info,nvidia_gpu_unhealthy_info,nvidia_gpu_health_since_timestamp_seconds")
	w.waitAllocatable(gpuResource, 1)
	w.waitLine(`nvidia_gpu_health_since_timestamp_seconds{container="",gpu="0"`, " 1.7951328e+09")
	w.machine.Fail(device.ID(gpu), "xid 95")
	w.checkScrape("retired", `nvidia_gpu_masked_fault_info{action="reset_gpu",container="",gpu="0"`, " 1")
	_, body := w.getPath("/api/v1/devices")
	expect.Contains(t, body, `"masked_fault":{"reason":"xid_95","action":"reset_gpu",`)
	if out, errs, _ := runCLI(t, "status", "--url="+w.url); !strings.Contains(out, "retired: noisy fan (alice, 2026-11-20); fault behind: xid_95: reset_gpu") {
		t.Errorf("got %s%s", out, errs)
	}
	w.device(dir, cli.ExitError, fmt.Sprintf("GPU 0 (%s) is unhealthy: retired\nGPU 0 (%[1]s) stays retired by %s: run kubectl podgauge unretire", gpu, file), "", "trust", "0")
	write("retired: [")
	w.device(dir, cli.ExitOK, "GPU 1 ", "", "retire", "1", "--reason=slow")
	w.waitAllocatable(gpuResource, 0)
	write("")
	w.waitAllocatable(gpuResource, 1)
}

// TestTrustReportsRemainingFaults checks that trust ends a wrong fault, and reports the remaining ones.
func TestTrustReportsRemainingFaults(t *testing.T) {
	t.Parallel()
	w, dir := startWithSocket(t, testSetup{machine: newMachine(sim.H100, sim.H100)})
	w.waitRegistered()
	ids := w.machine.AllocatableIDs()
	w.machine.SetRepairPending(ids[0])
	w.machine.Fail(ids[0], "xid 95")
	w.machine.Fail(ids[1], "lost")
	w.waitAllocatable(gpuResource, 0)
	w.device(dir, cli.ExitOK, fmt.Sprintf("GPU 0 (%s) is healthy\na memory repair is pending: reset the GPU when it is idle\n", ids[0]), "", "trust", "0")
	w.waitAllocatable(gpuResource, 1)
	w.device(dir, cli.ExitError, fmt.Sprintf("GPU 1 (%s) is unhealthy: lost (reboot)\nGPU 1 (%[1]s): GPU is lost\n", ids[1]), "", "trust", "1")
}

// TestUnknownDevices checks that an unknown name is an error with all names, and changes nothing.
func TestUnknownDevices(t *testing.T) {
	t.Parallel()
	w, dir := startWithSocket(t, testSetup{machine: newMachine(sim.T4, sim.T4)})
	w.waitRegistered()
	ids := w.machine.GPUs()
	names := fmt.Sprintf("expected one of 0 (%s), 1 (%s)\n", ids[0], ids[1])
	w.device(dir, cli.ExitError, "", `podgauge device retire: no device "8": `+names, "retire", "8", "--reason=x")
	w.device(dir, cli.ExitError, "", `podgauge device trust: no device "GPU-none": `+names, "trust", "GPU-none")
	w.device(dir, cli.ExitError, "", names, "retire", string(ids[0])+"::0", "--reason=x")
	if strings.Contains(w.scrape("text/plain"), `reason="retired"`) {
		t.Error("an invalid request has retired a device")
	}
}

// renumbered is a machine that numbers the present GPUs, as the driver does when it is loaded.
type renumbered struct{ *sim.Machine }

func (r renumbered) Devices(ctx context.Context) ([]device.Device, error) {
	devices, err := r.Machine.Devices(ctx)
	for i := range devices {
		devices[i].Index = i
	}
	return devices, err
}

// TestIndexOfTwoDevices checks that the index of a healthy GPU is refused if a gone GPU had it, too.
func TestIndexOfTwoDevices(t *testing.T) {
	t.Parallel()
	dir, machine := program.ShortDir(t), newMachine(sim.H100, sim.H100)
	ids := machine.GPUs()
	t.Run("first process", func(t *testing.T) { startWithSocketIn(t, dir, testSetup{machine: machine}).waitRegistered() })
	machine.RemoveGPU(device.ID(ids[0]))
	w := startWithSocketIn(t, dir, testSetup{machine: machine, backend: renumbered{machine}})
	w.waitNotReady("devices", string(ids[0]))
	w.device(dir, cli.ExitError, "", fmt.Sprintf(`"0" names %s (gone) and %s: use the UUID`, ids[0], ids[1]), "retire", "0", "--reason=x")
	w.device(dir, cli.ExitOK, fmt.Sprintf("GPU 0 (%s) is retired", ids[1]), "", "retire", string(ids[1]), "--reason=x")
}

// TestRetirementIsNotStored checks that a device is retired even if the file cannot be written, and that the response
// has a warning.
func TestRetirementIsNotStored(t *testing.T) {
	t.Parallel()
	w, dir := startWithSocket(t, testSetup{machine: newMachine(sim.T4)})
	w.waitRegistered()
	file := filepath.Join(dir, state.FileName)
	program.WaitUntil(t, "the file is replaced by a folder", func() bool {
		os.Remove(file)
		return os.MkdirAll(filepath.Join(file, "not a file"), 0o700) == nil
	})
	w.device(dir, cli.ExitOK, "is retired: fan\nnot stored on disk, a restart of podgauge loses this change: ", "", "retire", "0", "--reason=fan")
	w.waitAllocatable(gpuResource, 0)

	// A newer process has the file also if the older one could not store its state.
	if newer := operator.TakeOver(dir, slog.Default()); newer != nil {
		defer newer.Close()
	}
	require.NoError(t, os.RemoveAll(file))
	w.device(dir, cli.ExitOK, "not stored on disk", "", "retire", "0", "--reason=noise")
	if _, err := os.Stat(file); err == nil {
		t.Error("the older process has written the file")
	}
}

// TestHandOver checks that a newer process has the state file while it runs, or another one serves the socket. After their end, the
// older process serves the socket and stores its state again: an update was rolled back.
func TestHandOver(t *testing.T) {
	t.Parallel()
	w, dir := startWithSocket(t, testSetup{machine: newMachine(sim.T4, sim.T4)})
	w.waitRegistered()
	w.device(dir, cli.ExitOK, "is retired: fan", "", "retire", "0", "--reason=fan")
	newer := operator.TakeOver(dir, slog.Default())
	if newer == nil {
		t.Fatal("got no connection")
	}
	file := filepath.Join(dir, state.FileName)
	if content, err := os.ReadFile(file); err != nil || !strings.Contains(string(content), "fan") {
		t.Errorf("handed over: got %s, %v, want the retired device", content, err)
	}
	w.device(dir, cli.ExitOK, "loses this change: a newer podgauge process has the state", "", "retire", "1", "--reason=noise")
	require.NoError(t, os.Remove(filepath.Join(dir, operator.SocketName)))
	newest, err := net.Listen("unix", filepath.Join(dir, operator.SocketName))
	require.NoError(t, err)
	newer.Close()
	conn, err := newest.Accept() // the older process tries the socket
	require.NoError(t, err)
	conn.Close()
	if content, _ := os.ReadFile(file); strings.Contains(string(content), "noise") {
		t.Error("the older process has stored its state while the newest runs")
	}
	newest.Close()
	program.WaitUntil(t, "the older process stores its state", func() bool {
		content, _ := os.ReadFile(file)
		return strings.Contains(string(content), "noise")
	})
	program.WaitUntil(t, "the older process serves the socket", func() bool {
		again := operator.TakeOver(dir, slog.Default())
		return again != nil && again.Close() == nil
	})
}

// TestMissingGPU checks that a missing GPU is shown in metrics, JSON and status.
func TestMissingGPU(t *testing.T) {
	t.Parallel()
	w := newTestApp(t, 2, "--expected-gpus=3")
	w.waitLine("podgauge_expected_gpus", " 3")
	w.waitLine("podgauge_missing_gpus", " 1")
	if _, body := w.getPath("/api/v1/devices"); !strings.Contains(body, `"missing_gpus":1`) {
		t.Errorf("got %s", body)
	}
	if out, errs, _ := runCLI(t, "status", "--url="+w.url); !strings.Contains(out, "1 of 3 expected GPUs missing") {
		t.Errorf("got %s%s", out, errs)
	}
	w.machine.AddGPU()
	w.waitLine("podgauge_missing_gpus", " 0")
}
