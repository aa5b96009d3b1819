package app

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/podgauge/podgauge/internal/cli"
	"github.com/podgauge/podgauge/internal/operator"
	"github.com/podgauge/podgauge/internal/sim"
	"github.com/podgauge/podgauge/internal/sim/kubelet"
	"github.com/podgauge/podgauge/internal/state"
	"github.com/podgauge/podgauge/internal/web/api"
)

// operate sends bytes to the socket in a folder, and returns the error.
func operate(t *testing.T, dir, content string) (r api.ErrorResponse) {
	t.Helper()
	client := &http.Client{Transport: socketTransport(dir), Timeout: waitTimeout}
	resp, err := client.Post("http://podgauge"+operatorPath, "application/json", strings.NewReader(content))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(&r); err != nil {
		t.Errorf("%.40q: got error %v", content, err)
	}
	return r
}

// startWithSocket starts podgauge with a state folder and waits for the socket.
func startWithSocket(t *testing.T, s testSetup, args ...string) (w *testApp, dir string) {
	t.Helper()
	dir = shortDir(t)
	return startWithSocketIn(t, dir, s, args...), dir
}

// startWithSocketIn starts podgauge with this state folder and waits for the socket.
func startWithSocketIn(t *testing.T, dir string, s testSetup, args ...string) *testApp {
	t.Helper()
	w := newTestAppWith(t, s, append(args, "--state-dir="+dir)...)
	waitUntil(t, "the socket listens", func() bool {
		conn, err := net.Dial("unix", filepath.Join(dir, socketName))
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
	return w
}

// device runs `podgauge device`.
func (w *testApp) device(dir string, args ...string) (status int, out, errs string) {
	out, errs, status = runCLI(w.t, append(append([]string{"device"}, args...), "--state-dir="+dir)...)
	return status, out, errs
}

// driver runs `podgauge driver`.
func (w *testApp) driver(dir, action string) {
	w.t.Helper()
	out, errs, status := runCLI(w.t, "driver", action, "--state-dir="+dir)
	if status != cli.ExitOK || !strings.HasPrefix(out, "the driver is ") {
		w.t.Errorf("%s: got status %d, %q, %q", action, status, out, errs)
	}
}

// TestReleaseAndResume checks that commands release the driver and open it
// again.
func TestReleaseAndResume(t *testing.T) {
	w, dir := startWithSocket(t, testSetup{machine: newMachine(sim.H100, sim.H100)})
	w.waitRegistered()
	waitUntil(t, "links are read", func() bool { return w.machine.LinkReads() > 0 })
	for range 2 { // a repeated command changes nothing
		w.driver(dir, "release")
		if !w.machine.Closed() {
			t.Error("the driver is not closed")
		}
	}
	w.waitLine(`podgauge_nvml_up`, " 0")
	w.waitLine("podgauge_plugin_devices{health=\"unhealthy\"", " 2")
	for range 2 {
		w.driver(dir, "resume")
	}
	w.waitLine(`podgauge_nvml_up`, " 1")
	w.waitRegistered()
}

// TestRetireMIGDeviceAndReplicas checks that all ids of a retired device, and no others, become unhealthy in the kubelet.
func TestRetireMIGDeviceAndReplicas(t *testing.T) {
	machine := newMachine(sim.H100, sim.H100)
	machine.Partition(machine.GPUs()[1], "1g.10gb", "1g.10gb", "1g.10gb")
	config := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(config, []byte("flags: {migStrategy: mixed}\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	w, dir := startWithSocket(t, testSetup{machine: machine}, "--config-file="+config)
	const migResource = "nvidia.com/mig-1g.10gb"
	w.waitAllocatable(gpuResource, 4)
	w.waitAllocatable(migResource, 3)
	w.runPod(gpuPod("research", "train", 1))
	w.waitLine("nvidia_gpu_allocation_info{", " 1")
	mig := string(machine.AllocatableIDs()[2])
	for _, c := range []struct {
		args     []string
		out      string
		gpu, mig int // allocatable
	}{
		{[]string{"retire", "0", "--reason=fan is noisy"}, "GPU 0 (" + string(machine.GPUs()[0]) + ") is retired: fan is noisy\nallocated until the pods end: research/train\n", 0, 3},
		{[]string{"retire", mig, "--reason", "slow"}, "GPU 1:1 (" + mig + ") is retired: slow\n", 0, 2},
		{[]string{"trust", "0"}, "GPU 0 (" + string(machine.GPUs()[0]) + ") is healthy\nthe retirement has ended\n", 4, 2},
		{[]string{"trust", "1:1"}, "GPU 1:1 (" + mig + ") is healthy\nthe retirement has ended\n", 4, 3},
		{[]string{"retire", string(machine.GPUs()[1]), "--reason=all"}, "GPU 1 (" + string(machine.GPUs()[1]) + ") is retired: all\n", 4, 0},
		{[]string{"trust", "1"}, "GPU 1 (" + string(machine.GPUs()[1]) + ") is healthy\nthe retirement has ended\n", 4, 3},
	} {
		if status, out, errs := w.device(dir, c.args...); status != cli.ExitOK || out != c.out || errs != "" {
			t.Errorf("%v: got %d, %q, %q, want %q", c.args, status, out, errs, c.out)
		}
		w.waitKubelet(fmt.Sprint(c.args), func(s kubelet.KubeletState) bool {
			return s.Resources[gpuResource].Allocatable == c.gpu && s.Resources[migResource].Allocatable == c.mig
		})
		gpu := slices.Index([]string{"0", string(machine.GPUs()[1])}, c.args[1])
		if c.args[0] == "retire" && gpu >= 0 { // alerts depend on the series of the GPU itself, also of a partitioned one
			series := regexp.MustCompile(fmt.Sprintf(`nvidia_gpu_unhealthy_info\{.*gpu="%d",mig_uuid="".*reason="retired"`, gpu))
			w.waitScrape("the retired GPU", series.MatchString)
		}
	}
}

// TestTrustReportsRemainingFaults checks that trust ends a wrong fault, and reports the remaining ones.
func TestTrustReportsRemainingFaults(t *testing.T) {
	w, dir := startWithSocket(t, testSetup{machine: newMachine(sim.H100, sim.H100)})
	w.waitRegistered()
	ids := w.machine.AllocatableIDs()
	w.machine.SetRepairPending(ids[0])
	w.machine.Fail(ids[0], "xid 95")
	w.machine.Fail(ids[1], "lost")
	w.waitAllocatable(gpuResource, 0)
	if status, out, errs := w.device(dir, "trust", "0"); status != cli.ExitOK || errs != "" ||
		out != "GPU 0 ("+string(ids[0])+") is healthy\na memory repair is pending: reset the GPU when it is idle\n" {
		t.Errorf("got status %d, %q, %q", status, out, errs)
	}
	w.waitAllocatable(gpuResource, 1)
	status, out, errs := w.device(dir, "trust", "1")
	if status != cli.ExitError || errs != "" || out != fmt.Sprintf("GPU 1 (%s) is unhealthy: lost (reboot)\nGPU 1 (%s): GPU is lost\n", ids[1], ids[1]) {
		t.Errorf("got status %d, %q, %q", status, out, errs)
	}
}

// TestDeviceErrors checks that an error is one line and changes nothing.
func TestDeviceErrors(t *testing.T) {
	w, dir := startWithSocket(t, testSetup{machine: newMachine(sim.T4, sim.T4)})
	w.waitRegistered()
	names := fmt.Sprintf("0 (%s), 1 (%s)", w.machine.GPUs()[0], w.machine.GPUs()[1])
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	stale := filepath.Join(dir, "stale")
	if err := os.Mkdir(stale, 0o700); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", filepath.Join(stale, socketName))
	if err != nil {
		t.Fatal(err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	l.Close()
	for _, c := range []struct {
		args   []string
		status int
		want   string
	}{
		{[]string{"retire", "8", "--reason=x"}, cli.ExitError, `no device "8": expected one of ` + names},
		{[]string{"trust", "GPU-none"}, cli.ExitError, `no device "GPU-none": expected one of ` + names},
		{[]string{"retire", string(w.machine.GPUs()[0]) + "::0", "--reason=x"}, cli.ExitError, "expected one of " + names},
		{[]string{"retire", "0"}, cli.ExitUsage, "--reason: required to retire a device"},
		{[]string{"retire", "0", "--reason= "}, cli.ExitUsage, "--reason: required to retire a device"},
		{[]string{"retire", "0", "--reason=a\nb"}, cli.ExitUsage, "--reason: expected one line of printable text, at most 256 bytes"},
		{[]string{"retire", "0", "--reason=" + strings.Repeat("x", 257)}, cli.ExitUsage, "--reason: expected one line of printable text"},
		{[]string{"trust", "0", "--reason=x"}, cli.ExitUsage, "unknown flag: --reason"},
		{[]string{"retire", "", "--reason=x"}, cli.ExitUsage, "expected a UUID, the index of a GPU"},
		{[]string{"reset", "0"}, cli.ExitUsage, `expected podgauge device retire DEVICE --reason=…, podgauge device trust DEVICE, or podgauge device forget DEVICE`},
		{[]string{"retire"}, cli.ExitUsage, "expected one device"},
		{[]string{"retire", "0", "1"}, cli.ExitUsage, "expected one device"},
		{[]string{"trust", "0", "--nothing"}, cli.ExitUsage, "unknown flag: --nothing"},
		{[]string{"trust", "0", "--state-dir=/no/folder"}, cli.ExitError, "no socket /no/folder/podgauge.sock: run podgauge with --state-dir=/no/folder"},
		{[]string{"trust", "0", "--state-dir=" + stale}, cli.ExitError, "podgauge is not running: no process listens at " + stale},
		{[]string{"trust", "0", "--state-dir=" + file}, cli.ExitError, "connect to podgauge: "},
	} {
		var stdout, stderr bytes.Buffer
		args := c.args
		if !slices.ContainsFunc(args, func(arg string) bool { return strings.HasPrefix(arg, "--state-dir") }) && args[0] != "reset" {
			args = append(slices.Clone(args), "--state-dir="+dir)
		}
		status := run(t.Context(), testPlatform{}, append([]string{"device"}, args...), emptyEnv, &stdout, &stderr)
		errs := stderr.String()
		if status != c.status || stdout.Len() > 0 || !strings.HasPrefix(errs, "podgauge device") || !strings.Contains(errs, c.want) || strings.Count(errs, "\n") != 1 {
			t.Errorf("%q: got status %d, %q, %q", c.args, status, &stdout, errs)
		}
	}
	path := filepath.Join(dir, socketName)
	if s, err := os.Stat(path); err != nil || s.Mode().Perm() != 0o600 {
		t.Errorf("socket: got %v, %v", s.Mode(), err)
	}
	for content, want := range map[string]string{
		"":                        "parse request: EOF",
		"x":                       "parse request: invalid character",
		"[]":                      "parse request: json: cannot unmarshal array",
		strings.Repeat(" ", 5000): "parse request: http: request body too large",
		`{"action":"stop"}`:       "expected retire, trust, forget, release or resume",
		"{\"action\":\"trust\",\"device\":\"\\u001b\"}": "expected a UUID",
	} {
		if r := operate(t, dir, content); !strings.Contains(r.Error, want) {
			t.Errorf("%.40q: got %q, want %s", content, r.Error, want)
		}
	}
	if statuses := w.scrape("text/plain"); strings.Contains(statuses, `reason="retired"`) {
		t.Error("an invalid request has retired a device")
	}
}

// TestDriverErrors checks that an error is one line.
func TestDriverErrors(t *testing.T) {
	for _, c := range []struct {
		args   []string
		status int
		want   string
	}{
		{[]string{"driver"}, cli.ExitUsage, "expected podgauge driver release or podgauge driver resume"},
		{[]string{"driver", "release", "0"}, cli.ExitUsage, `unexpected argument "0"`},
		{[]string{"driver", "resume", "--state-dir=/no/folder"}, cli.ExitError, "no socket /no/folder/podgauge.sock"},
	} {
		out, errs, status := runCLI(t, c.args...)
		if status != c.status || out != "" || !strings.Contains(errs, c.want) || strings.Count(errs, "\n") != 1 {
			t.Errorf("%q: got status %d, %q, %q", c.args, status, out, errs)
		}
	}
}

// TestSilentClients checks that clients that send nothing are disconnected, and that other clients get responses.
func TestSilentClients(t *testing.T) {
	w, dir := startWithSocket(t, testSetup{machine: newMachine(sim.T4)})
	w.waitRegistered()
	for range 2 * maxSocketConns {
		conn, err := net.Dial("unix", filepath.Join(dir, socketName))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		io.WriteString(conn, "{") // an incomplete request
	}
	if status, _, errs := w.device(dir, "retire", "0", "--reason=fan"); status != cli.ExitOK {
		t.Error(errs)
	}
}

// TestRetirementIsNotStored checks that a device is retired even if the file cannot be written, and that the response has a warning.
func TestRetirementIsNotStored(t *testing.T) {
	w, dir := startWithSocket(t, testSetup{machine: newMachine(sim.T4)})
	w.waitRegistered()
	w.waitLine("podgauge_state_up", " 1")
	file := filepath.Join(dir, state.FileName)
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(file, "not a file"), 0o700); err != nil {
		t.Fatal(err)
	}
	status, out, errs := w.device(dir, "retire", "0", "--reason=fan")
	if status != cli.ExitOK || errs != "" || !strings.Contains(out, "is retired: fan\nnot stored on disk, a restart of podgauge loses this change: ") {
		t.Errorf("got status %d, %q, %q", status, out, errs)
	}
	w.waitAllocatable(gpuResource, 0)
}

// TestMissingGPU checks that a missing GPU is shown in metrics, JSON and status.
func TestMissingGPU(t *testing.T) {
	w := newTestApp(t, 2, "--expected-gpus=3")
	w.waitLine("podgauge_expected_gpus", " 3")
	w.waitLine("podgauge_missing_gpus", " 1")
	_, body := w.getPath("/api/v1/devices")
	notes, _, err := statusTable([]byte(body), false)
	if err != nil || !strings.Contains(strings.Join(notes, "\n"), "1 of 3 expected GPUs missing") {
		t.Errorf("got %q, %v", notes, err)
	}
	w.machine.AddGPU()
	w.waitLine("podgauge_missing_gpus", " 0")
}

func TestFlagValue(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{nil, ""},
		{[]string{"--state-dir=/a", "--x"}, "/a"},
		{[]string{"-state-dir", "/a"}, "/a"},
		{[]string{"--state-dir=/a", "--state-dir=/b"}, "/b"},
		{[]string{"--state-dir"}, ""},
		{[]string{"state-dir=/a"}, ""},
		{[]string{"--state-dirs=/a"}, ""},
	} {
		if got := flagValue(c.args, "state-dir"); got != c.want {
			t.Errorf("%q: got %q, want %q", c.args, got, c.want)
		}
	}
}

// TestDaemonsStateDir checks that the default folder is that of the daemon in the container.
func TestDaemonsStateDir(t *testing.T) {
	argv := []string{"podgauge", "device", "trust", "0"}
	proc := newFakeProc(t, fakeProcess{"self", "podgauge", "mnt:[1]", argv}, fakeProcess{"7", "podgauge", "mnt:[1]", argv},
		fakeProcess{"1", "podgauge", "mnt:[1]", []string{"podgauge", "--state-dir=/state"}})
	for _, c := range []struct{ proc, flag, want string }{{proc, "", "/state"}, {proc, "/mine", "/mine"}, {t.TempDir(), "", defaultStateDir}} {
		command := operatorCommand{Request: operator.Request{Action: operator.Trust}, stateDir: c.flag}
		if err := command.complete([]string{"0"}, c.proc); err != nil || command.stateDir != c.want {
			t.Errorf("%q, %v, want %q", command.stateDir, err, c.want)
		}
	}
}
