package app_test

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/app"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/dra"
	"github.com/podgauge/podgauge/internal/nvml/metric"
	"github.com/podgauge/podgauge/internal/sim"
	"github.com/podgauge/podgauge/internal/sim/kubelet"
	"github.com/podgauge/podgauge/test/helpers/background"
	"github.com/podgauge/podgauge/test/helpers/program"
	"github.com/podgauge/podgauge/test/helpers/require"
	"github.com/spf13/pflag"
)

// gpuResource is the resource name of whole GPUs.
const gpuResource = "nvidia.com/gpu"

// testApp is the whole program in this process, with a simulated kubelet and a simulated machine whose clock is
// stopped.
type testApp struct {
	t       *testing.T
	machine *sim.Machine
	kubelet *kubelet.Kubelet
	url     string
	dir     string // of the kubelet
	// replacer replaces values that differ between runs, such as UIDs, in golden files; nil: none.
	replacer *strings.Replacer
	// stopKubelet ends the kubelet's process; startKubelet starts a new one.
	stopKubelet func()
}

const (
	waitTimeout  = time.Minute
	pollInterval = 20 * time.Millisecond
)

// testSetup configures a testApp. Only the machine is required.
type testSetup struct {
	machine *sim.Machine
	backend device.Backend // if not the machine
	// kubelet has the kubelet's options. The testApp sets the folder and the age.
	kubelet kubelet.Options
	// procDir is the /proc for the lookup of processes; empty: no processes.
	procDir string
	// missingFamilies are families that the driver is too old for.
	missingFamilies []string
	// otherPlugin starts before podgauge, with the kubelet; nil: none.
	otherPlugin func(k *kubelet.Kubelet)
	// rejectRegister is the kubelet's first error of Register; nil: none.
	rejectRegister error
	// noKubelet disables the simulated kubelet. The test may serve the kubelet's sockets in dir.
	noKubelet bool
	dir       string
	env       map[string]string
}

// testPlatform is the hardware of a test; by default a simulated machine of eight H100s, without a kubelet.
type testPlatform struct {
	hardware *app.Hardware
	err      error // returned by Open
}

func (testPlatform) AddFlags(*pflag.FlagSet) {}

func (p testPlatform) Open(app.OpenOptions) (*app.Hardware, error) {
	byDefault := &app.Hardware{Backend: sim.NewMachine(metric.Metrics(), 8, time.Now), Simulated: true}
	return cmp.Or(p.hardware, byDefault), p.err
}

// oldLibrary is a driver library that is too old for some families.
type oldLibrary struct{ families []string }

func (l oldLibrary) Library() device.Library { return device.Library{MissingFamilies: l.families} }

func (oldLibrary) XidEventAt(string, uint64, uint32, uint32) (e device.Event, known bool) {
	return e, false
}

func (oldLibrary) Close() {}

// newTestApp starts the program with these arguments on a number of H100s.
func newTestApp(t *testing.T, gpus int, args ...string) *testApp {
	t.Helper()
	return newTestAppWith(t, testSetup{machine: newMachine(slices.Repeat([]*sim.Model{sim.H100}, gpus)...)}, args...)
}

// newMachine returns a machine whose clock is stopped.
func newMachine(models ...*sim.Model) *sim.Machine {
	return sim.NewMachineWithModels(metric.Metrics(), fixedClock, models...)
}

// fixedClock is a stopped clock.
func fixedClock() time.Time { return time.Unix(1_700_000_000, 0) }

// newTestAppWith starts the program with a setup and arguments.
func newTestAppWith(t *testing.T, s testSetup, args ...string) *testApp {
	t.Helper()
	w, status, log := startApp(t, s, args...)
	program.WaitUntil(t, "the program logs its address, or ends", func() bool {
		match := regexp.MustCompile(`podgauge starting.* listen=(\S+)`).FindStringSubmatch(log.String())
		if match != nil {
			w.url = "http://" + match[1]
		}
		return match != nil || len(status) > 0
	})
	return w
}

