package e2e

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	nvmltest "github.com/podgauge/podgauge/test/nvml"

	"github.com/podgauge/podgauge/test/e2e/node"
)

const (
	// defaultGPUs is the number of GPUs of a machine without a "gpus" line.
	defaultGPUs = 8
	// defaultPort is podgauge's default port.
	defaultPort = 9400
	// waitTimeout limits waits for conditions that usually take a second or two. measureDurations checks the actual limits.
	waitTimeout = 30 * time.Second
)

// simulatedMachine is simulated hardware: a stand-in for the NVML library with a scenario that the test controls.
type simulatedMachine struct {
	*nvmltest.Scenario
	libraryDir   string // folder of the library
	scenarioFile string
	callsFile    string // counts of the library calls of the latest podgauge process
	stateRoot    string // --state-dir of all podgauge processes
}

// newMachine returns a machine with eight idle GPUs, unless the scenario lines change that. Counters start an hour ago: if they started
// with the library, each restart of podgauge would look like a reset of all GPUs.
func newMachine(t *testing.T, n *node.RealNode, lines ...string) *simulatedMachine {
	t.Helper()
	lib, err := libraryDir()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(n.Logs, "machine.scenario") // kept if the test fails
	state, err := os.MkdirTemp(n.Logs, "state-")
	if err != nil {
		t.Fatal(err)
	}
	m := &simulatedMachine{Scenario: nvmltest.NewScenario(file), libraryDir: lib, scenarioFile: file, stateRoot: state}
	m.callsFile = filepath.Join(n.Logs, "nvml.calls")
	m.setLines(t, append([]string{fmt.Sprintf("epoch %d", time.Now().Add(-time.Hour).Unix())}, lines...)...)
	return m
}

// scratchDir returns a folder that all tests share; TestMain removes it.
var scratchDir = sync.OnceValues(func() (string, error) { return os.MkdirTemp("", "podgauge-e2e-") })

// libraryDir returns the folder of the stand-in library, compiled once.
var libraryDir = sync.OnceValues(func() (string, error) { return buildLibrary("driver") })

// buildLibrary compiles a stand-in library without the hidden functions into a new folder.
func buildLibrary(name string, hidden ...string) (string, error) {
	dir, err := scratchDir()
	if err != nil {
		return "", err
	}
	dir = filepath.Join(dir, name)
	if err := os.Mkdir(dir, 0o755); err != nil {
		return "", err
	}
	_, err = nvmltest.Build(dir, hidden...)
	return dir, err
}

// uuid returns the stand-in library's UUID of the GPU with this index.
func uuid(index int) string { return fmt.Sprintf("GPU-00000000-0000-4000-8000-%012d", index) }

func uuids(n int) []string {
	all := []string{}
	for i := range n {
		all = append(all, uuid(i))
	}
	return all
}

func indexOf(t *testing.T, id string) int {
	t.Helper()
	i := slices.Index(uuids(nvmltest.MaxGPUs), id)
	if i < 0 {
		t.Fatalf("no GPU has UUID %q", id)
	}
	return i
}

func (m *simulatedMachine) setLines(t *testing.T, lines ...string) {
	t.Helper()
	if err := m.Set(lines...); err != nil {
		t.Fatal(err)
	}
}

func (m *simulatedMachine) clear(t *testing.T, line string) {
	t.Helper()
	if err := m.Clear(line); err != nil {
		t.Fatal(err)
	}
}

func (m *simulatedMachine) resetGPU(t *testing.T, gpu int) {
	t.Helper()
	if err := m.Reset(gpu); err != nil {
		t.Fatal(err)
	}
}

func (m *simulatedMachine) addEvent(t *testing.T, gpu int, event string) {
	t.Helper()
	if err := m.Event(gpu, event); err != nil {
		t.Fatal(err)
	}
}

// maxCallersPerGPU limits concurrent calls about a GPU: its reader, the listing, and the wait for events, which registers its events.
const maxCallersPerGPU = 3

