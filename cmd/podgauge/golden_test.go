package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/device"
	"github.com/podgauge/podgauge/device/nvml"
	"github.com/podgauge/podgauge/sim"
	"github.com/podgauge/podgauge/sim/kubelet"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"go.uber.org/goleak"
)

// resource is what whole GPUs are offered as.
const resource = "nvidia.com/gpu"

var update = flag.Bool("update", false, "write the golden files anew")

func TestMain(m *testing.M) {
	if socket := os.Getenv(listServer); socket != "" {
		beListServer(socket)
		return
	}
	if order := os.Getenv(scraper); order != "" {
		beScraper(order)
		return
	}
	goleak.VerifyTestMain(m)
}

// wallClock are the families whose values or series depend on when the test runs
// or on the machine: they are left out of the golden files, by name.
var wallClock = []string{
	"go_", "process_", "podgauge_build_info",
	"podgauge_flight_begin_timestamp_seconds", "podgauge_flight_end_timestamp_seconds", "podgauge_holders_age_seconds",
	"podgauge_plugin_request_duration_seconds", "podgauge_pod_resources_request", "podgauge_kubelet_allocatable_devices", "podgauge_events_up",
	"nvidia_gpu_xid_last_timestamp_seconds", "nvidia_gpu_allocation_last_seen_timestamp_seconds",
}

// world is the whole program in this process, on a simulated machine that stands
// still and a simulated kubelet.
type world struct {
	t       *testing.T
	machine *sim.Machine
	kubelet *kubelet.Kubelet
	url     string
	orders  chan os.Signal
	again   chan struct{}
	// stopKubelet ends the kubelet's process; startKubelet begins another.
	stopKubelet func()
}

const (
	deadline = 20 * time.Second
	pollGap  = 20 * time.Millisecond
)

// newWorld starts the program with these arguments.
func newWorld(t *testing.T, gpus int, args ...string) *world {
	t.Helper()
	stands := time.Unix(1_700_000_000, 0)
	return newWorldOn(t, sim.NewMachine(nvml.Metrics(), gpus, func() time.Time { return stands }), args...)
}

// newWorldOn does so on a machine whose clock may run.
func newWorldOn(t *testing.T, machine *sim.Machine, args ...string) *world {
	t.Helper()
	w := &world{t: t, orders: make(chan os.Signal), again: make(chan struct{}), machine: machine}
	dir := shortDir(t)
	w.kubelet = kubelet.New(kubelet.Options{Dir: dir, Since: time.Now().Add(-time.Hour)})
	w.startKubelet()

	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w.url = "http://" + listener.Addr().String()
	hw := &hardware{
		Backend: w.machine, kubeletDir: dir, devicePluginDir: filepath.Join(dir, "device-plugins"), cdiDir: filepath.Join(dir, "cdi"),
		unsupported: func() []string { return nil },
		run:         func(context.Context) error { return nil }, closeDriver: func() {}, close: func() {},
	}
	o, err := parse(args, nothing, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	o.simulate, o.orders, o.again = simulateNode, w.orders, w.again
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- serve(ctx, o, hw, listener, slog.New(slog.DiscardHandler)) }()
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
	w.untilKubelet("all devices are allocatable", func(s kubelet.State) bool {
		return s.Resources[resource].Allocatable == len(w.machine.IDs())
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
	poll := time.NewTicker(pollGap)
	defer poll.Stop()
	for end := time.Now().Add(deadline); time.Now().Before(end); <-poll.C {
		text := w.get("text/plain")
		for line := range strings.Lines(text) {
			if strings.HasPrefix(line, begins) && strings.HasSuffix(line, ends+"\n") {
				return text
			}
		}
	}
	w.t.Fatalf("no scrape within %s had a line %s…%s", deadline, begins, ends)
	return ""
}

// place runs a pod on chosen devices. The kubelet chooses among the free ones, so
// all others are taken for the while.
func (w *world) place(p kubelet.Pod, on ...device.ID) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), deadline)
	defer cancel()
	var fillers []kubelet.Pod
	for i := range w.kubelet.Allocatable(resource) {
		filler := kubelet.Pod{Name: fmt.Sprintf("filler-%d", i), Containers: []kubelet.Container{{Name: "c", Limits: map[string]int{resource: 1}}}}
		if w.kubelet.RunPod(ctx, filler) != nil { // none is left
			w.kubelet.DeletePod(filler)
			break
		}
		fillers = append(fillers, filler)
	}
	w.get("text/plain") // names them: what nobody has seen takes ten seconds to be known for over
	drop := func(f kubelet.Pod) {
		if err := w.kubelet.DeletePod(f); err != nil {
			w.t.Fatal(err)
		}
	}
	var rest []kubelet.Pod
	for _, f := range fillers {
		status, err := w.kubelet.Pod(f)
		if err != nil {
			w.t.Fatal(err)
		}
		id := device.ID(status.Containers[0].Devices[0].ID)
		if slices.Contains(on, id) {
			drop(f)
		} else {
			rest = append(rest, f)
		}
	}
	if err := w.kubelet.RunPod(ctx, p); err != nil {
		w.t.Fatal(err)
	}
	for _, f := range rest {
		drop(f)
	}
}

