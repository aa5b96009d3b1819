package app

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/doctor"
	"github.com/podgauge/podgauge/internal/nvml"
	"github.com/podgauge/podgauge/internal/nvml/metric"
	"github.com/podgauge/podgauge/internal/sim"
	"github.com/podgauge/podgauge/internal/sim/kubelet"
	"github.com/spf13/pflag"
)

// parseOptions parses the daemon's flags.
func parseOptions(p Platform, args []string, lookupEnv envLookup) (options, error) {
	o, f := newOptions(p, lookupEnv), pflag.NewFlagSet("podgauge", pflag.ContinueOnError)
	o.addFlags(f)
	if err := f.Parse(normalizeDashes(f, args)); err != nil {
		return *o, err
	}
	return *o, o.complete()
}

// gpuResource is the resource name of whole GPUs.
const gpuResource = "nvidia.com/gpu"

// testApp is the whole program in this process, with a simulated kubelet and a simulated machine whose clock is stopped.
type testApp struct {
	t         *testing.T
	machine   *sim.Machine
	kubelet   *kubelet.Kubelet
	url       string
	dir       string // of the kubelet
	probesURL string // address of the probes only; empty: none
	// replacer replaces values that differ between runs, such as UIDs, in golden files; nil: none.
	replacer *strings.Replacer
	reload   chan os.Signal
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
	// kubernetes configures the features with an API server; the zero value: none.
	kubernetes kubernetesOptions
	// ownPod is the name of podgauge's pod; empty: none.
	ownPod string
}

// oldLibrary is a driver library that is too old for some families.
type oldLibrary struct{ families []string }

func (l oldLibrary) Library() doctor.Library { return doctor.Library{MissingFamilies: l.families} }

func (l oldLibrary) MissingFamilies() []string { return l.families }

func (oldLibrary) XidEventAt(string, uint64, uint32, uint32) (device.Event, bool) {
	return device.Event{}, false
}

func (oldLibrary) Close() {}

// testPlatform is the hardware of a simulated machine of eight H100s, without a kubelet.
type testPlatform struct{ err error } // returned by Open

func (testPlatform) AddFlags(*pflag.FlagSet) {}

func (p testPlatform) Open(OpenOptions) (*Hardware, error) {
	return &Hardware{Backend: sim.NewMachine(metric.Metrics(), 8, time.Now), Simulated: true}, p.err
}

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
	w := &testApp{t: t, reload: make(chan os.Signal), machine: s.machine}
	if s.dir == "" {
		s.dir = shortDir(t)
	}
	dir := s.dir
	w.dir = dir
	if s.procDir == "" {
		s.procDir = filepath.Join(dir, "proc") // the machine's /proc depends on the user
	}
	w.stopKubelet = func() {}
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

	m := &Hardware{
		Backend: w.machine, Simulated: true, ClaimedDevice: nvml.ClaimedDevice,
		ProcDir: s.procDir, KubeletDir: dir, DevicePluginDir: filepath.Join(dir, "device-plugins"), CDIDir: filepath.Join(dir, "cdi"),
	}
	if s.missingFamilies != nil {
		m.Library = oldLibrary{s.missingFamilies}
	}
	o, err := parseOptions(testPlatform{}, append([]string{"--metrics.set=full"}, args...), emptyEnv)
	if err != nil {
		t.Fatal(err)
	}
	o.web.listenAddress, o.kubernetes, o.ownPod = "127.0.0.1:0", s.kubernetes, s.ownPod
	l, err := o.web.listen()
	if err != nil {
		t.Fatal(err)
	}
	w.url = "http://" + l.main.Addr().String()
	if l.probes != nil {
		w.probesURL = "http://" + l.probes.Addr().String()
	}
	o.hostname, o.metrics.Hostname, o.reload = "node-a", "node-a", w.reload
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- serve(ctx, o, m, l, slog.New(slog.DiscardHandler)) }()
	t.Cleanup(func() {
		cancel()
		w.machine.ReleaseHangs()
		if err := <-ended; err != nil {
			t.Errorf("serve: %v", err)
		}
		w.stopKubelet()
		http.DefaultClient.CloseIdleConnections()
	})
	return w
}

// shortDir returns a temporary folder with a path short enough for sockets.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "pg")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func (w *testApp) startKubelet() {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- w.kubelet.Run(ctx) }()
	w.stopKubelet = func() {
		cancel()
		if err := <-ended; err != nil {
			w.t.Errorf("kubelet: %v", err)
		}
	}
}