// checkedCalls returns the counts of library calls. The test fails if a GPU ever had more than maxCallersPerGPU concurrent calls.
func (m *simulatedMachine) checkedCalls(t *testing.T) nvmltest.CallCounts {
	t.Helper()
	calls, err := nvmltest.ReadCalls(m.callsFile)
	if err != nil {
		t.Fatal(err)
	}
	for gpu := range nvmltest.MaxGPUs {
		if got := calls.MaxInFlight(gpu); got > maxCallersPerGPU {
			t.Fatalf("concurrent calls about GPU %d: got %d, want at most %d", gpu, got, maxCallersPerGPU)
		}
	}
	return calls
}

// podgaugeProcess is a podgauge process in a node.
type podgaugeProcess struct {
	*node.Process
	n      *node.RealNode
	url    string
	client *http.Client
}

// start starts podgauge on the machine. At the end of the test podgauge is stopped, and must exit with status 0.
func (m *simulatedMachine) start(t *testing.T, n *node.RealNode, args ...string) *podgaugeProcess {
	t.Helper()
	return startPodgauge(t, n, append(m.environ(), "LD_LIBRARY_PATH="+m.libraryDir), m.withStateDir(args)...)
}

// withStateDir adds --state-dir, so that the next podgauge process restores the state, and the full metrics set.
func (m *simulatedMachine) withStateDir(args []string) []string {
	return append([]string{"--state-dir=" + m.stateRoot, "--metrics.set=full"}, args...)
}

// environ returns the environment variables of the stand-in library.
func (m *simulatedMachine) environ() []string {
	return []string{nvmltest.EnvScenario + "=" + m.scenarioFile, nvmltest.EnvCalls + "=" + m.callsFile}
}

func startPodgauge(t *testing.T, n *node.RealNode, env []string, args ...string) *podgaugeProcess {
	t.Helper()
	p, err := n.Exec("podgauge", commandLine(t, args...), env...)
	if err != nil {
		t.Fatal(err)
	}
	d := newPodgaugeProcess(n)
	d.Process = p
	t.Cleanup(func() { d.stop(t) })
	return d
}

// commandLine returns podgauge's command line.
func commandLine(t *testing.T, args ...string) []string {
	t.Helper()
	path, err := filepath.Abs(cmp.Or(os.Getenv("PODGAUGE_BIN"), "../../bin/podgauge"))
	if err == nil {
		_, err = os.Stat(path)
	}
	if err != nil {
		t.Fatalf("no podgauge binary: %v; run make build, or set PODGAUGE_BIN", err)
	}
	return append([]string{path, "--log.level=debug"}, args...)
}

// newPodgaugeProcess returns a client of a podgauge on the default port.
func newPodgaugeProcess(n *node.RealNode) *podgaugeProcess {
	return &podgaugeProcess{n: n, url: n.URL(defaultPort), client: &http.Client{
		Timeout: 10 * time.Second,
		// A new connection for each scrape: idle connections would change the counts of file descriptors and goroutines.
		Transport: &http.Transport{DisableKeepAlives: true},
	}}
}