func pod(namespace, name string, gpus int) kubelet.Pod {
	return kubelet.Pod{Namespace: namespace, Name: name, Containers: []kubelet.Container{{Name: "main", Limits: map[string]int{resource: gpus}}}}
}

// TestGolden walks the program through the states of a node's life and compares
// what a scrape shows in each, the recoveries included.
func TestGolden(t *testing.T) {
	w := newWorld(t, 4)
	ids := w.machine.IDs()
	w.untilRegistered()
	w.shows("idle", "nvidia_gpu_allocated{", " 0")

	w.place(pod("research", "train", 2), ids[0], ids[1])
	w.place(pod("serving", "embed", 1), ids[2])
	w.machine.Busy(ids[0], 0.75)
	w.machine.Busy(ids[1], 1)
	w.until(`nvidia_gpu_power_watts{container="main",gpu="1"`, " 700")
	w.until(`nvidia_gpu_allocated{container="",gpu="3"`, " 0")
	w.shows("allocated", `nvidia_gpu_power_watts{container="main",gpu="0"`, " 542.5")

	w.machine.Fail(ids[1], "xid 79")
	w.until("podgauge_plugin_devices{health=\"unhealthy\"", " 1")
	w.shows("gpu_failed", `nvidia_gpu_up{container="",gpu="1"`, " 0")
	w.machine.Recover(ids[1])
	w.until(`nvidia_gpu_healthy{container="main",gpu="1"`, " 1")
	w.shows("gpu_failed_recovered", "podgauge_plugin_devices{health=\"unhealthy\"", " 0")

	w.machine.Wedge()
	w.shows("driver_wedged", `nvidia_gpu_stalled{container="",gpu="0"`, " 1")
	w.machine.Release()
	w.until(`nvidia_gpu_stalled{container="",gpu="0"`, " 0")
	w.shows("driver_wedged_recovered", `nvidia_gpu_up{container="",gpu="3"`, " 1")

	w.stopKubelet()
	w.until("podgauge_plugin_streams{", " 0")
	w.shows("kubelet_down", "podgauge_kubelet_up", " 0")
	w.startKubelet()
	w.untilRegistered()
	w.until("podgauge_plugin_streams{", " 1")
	w.shows("kubelet_down_recovered", "podgauge_kubelet_up", " 1")
}

// shows waits for a scrape that has a line which begins and ends so, and is the
// golden file of a state. Those on the way to it may be others: one in which the
// kubelet has turned a question away, say. Promlint reads it too.
func (w *world) shows(state, begins, ends string) {
	w.t.Helper()
	text := w.until(begins, ends)
	file := filepath.Join("testdata", state+".prom")
	if *update {
		for again := ""; again != string(timeless(text)); text = w.get("text/plain") { // until two agree
			again = string(timeless(text))
			<-time.After(pollGap)
		}
		if err := os.WriteFile(file, timeless(text), 0o644); err != nil {
			w.t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		w.t.Fatal(err)
	}
	poll := time.NewTicker(pollGap)
	defer poll.Stop()
	for end := time.Now().Add(deadline); !w.t.Failed() && !bytes.Equal(timeless(text), want) && time.Now().Before(end); <-poll.C {
		text = w.get("text/plain")
	}
	if got := timeless(text); !bytes.Equal(got, want) {
		w.t.Errorf("%s differs from %s; if that is meant, run make golden:\n%s", state, file, difference(string(want), string(got)))
	}
	lint(w.t, state, text)
}

func lint(t *testing.T, state, text string) {
	t.Helper()
	problems, err := promlint.New(strings.NewReader(text)).Lint()
	if err != nil {
		t.Errorf("%s: %v", state, err)
	}
	for _, p := range problems {
		if !strings.HasPrefix(p.Metric, "go_") { // the Go collector's are not ours to name
			t.Errorf("%s: promlint: %s: %s", state, p.Metric, p.Text)
		}
	}
}

// timeless drops the families that depend on the clock.
func timeless(text string) []byte {
	var kept bytes.Buffer
	for line := range strings.Lines(text) {
		name := strings.TrimPrefix(strings.TrimPrefix(line, "# HELP "), "# TYPE ")
		if !slices.ContainsFunc(wallClock, func(p string) bool { return strings.HasPrefix(name, p) }) {
			kept.WriteString(line)
		}
	}
	return kept.Bytes()
}

// difference lists the lines that only one of two texts has.
func difference(want, got string) string {
	var d strings.Builder
	lines := func(s string) []string { return slices.Collect(strings.Lines(s)) }
	for _, l := range lines(want) {
		if !slices.Contains(lines(got), l) {
			d.WriteString("-" + l)
		}
	}
	for _, l := range lines(got) {
		if !slices.Contains(lines(want), l) {
			d.WriteString("+" + l)
		}
	}
	return d.String()
}