// startApp starts the program, and returns its exit status after the end, and its log.
func startApp(t *testing.T, s testSetup, args ...string) (w *testApp, status chan int, log *program.Log) {
	t.Helper()
	dir := cmp.Or(s.dir, program.ShortDir(t))
	w = &testApp{t: t, machine: s.machine, dir: dir, stopKubelet: func() {}}
	if !s.noKubelet {
		s.kubelet.Dir, s.kubelet.RunningSince = dir, time.Now().Add(-time.Hour)
		w.kubelet = kubelet.New(s.kubelet)
		w.kubelet.SetFaults(kubelet.Faults{RegisterErr: s.rejectRegister})
		w.startKubelet()
		if s.otherPlugin != nil {
			w.waitKubelet("the kubelet serves", func(k kubelet.KubeletState) bool { return k.Serving })
			s.otherPlugin(w.kubelet)
		}
	}
	m := &app.Hardware{
		Backend: w.machine, Simulated: true, ClaimedDevice: dra.ClaimedDevice, CDIDir: filepath.Join(dir, "cdi"),
		SwitchErrors: w.machine.SwitchErrors,
		ProcDir:      cmp.Or(s.procDir, filepath.Join(dir, "proc")), // the machine's /proc depends on the user
	}
	if s.backend != nil {
		m.Backend = s.backend
	}
	if s.missingFamilies != nil {
		m.Library = oldLibrary{s.missingFamilies}
	}
	env := map[string]string{"NODE_NAME": "node-a"}
	maps.Copy(env, s.env)
	args = append([]string{
		"--web.listen-address=127.0.0.1:0", "--kubelet-dir=" + dir, "--kernel-log=", "--metrics.set=full",
	}, args...)
	ctx, cancel := context.WithCancel(context.Background())
	log, status = &program.Log{}, make(chan int, 1)
	go func() { status <- app.Run(ctx, testPlatform{hardware: m}, args, fakeEnv(env), io.Discard, log) }()
	t.Cleanup(func() {
		cancel()
		w.machine.ReleaseHangs()
		if got := <-status; got != 0 {
			t.Errorf("exit status %d:\n%s", got, log)
		}
		w.stopKubelet() // after podgauge
		http.DefaultClient.CloseIdleConnections()
	})
	return w, status, log
}

// reload sends the signal that makes podgauge read its config.
func (w *testApp) reload() { require.NoError(w.t, syscall.Kill(os.Getpid(), syscall.SIGHUP)) }

func (w *testApp) startKubelet() { w.stopKubelet = background.Run(w.t, w.kubelet.Run) }

// waitKubelet waits for a state of the kubelet.
func (w *testApp) waitKubelet(event string, done func(kubelet.KubeletState) bool) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), waitTimeout)
	defer cancel()
	if err := w.kubelet.Wait(ctx, done); err != nil {
		w.t.Fatalf("wait until %s: %v", event, err)
	}
}

// waitAllocatable waits until the kubelet has n allocatable devices.
func (w *testApp) waitAllocatable(res string, n int) {
	w.t.Helper()
	w.waitKubelet(fmt.Sprintf("%d of %s are allocatable", n, res), func(s kubelet.KubeletState) bool {
		return s.Resources[res].Allocatable == n
	})
}

func (w *testApp) waitRegistered() {
	w.t.Helper()
	w.waitAllocatable(gpuResource, len(w.machine.AllocatableIDs()))
}

// waitCounted waits until podgauge exports n allocatable devices. It reads the number every ten seconds, and after an
// allocation.
func (w *testApp) waitCounted(res string, n int) {
	w.t.Helper()
	w.waitAllocatable(res, n)
	line := regexp.MustCompile(`(?m)^podgauge_resource_allocatable_devices\{.*,resource="` + res + `"\} (\d+)$`)
	w.waitScrape(fmt.Sprintf("%d of %s", n, res), func(text string) bool {
		counted := 0
		for _, match := range line.FindAllStringSubmatch(text, -1) {
			count, _ := strconv.Atoi(match[1]) // digits
			counted += count
		}
		return counted == n
	})
}