// stop stops podgauge with SIGTERM and checks that it exits with status 0 and removes its socket. It does nothing after podgauge's exit.
func (d *podgaugeProcess) stop(t *testing.T) {
	t.Helper()
	select {
	case <-d.Done():
		return
	default:
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	state, err := d.Stop(ctx, syscall.SIGTERM)
	if err != nil || !state.Success() {
		t.Errorf("stop podgauge by SIGTERM: got %v, %v, want exit status 0", state, err)
		_ = d.Signal(syscall.SIGKILL) // two podgauge processes must not run at once
	}
	if left := d.sockets(t); len(left) > 0 && err == nil {
		t.Errorf("podgauge's sockets after its exit: got %q, want none", left)
	}
}

// sockets returns podgauge's sockets in the kubelet's device-plugin folder: one for each registered resource.
func (d *podgaugeProcess) sockets(t *testing.T) []string {
	t.Helper()
	sockets, err := filepath.Glob(filepath.Join(d.n.KubeletDir(), "device-plugins", "podgauge-*"))
	if err != nil {
		t.Fatal(err)
	}
	return sockets
}

// checkProbe requests /healthz or /readyz and returns an error unless the status is 200.
func (d *podgaugeProcess) checkProbe(ctx context.Context, path string) error {
	body, err := d.get(ctx, path)
	if err == nil {
		body.Close()
	}
	return err
}

// waitUntilListening waits until podgauge serves HTTP.
func (d *podgaugeProcess) waitUntilListening(ctx context.Context, t *testing.T) {
	t.Helper()
	await(ctx, t, "podgauge serves /healthz", func(ctx context.Context) error { return d.checkProbe(ctx, "/healthz") })
}

// logLines returns the lines of podgauge's log that contain all words.
func (d *podgaugeProcess) logLines(t *testing.T, words ...string) []string {
	t.Helper()
	out, err := d.Output()
	if err != nil {
		t.Fatal(err)
	}
	return linesWith(out, words...)
}

func linesWith(log string, words ...string) []string {
	lines := []string{}
	for line := range strings.Lines(log) {
		if !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(line, word) }) {
			lines = append(lines, line)
		}
	}
	return lines
}

// await calls try until it returns nil, at most for waitTimeout, and returns the time that this took.
func await(ctx context.Context, t *testing.T, condition string, try func(context.Context) error) time.Duration {
	t.Helper()
	return awaitWithin(ctx, t, waitTimeout, condition, try)
}

// awaitWithin is await with another timeout.
func awaitWithin(ctx context.Context, t *testing.T, timeout time.Duration, condition string, try func(context.Context) error) time.Duration {
	t.Helper()
	begin := time.Now()
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if err := node.Until(ctx, condition, try); err != nil {
		t.Fatal(err)
	}
	return time.Since(begin)
}

// waitSince returns a condition for await: this duration has passed since begin.
func waitSince(begin time.Time, duration time.Duration) func(context.Context) error {
	return func(context.Context) error {
		if passed := time.Since(begin); passed < duration {
			return fmt.Errorf("%s have passed", passed)
		}
		return nil
	}
}

// backdateKubelet sets the start of the kubelet to an hour ago: in the kubelet's
// first minute, podgauge does not report devices without a pod as idle (ADR 21).
// Call backdateKubelet before podgauge's start.
func backdateKubelet(t *testing.T, n *node.RealNode) {
	t.Helper()
	hourAgo := time.Now().Add(-time.Hour)
	if err := os.Chtimes(n.PodResourcesSocket(), hourAgo, hourAgo); err != nil {
		t.Fatal(err)
	}
}

// waitForAllocatable waits until exactly these GPUs are allocatable.
func waitForAllocatable(ctx context.Context, t *testing.T, n *node.RealNode, want ...string) time.Duration {
	t.Helper()
	return await(ctx, t, fmt.Sprintf("%d GPUs are allocatable", len(want)), hasAllocatable(n, want...))
}

func hasAllocatable(n *node.RealNode, want ...string) func(context.Context) error {
	return func(ctx context.Context) error {
		if ids, err := n.Allocatable(ctx, gpuResource); err != nil || !slices.Equal(ids, want) {
			return fmt.Errorf("allocatable GPUs: got %q, %w", ids, err)
		}
		return nil
	}
}

