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
	"github.com/podgauge/podgauge/internal/sim"
	"github.com/podgauge/podgauge/internal/sim/kubelet"
	"github.com/spf13/pflag"
)

// resource is what whole GPUs are offered as.
const resource = "nvidia.com/gpu"

// world is the whole program in this process, on a simulated machine that stands
// still and a simulated kubelet.
type world struct {
	t       *testing.T
	machine *sim.Machine
	kubelet *kubelet.Kubelet
	url     string
	dir     string // the kubelet's
	probes  string // where probes alone are answered; empty: nowhere
	// made has what is another in each run, pods' UIDs say, and what stands for it in
	// golden files; nil: nothing.
	made   *strings.Replacer
	orders chan os.Signal
	again  chan struct{}
	// stopKubelet ends the kubelet's process; startKubelet begins another.
	stopKubelet func()
}

const (
	deadline = time.Minute
	pollGap  = 20 * time.Millisecond
)

// setting is what a world is made of; only the machine is required.
type setting struct {
	machine *sim.Machine
	// kubelet are its options; the folder and the age are the world's to say.
	kubelet kubelet.Options
	// proc is the process file system that processes are looked up in; empty: none that
	// shows the node's.
	proc string
	// unsupported are families that the driver is too old for.
	unsupported []string
	// without a kubelet in this process, something else may serve its sockets in dir.
	without bool
	dir     string
}

// serve finds the driver's part of a backend by this interface.
var _ driver = (*nvml.Backend)(nil)

// testPlatform is the hardware of a simulated machine of eight H100s, without a kubelet.
type testPlatform struct{ err error } // of Open

func (testPlatform) Simulated() bool { return true }

func (testPlatform) AddFlags(*pflag.FlagSet) {}

func (testPlatform) CheckFlags(bool) error { return nil }

func (p testPlatform) Open(OpenOptions) (device.Backend, Node, error) {
	return sim.NewMachine(nvml.Metrics(), 8, time.Now), nil, p.err
}

func (testPlatform) Driver([]string) doctor.Driver { return nil }

func (testPlatform) Claimed(c device.Claim, statuses []device.Status) (device.ID, bool) {
	return nvml.Claimed(c, statuses)
}

// newWorld starts the program with these arguments on so many H100s.
func newWorld(t *testing.T, gpus int, args ...string) *world {
	t.Helper()
	return newWorldOf(t, setting{machine: machineWith(slices.Repeat([]*sim.Model{sim.H100}, gpus)...)}, args...)
}

// machineWith is one whose clock stands still.
func machineWith(models ...*sim.Model) *sim.Machine {
	return sim.NewMachineOf(nvml.Metrics(), standing, models...)
}

// standing is a clock that stands still.
func standing() time.Time { return time.Unix(1_700_000_000, 0) }

// newWorldOf starts the program with these arguments.
func newWorldOf(t *testing.T, s setting, args ...string) *world {
	t.Helper()
	w := &world{t: t, orders: make(chan os.Signal), again: make(chan struct{}), machine: s.machine}
	if s.dir == "" {
		s.dir = shortDir(t)
	}
	dir := s.dir
	w.dir = dir
	if s.proc == "" {
		s.proc = filepath.Join(dir, "proc") // not the machine's: what it shows depends on who runs the test
	}
	w.stopKubelet = func() {}
	if !s.without {
		s.kubelet.Dir, s.kubelet.Since = dir, time.Now().Add(-time.Hour)
		w.kubelet = kubelet.New(s.kubelet)
		w.startKubelet()
	}

	hw := &hardware{
		Backend: w.machine, proc: s.proc, kubeletDir: dir, devicePluginDir: filepath.Join(dir, "device-plugins"), cdiDir: filepath.Join(dir, "cdi"),
		unsupported: func() []string { return s.unsupported },
		run:         func(context.Context) error { return nil }, closeDriver: func() {}, close: func() {},
	}
	o, err := parse(testPlatform{}, args, nothing, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	o.web.listenAddress = "127.0.0.1:0"
	l, err := o.web.listen()
	if err != nil {
		t.Fatal(err)
	}
	w.url = "http://" + l.all.Addr().String()
	if l.probes != nil {
		w.probes = "http://" + l.probes.Addr().String()
	}
	o.hostname, o.orders, o.again = "node-a", w.orders, w.again
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- serve(ctx, o, hw, l, slog.New(slog.DiscardHandler)) }()
	t.Cleanup(func() {
		cancel()
		w.machine.Release()
		if err := <-ended; err != nil {
			t.Errorf("serve: %v", err)
		}
		w.stopKubelet()
		http.DefaultClient.CloseIdleConnections()
	})
	return w
}

// shortDir is a temporary folder whose sockets' paths are short enough to bind.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "pg")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func (w *world) startKubelet() {
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