// get returns status and text of a response to a request with headers.
func (w *testApp) get(path, host string, headers ...string) (int, string) {
	w.t.Helper()
	r, err := http.NewRequestWithContext(w.t.Context(), http.MethodGet, w.url+path, http.NoBody)
	require.NoError(w.t, err)
	r.Host = host
	for _, line := range headers {
		name, value, _ := strings.Cut(line, ": ")
		r.Header.Set(name, value)
	}
	resp, err := http.DefaultClient.Do(r)
	require.NoError(w.t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	require.NoError(w.t, err)
	return resp.StatusCode, string(body)
}

// getPath returns status and text of a response.
func (w *testApp) getPath(path string) (int, string) {
	w.t.Helper()
	return w.get(path, "")
}

func (w *testApp) scrape(accept string) string {
	w.t.Helper()
	code, text := w.get("/metrics", "", "Accept: "+accept)
	if code != http.StatusOK {
		w.t.Fatalf("scrape: status %d", code)
	}
	return text
}

// waitLine scrapes until a line has this prefix and suffix, and returns the text.
func (w *testApp) waitLine(begins, ends string) string {
	w.t.Helper()
	return w.waitScrape("a line "+begins+"…"+ends, func(text string) bool {
		for line := range strings.Lines(text) {
			if strings.HasPrefix(line, begins) && strings.HasSuffix(line, ends+"\n") {
				return true
			}
		}
		return false
	})
}

// waitScrape scrapes until a condition is true, and returns the text.
func (w *testApp) waitScrape(event string, has func(text string) bool) (text string) {
	w.t.Helper()
	program.WaitUntil(w.t, "a scrape with "+event, func() bool {
		text = w.scrape("text/plain")
		return has(text)
	})
	return text
}

// waitReady waits until /readyz succeeds.
func (w *testApp) waitReady() {
	w.t.Helper()
	program.WaitUntil(w.t, "/readyz returns ok", func() bool { code, _ := w.getPath("/readyz"); return code == http.StatusOK })
}

// waitNotReady waits until /readyz fails with a line for this check that contains a text.
func (w *testApp) waitNotReady(check, want string) {
	w.t.Helper()
	program.WaitUntil(w.t, fmt.Sprintf("/readyz fails with %s: …%s…", check, want), func() (found bool) {
		code, body := w.getPath("/readyz")
		for line := range strings.Lines(body) {
			found = found || strings.HasPrefix(line, check+": ") && strings.Contains(line, want)
		}
		return found && code == http.StatusServiceUnavailable
	})
}

// runPodOn runs a pod on chosen devices. The kubelet chooses among the unallocated devices, so fillers occupy all
// others.
func (w *testApp) runPodOn(p kubelet.PodSpec, on ...device.ID) {
	w.t.Helper()
	res := slices.Sorted(maps.Keys(p.Containers[0].Limits))[0]
	var fillers, rest []kubelet.PodSpec
	for i := range w.kubelet.Resource(res).Allocatable {
		filler := newPod("", fmt.Sprintf("filler-%d", i), res, 1)
		if w.tryRunPod(filler) != nil { // no device is left
			w.deletePod(filler)
			break
		}
		fillers = append(fillers, filler)
	}
	w.scrape("text/plain") // finds the owners: allocations without an owner end ten seconds late
	for _, f := range fillers {
		status, err := w.kubelet.Pod(f)
		require.NoError(w.t, err)
		if slices.Contains(on, device.AdvertisedID(status.Containers[0].Devices[0].ID).Device()) {
			w.deletePod(f)
		} else {
			rest = append(rest, f)
		}
	}
	w.runPod(p)
	for _, f := range rest {
		w.deletePod(f)
	}
}

// runPod runs a pod.
func (w *testApp) runPod(p kubelet.PodSpec) {
	w.t.Helper()
	require.NoError(w.t, w.tryRunPod(p))
}

func (w *testApp) tryRunPod(p kubelet.PodSpec) error {
	ctx, cancel := context.WithTimeout(w.t.Context(), waitTimeout)
	defer cancel()
	return w.kubelet.RunPod(ctx, p)
}

func (w *testApp) deletePod(p kubelet.PodSpec) {
	w.t.Helper()
	require.NoError(w.t, w.kubelet.DeletePod(p))
}

func gpuPod(namespace, name string, gpus int) kubelet.PodSpec {
	return newPod(namespace, name, gpuResource, gpus)
}

// newPod returns a pod with a container that requests devices of a resource.
func newPod(namespace, name, res string, n int) kubelet.PodSpec {
	container := kubelet.ContainerSpec{Name: "main", Limits: map[string]int{res: n}}
	return kubelet.PodSpec{Namespace: namespace, Name: name, Containers: []kubelet.ContainerSpec{container}}
}

// writeFile writes a file that podgauge may be reading.
func writeFile(t *testing.T, path, text string) {
	t.Helper()
	require.NoError(t, os.WriteFile(path+".new", []byte(text), 0o600))
	require.NoError(t, os.Rename(path+".new", path))
}

// writeConfig writes a config file.
func writeConfig(t *testing.T, text string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "config.yaml")
	writeFile(t, path, text)
	return path
}

// sharedConfig writes a config of whole GPUs that are shared by time slicing.
func sharedConfig(t *testing.T, replicas int) (path string) {
	t.Helper()
	return writeConfig(t, fmt.Sprintf("version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: %d}]}}\n", replicas))
}