// measureRegistration calls begin, which causes a new kubelet socket, and returns the time from the socket to the wanted allocatable GPUs.
func measureRegistration(ctx context.Context, t *testing.T, n *node.RealNode, begin func(), want ...string) time.Duration {
	t.Helper()
	before, err := n.KubeletSocketTime()
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(ctx, waitTimeout)
	defer cancel()
	type result struct {
		took time.Duration
		err  error
	}
	registered := make(chan result, 1)
	go func() {
		err := node.Until(ctx, "all GPUs are allocatable in the new kubelet", func(ctx context.Context) error {
			if created, err := n.KubeletSocketTime(); err != nil || created.Equal(before) {
				return fmt.Errorf("no new socket: %w", err)
			}
			return hasAllocatable(n, want...)(ctx)
		})
		now := time.Now()
		created, _ := n.KubeletSocketTime()
		registered <- result{now.Sub(created), err}
	}()
	begin()
	r := <-registered
	if r.err != nil {
		t.Fatal(r.err)
	}
	return r.took
}

// podWithGPUs returns a pod whose container "main" requests GPUs and runs until it is deleted.
func podWithGPUs(name string, gpus int) node.StaticPod {
	return node.StaticPod{Name: name, Containers: []node.StaticContainer{{Name: "main", Limits: map[string]int{gpuResource: gpus}}}}
}

// runPod runs a pod and returns its status and the time until all its containers ran.
func runPod(ctx context.Context, t *testing.T, n *node.RealNode, p node.StaticPod) (node.StaticPodStatus, time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, waitTimeout)
	defer cancel()
	begin := time.Now()
	status, err := n.RunPod(ctx, p)
	if err != nil {
		t.Fatal(err)
	}
	if status.Phase == "Failed" {
		t.Fatalf("pod %s was rejected: %s: %s", p.Name, status.Reason, status.Message)
	}
	return status, time.Since(begin)
}

// removePod deletes a pod and waits until the kubelet's List response no longer contains it.
func removePod(ctx context.Context, t *testing.T, n *node.RealNode, p node.StaticPod) {
	t.Helper()
	if err := n.DeletePod(p); err != nil {
		t.Fatal(err)
	}
	waitForPodEnd(ctx, t, n, p)
}

// waitForPodEnd waits until the kubelet's List response no longer contains the pod.
func waitForPodEnd(ctx context.Context, t *testing.T, n *node.RealNode, p node.StaticPod) {
	t.Helper()
	await(ctx, t, fmt.Sprintf("pod %s has ended", p.Name), func(ctx context.Context) error {
		pods, err := n.ListPodResources(ctx)
		if err != nil {
			return err
		}
		for _, listed := range pods {
			if listed.Name == p.FullName() {
				return errors.New("List still contains the pod")
			}
		}
		return nil
	})
}

// waitForAllocation waits until List has the pod's containers with as many GPUs as requested, and returns the GPUs of each container.
func waitForAllocation(ctx context.Context, t *testing.T, n *node.RealNode, p node.StaticPod) map[string][]string {
	t.Helper()
	var allocated map[string][]string
	await(ctx, t, fmt.Sprintf("List has pod %s with its GPUs", p.Name), func(ctx context.Context) error {
		owners, err := n.Owners(ctx, gpuResource)
		if err != nil {
			return err
		}
		allocated = map[string][]string{}
		for id, owner := range owners {
			if owner.Pod == p.FullName() {
				allocated[owner.Container] = append(allocated[owner.Container], id)
			}
		}
		for _, c := range p.Containers {
			if len(allocated[c.Name]) != c.Limits[gpuResource] {
				return fmt.Errorf("GPUs of container %s: got %q, want %d", c.Name, allocated[c.Name], c.Limits[gpuResource])
			}
		}
		return nil
	})
	return allocated
}

// allocatedGPU returns the GPU of a pod's container "main".
func allocatedGPU(ctx context.Context, t *testing.T, n *node.RealNode, p node.StaticPod) string {
	t.Helper()
	return waitForAllocation(ctx, t, n, p)["main"][0]
}

// mainContainer returns the owner key of a pod's container "main".
func mainContainer(p node.StaticPod) node.OwnerKey {
	return node.OwnerKey{Namespace: cmp.Or(p.Namespace, "default"), Pod: p.FullName(), Container: "main"}
}