// untilKubelet waits for something to be true of the kubelet.
func (w *world) untilKubelet(what string, is func(kubelet.State) bool) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), deadline)
	defer cancel()
	if err := w.kubelet.Wait(ctx, is); err != nil {
		w.t.Fatalf("wait until %s: %v", what, err)
	}
}

func (w *world) untilRegistered() {
	w.t.Helper()
	w.untilAllocatable(resource, len(w.machine.IDs()))
}

// untilCounted waits until podgauge knows that the kubelet would give so many devices
// away: it asks that every ten seconds, and after an allocation.
func (w *world) untilCounted(of string, n int) {
	w.t.Helper()
	w.untilAllocatable(of, n)
	label := fmt.Sprintf(`,resource=%q} `, of)
	w.untilScrape(fmt.Sprintf("%d of %s", n, of), func(text string) bool {
		counted := 0
		for line := range strings.Lines(text) {
			if at, value, is := strings.Cut(line, label); is && strings.HasPrefix(at, "podgauge_resource_allocatable_devices{") {
				there, err := strconv.Atoi(strings.TrimSpace(value))
				if err != nil {
					w.t.Fatal(err)
				}
				counted += there
			}
		}
		return counted == n
	})
}

func (w *world) get(accept string) string {
	w.t.Helper()
	r, err := http.NewRequestWithContext(w.t.Context(), http.MethodGet, w.url+"/metrics", http.NoBody)
	if err != nil {
		w.t.Fatal(err)
	}
	r.Header.Set("Accept", accept)
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		w.t.Fatal(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK {
		w.t.Fatalf("scrape: status %d, %v", answer.StatusCode, err)
	}
	return string(body)
}

// until scrapes until the text has a line that begins and ends so, and returns it.
func (w *world) until(begins, ends string) string {
	w.t.Helper()
	return w.untilScrape("a line "+begins+"…"+ends, func(text string) bool {
		for line := range strings.Lines(text) {
			if strings.HasPrefix(line, begins) && strings.HasSuffix(line, ends+"\n") {
				return true
			}
		}
		return false
	})
}

// untilScrape scrapes until one has something, and returns that.
func (w *world) untilScrape(what string, has func(text string) bool) string {
	w.t.Helper()
	poll := time.NewTicker(pollGap)
	defer poll.Stop()
	for end := time.Now().Add(deadline); time.Now().Before(end); <-poll.C {
		if text := w.get("text/plain"); has(text) {
			return text
		}
	}
	w.t.Fatalf("no scrape within %s had %s", deadline, what)
	return ""
}

// place runs a pod on chosen devices of a resource, which its first container asks
// for. The kubelet chooses among the free ones, so all others are taken for the while.
func (w *world) place(p kubelet.Pod, on ...device.ID) {
	w.t.Helper()
	of := slices.Sorted(maps.Keys(p.Containers[0].Limits))[0]
	var fillers, rest []kubelet.Pod
	for i := range w.kubelet.Allocatable(of) {
		filler := kubelet.Pod{Name: fmt.Sprintf("filler-%d", i), Containers: []kubelet.Container{{Name: "c", Limits: map[string]int{of: 1}}}}
		if w.try(filler) != nil { // none is left
			w.drop(filler)
			break
		}
		fillers = append(fillers, filler)
	}
	w.get("text/plain") // names them: what nobody has seen takes ten seconds to be known for over
	for _, f := range fillers {
		status, err := w.kubelet.Pod(f)
		if err != nil {
			w.t.Fatal(err)
		}
		if slices.Contains(on, device.OfferedID(status.Containers[0].Devices[0].ID).Device()) {
			w.drop(f)
		} else {
			rest = append(rest, f)
		}
	}
	w.run(p)
	for _, f := range rest {
		w.drop(f)
	}
}

// run runs a pod.
func (w *world) run(p kubelet.Pod) {
	w.t.Helper()
	if err := w.try(p); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) try(p kubelet.Pod) error {
	ctx, cancel := context.WithTimeout(w.t.Context(), deadline)
	defer cancel()
	return w.kubelet.RunPod(ctx, p)
}

func (w *world) drop(p kubelet.Pod) {
	w.t.Helper()
	if err := w.kubelet.DeletePod(p); err != nil {
		w.t.Fatal(err)
	}
}

func pod(namespace, name string, gpus int) kubelet.Pod { return podOf(namespace, name, resource, gpus) }

// podOf is a pod with one container, which asks for devices of a resource.
func podOf(namespace, name, of string, n int) kubelet.Pod {
	return kubelet.Pod{Namespace: namespace, Name: name, Containers: []kubelet.Container{{Name: "main", Limits: map[string]int{of: n}}}}
}

// untilAllocatable waits until the kubelet would give so many devices away.
func (w *world) untilAllocatable(of string, n int) {
	w.t.Helper()
	w.untilKubelet(fmt.Sprintf("%d of %s are allocatable", n, of), func(s kubelet.State) bool { return s.Resources[of].Allocatable == n })
}