// waitKubelet waits for a state of the kubelet.
func (w *testApp) waitKubelet(event string, done func(kubelet.KubeletState) bool) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), waitTimeout)
	defer cancel()
	if err := w.kubelet.Wait(ctx, done); err != nil {
		w.t.Fatalf("wait until %s: %v", event, err)
	}
}

func (w *testApp) waitRegistered() {
	w.t.Helper()
	w.waitAllocatable(gpuResource, len(w.machine.AllocatableIDs()))
}

// waitCounted waits until podgauge exports n allocatable devices. It reads the number every ten seconds, and after an allocation.
func (w *testApp) waitCounted(res string, n int) {
	w.t.Helper()
	w.waitAllocatable(res, n)
	label := fmt.Sprintf(`,resource=%q} `, res)
	w.waitScrape(fmt.Sprintf("%d of %s", n, res), func(text string) bool {
		counted := 0
		for line := range strings.Lines(text) {
			if at, value, found := strings.Cut(line, label); found && strings.HasPrefix(at, "podgauge_resource_allocatable_devices{") {
				count, err := strconv.Atoi(strings.TrimSpace(value))
				if err != nil {
					w.t.Fatal(err)
				}
				counted += count
			}
		}
		return counted == n
	})
}

func (w *testApp) scrape(accept string) string {
	w.t.Helper()
	r, err := http.NewRequestWithContext(w.t.Context(), http.MethodGet, w.url+"/metrics", http.NoBody)
	if err != nil {
		w.t.Fatal(err)
	}
	r.Header.Set("Accept", accept)
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		w.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		w.t.Fatalf("scrape: status %d, %v", resp.StatusCode, err)
	}
	return string(body)
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
func (w *testApp) waitScrape(event string, has func(text string) bool) string {
	w.t.Helper()
	poll := time.NewTicker(pollInterval)
	defer poll.Stop()
	for end := time.Now().Add(waitTimeout); time.Now().Before(end); <-poll.C {
		if text := w.scrape("text/plain"); has(text) {
			return text
		}
	}
	w.t.Fatalf("no scrape within %s: %s", waitTimeout, event)
	return ""
}

// runPodOn runs a pod on chosen devices. The kubelet chooses among the unallocated devices, so fillers occupy all others.
func (w *testApp) runPodOn(p kubelet.PodSpec, on ...device.ID) {
	w.t.Helper()
	res := slices.Sorted(maps.Keys(p.Containers[0].Limits))[0]
	var fillers, rest []kubelet.PodSpec
	for i := range w.kubelet.Resource(res).Allocatable {
		filler := kubelet.PodSpec{Name: fmt.Sprintf("filler-%d", i), Containers: []kubelet.ContainerSpec{{Name: "c", Limits: map[string]int{res: 1}}}}
		if w.tryRunPod(filler) != nil { // no device is left
			w.deletePod(filler)
			break
		}
		fillers = append(fillers, filler)
	}
	w.scrape("text/plain") // finds the owners: allocations without an owner end ten seconds late
	for _, f := range fillers {
		status, err := w.kubelet.Pod(f)
		if err != nil {
			w.t.Fatal(err)
		}
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
	if err := w.tryRunPod(p); err != nil {
		w.t.Fatal(err)
	}
}

func (w *testApp) tryRunPod(p kubelet.PodSpec) error {
	ctx, cancel := context.WithTimeout(w.t.Context(), waitTimeout)
	defer cancel()
	return w.kubelet.RunPod(ctx, p)
}

func (w *testApp) deletePod(p kubelet.PodSpec) {
	w.t.Helper()
	if err := w.kubelet.DeletePod(p); err != nil {
		w.t.Fatal(err)
	}
}

func gpuPod(namespace, name string, gpus int) kubelet.PodSpec {
	return newPod(namespace, name, gpuResource, gpus)
}

// newPod returns a pod with a container that requests devices of a resource.
func newPod(namespace, name, res string, n int) kubelet.PodSpec {
	return kubelet.PodSpec{Namespace: namespace, Name: name, Containers: []kubelet.ContainerSpec{{Name: "main", Limits: map[string]int{res: n}}}}
}

// waitAllocatable waits until the kubelet has n allocatable devices.
func (w *testApp) waitAllocatable(res string, n int) {
	w.t.Helper()
	w.waitKubelet(fmt.Sprintf("%d of %s are allocatable", n, res), func(s kubelet.KubeletState) bool { return s.Resources[res].Allocatable == n })
}
