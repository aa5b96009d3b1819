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
	// defaultGPUs is how many a machine has that does not say otherwise.
	defaultGPUs = 8
	// defaultPort is the one that podgauge listens on by default.
	defaultPort = 9400
	// waitTimeout is how long a test waits for what takes a second or two. How long something may take is said where it is measured.
	waitTimeout = 30 * time.Second
)

// simulatedMachine is the hardware that podgauge finds: a library that obeys the test.
type simulatedMachine struct {
	*nvmltest.Scenario
	libraryDir   string // its folder
	scenarioFile string // the scenario
	callsFile    string // what was asked of the newest podgauge's library
	stateRoot    string // the folder in which each podgauge finds what the one before has left
}

// newMachine has eight idle GPUs, unless the lines of a scenario say otherwise. It has been up for an hour: the counters of its GPUs go on when
// podgauge is started anew, where those of a library that counts from its own start would look as if all GPUs had been reset.
func newMachine(t *testing.T, n *node.RealNode, lines ...string) *simulatedMachine {
	t.Helper()
	lib, err := libraryDir()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(n.Logs, "machine.scenario") // readable where a test has failed
	memory, err := os.MkdirTemp(n.Logs, "memory-")
	if err != nil {
		t.Fatal(err)
	}
	m := &simulatedMachine{Scenario: nvmltest.NewScenario(file), libraryDir: lib, scenarioFile: file, callsFile: filepath.Join(n.Logs, "nvml.calls"), stateRoot: memory}
	m.setLines(t, append([]string{fmt.Sprintf("epoch %d", time.Now().Add(-time.Hour).Unix())}, lines...)...)
	return m
}

// scratchDir is the folder for what is made once for all tests; main removes it.
var scratchDir = sync.OnceValues(func() (string, error) { return os.MkdirTemp("", "podgauge-e2e-") })

// libraryDir is the folder of the stand-in, which is compiled once.
var libraryDir = sync.OnceValues(func() (string, error) { return buildLibrary("driver") })

// buildLibrary compiles a stand-in without the hidden functions into a folder of its own.
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

// uuid of the GPU with this index, as the stand-in names it.
func uuid(index int) string { return fmt.Sprintf("GPU-00000000-0000-4000-8000-%012d", index) }

// uuids of the first GPUs.
func uuids(n int) []string {
	all := []string{}
	for i := range n {
		all = append(all, uuid(i))
	}
	return all
}

// indexOf of a GPU.
func indexOf(t *testing.T, id string) int {
	t.Helper()
	i := slices.Index(uuids(nvmltest.MaxGPUs), id)
	if i < 0 {
		t.Fatalf("no GPU is called %q", id)
	}
	return i
}

func (m *simulatedMachine) setLines(t *testing.T, lines ...string) {
	t.Helper()
	if err := m.Set(lines...); err != nil {
		t.Fatal(err)
	}
}

func (m *simulatedMachine) clear(t *testing.T, words string) {
	t.Helper()
	if err := m.Clear(words); err != nil {
		t.Fatal(err)
	}
}

// resetGPU has a GPU have been reset.
func (m *simulatedMachine) resetGPU(t *testing.T, gpu int) {
	t.Helper()
	if err := m.Reset(gpu); err != nil {
		t.Fatal(err)
	}
}

func (m *simulatedMachine) addEvent(t *testing.T, gpu int, what string) {
	t.Helper()
	if err := m.Event(gpu, what); err != nil {
		t.Fatal(err)
	}
}

// maxCallersPerGPU are those who may be inside calls about one GPU at the same time: its reader, the listing, and whoever waits for events, when he
// registers for the GPU's.
const maxCallersPerGPU = 3

// checkedCalls is what was asked of the library. It ends the test where more calls than that were ever under way about one GPU.
func (m *simulatedMachine) checkedCalls(t *testing.T) nvmltest.CallCounts {
	t.Helper()
	calls, err := nvmltest.ReadCalls(m.callsFile)
	if err != nil {
		t.Fatal(err)
	}
	for gpu := range nvmltest.MaxGPUs {
		if most := calls.MaxInFlight(gpu); most > maxCallersPerGPU {
			t.Fatalf("%d calls about GPU %d were under way at the same time", most, gpu)
		}
	}
	return calls
}

// podgaugeProcess is podgauge, running in a node.
type podgaugeProcess struct {
	*node.Process
	n      *node.RealNode
	url    string
	client *http.Client
}

// start starts podgauge on the machine. It ends with the test, and has to end well.
func (m *simulatedMachine) start(t *testing.T, n *node.RealNode, args ...string) *podgaugeProcess {
	t.Helper()
	return startPodgauge(t, n, append(m.environ(), "LD_LIBRARY_PATH="+m.libraryDir), m.withStateDir(args)...)
}

// withStateDir has podgauge keep on disk what the next one is to know.
func (m *simulatedMachine) withStateDir(args []string) []string {
	return append([]string{"--state-dir=" + m.stateRoot, "--metrics.set=full"}, args...)
}

// environ has the library find its scenario.
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

// commandLine is how podgauge is started.
func commandLine(t *testing.T, args ...string) []string {
	t.Helper()
	path, err := filepath.Abs(cmp.Or(os.Getenv("PODGAUGE_BIN"), "../../bin/podgauge"))
	if err == nil {
		_, err = os.Stat(path)
	}
	if err != nil {
		t.Fatalf("no podgauge to test: %v; make build, or name one by PODGAUGE_BIN", err)
	}
	return append([]string{path, "--log.level=debug"}, args...)
}

// newPodgaugeProcess is one that listens where podgauge does by default.
func newPodgaugeProcess(n *node.RealNode) *podgaugeProcess {
	return &podgaugeProcess{n: n, url: n.URL(defaultPort), client: &http.Client{
		Timeout: 10 * time.Second,
		// Each scrape is a connection of its own, so that none is left to be counted.
		Transport: &http.Transport{DisableKeepAlives: true},
	}}
}

// stop asks podgauge to end, which must succeed and leave no socket. One that has ended already is left alone.
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
		t.Errorf("podgauge did not end well on SIGTERM: %v %v", state, err)
		_ = d.Signal(syscall.SIGKILL) // it must not meet its successor
	}
	if left := d.sockets(t); len(left) > 0 && err == nil {
		t.Errorf("podgauge left %q", left)
	}
}

// sockets are the device plugin's in the kubelet's folder: one while it is registered.
func (d *podgaugeProcess) sockets(t *testing.T) []string {
	t.Helper()
	sockets, err := filepath.Glob(filepath.Join(d.n.KubeletDir(), "device-plugins", "podgauge-*"))
	if err != nil {
		t.Fatal(err)
	}
	return sockets
}

// checkProbe asks /healthz or /readyz, and returns why it is not ok.
func (d *podgaugeProcess) checkProbe(ctx context.Context, path string) error {
	body, err := d.get(ctx, path)
	if err == nil {
		body.Close()
	}
	return err
}

// waitUntilListening waits until podgauge answers.
func (d *podgaugeProcess) waitUntilListening(ctx context.Context, t *testing.T) {
	t.Helper()
	await(ctx, t, "podgauge answers", func(ctx context.Context) error { return d.checkProbe(ctx, "/healthz") })
}

// logLines returns the lines of podgauge's log that have all the words.
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

// await waits for something, for as long as a test has patience, and returns how long it took.
func await(ctx context.Context, t *testing.T, what string, try func(context.Context) error) time.Duration {
	t.Helper()
	return awaitWithin(ctx, t, waitTimeout, what, try)
}

// awaitWithin is await with a patience of its own.
func awaitWithin(ctx context.Context, t *testing.T, timeout time.Duration, what string, try func(context.Context) error) time.Duration {
	t.Helper()
	begin := time.Now()
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if err := node.Until(ctx, what, try); err != nil {
		t.Fatal(err)
	}
	return time.Since(begin)
}

// waitSince waits until so much time has passed since the beginning of something: for scenarios that are about time.
func waitSince(begin time.Time, long time.Duration) func(context.Context) error {
	return func(context.Context) error {
		if passed := time.Since(begin); passed < long {
			return fmt.Errorf("%s have passed", passed)
		}
		return nil
	}
}

// backdateKubelet makes the kubelet look an hour old. Podgauge takes the lesser age of the kubelet's socket and of its process, and in the
// kubelet's first minute a device that no pod is listed with is not idle yet (ADR 4). TestOffer waits that minute out. Call it before podgauge's
// start.
func backdateKubelet(t *testing.T, n *node.RealNode) {
	t.Helper()
	hourAgo := time.Now().Add(-time.Hour)
	if err := os.Chtimes(n.PodResourcesSocket(), hourAgo, hourAgo); err != nil {
		t.Fatal(err)
	}
	// Field 22 is when the process started, since the boot. The kubelet's name has no spaces.
	_, err := n.Shell(t.Context(), `awk '{$22 = 0; print}' "/proc/$PID/stat" >"$FILE" && mount --bind "$FILE" "/proc/$PID/stat"`,
		fmt.Sprintf("PID=%d", pidInside(t, n.Kubelet().PID)), "FILE="+n.Path("kubelet.stat"))
	if err != nil {
		t.Fatal(err)
	}
}

// waitForAllocatable waits until the kubelet would give away these GPUs and no others.
func waitForAllocatable(ctx context.Context, t *testing.T, n *node.RealNode, want ...string) time.Duration {
	t.Helper()
	return await(ctx, t, fmt.Sprintf("%d GPUs are allocatable", len(want)), hasAllocatable(n, want...))
}

func hasAllocatable(n *node.RealNode, want ...string) func(context.Context) error {
	return func(ctx context.Context) error {
		if ids, err := n.Allocatable(ctx, gpuResource); err != nil || !slices.Equal(ids, want) {
			return fmt.Errorf("%q are: %w", ids, err)
		}
		return nil
	}
}

// measureRegistration calls begin, which leads to a new socket of the kubelet's, and returns how long after that socket's making the kubelet had all
// of these GPUs.
func measureRegistration(ctx context.Context, t *testing.T, n *node.RealNode, begin func(), want ...string) time.Duration {
	t.Helper()
	before, err := n.KubeletSocketTime()
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(ctx, waitTimeout)
	defer cancel()
	type outcome struct {
		took time.Duration
		err  error
	}
	registered := make(chan outcome, 1)
	go func() {
		err := node.Until(ctx, "a new kubelet has all GPUs", func(ctx context.Context) error {
			if made, err := n.KubeletSocketTime(); err != nil || made.Equal(before) {
				return fmt.Errorf("no new socket: %w", err)
			}
			return hasAllocatable(n, want...)(ctx)
		})
		now := time.Now()
		made, _ := n.KubeletSocketTime()
		registered <- outcome{now.Sub(made), err}
	}()
	begin()
	o := <-registered
	if o.err != nil {
		t.Fatal(o.err)
	}
	return o.took
}

// podWithGPUs is a pod with one container that holds so many GPUs until it is removed.
func podWithGPUs(name string, gpus int) node.StaticPod {
	return node.StaticPod{Name: name, Containers: []node.StaticContainer{{Name: "main", Limits: map[string]int{gpuResource: gpus}}}}
}

// runPod runs a pod and returns its status and how long it took until all its containers ran.
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
		t.Fatalf("pod %s was turned away: %s: %s", p.Name, status.Reason, status.Message)
	}
	return status, time.Since(begin)
}

// removePod takes a pod away and waits until the kubelet's List does not have it any more, which is its end.
func removePod(ctx context.Context, t *testing.T, n *node.RealNode, p node.StaticPod) {
	t.Helper()
	if err := n.DeletePod(p); err != nil {
		t.Fatal(err)
	}
	waitForPodEnd(ctx, t, n, p)
}

// waitForPodEnd waits until the kubelet's List does not have the pod any more.
func waitForPodEnd(ctx context.Context, t *testing.T, n *node.RealNode, p node.StaticPod) {
	t.Helper()
	await(ctx, t, fmt.Sprintf("pod %s has ended", p.Name), func(ctx context.Context) error {
		pods, err := n.ListPodResources(ctx)
		if err != nil {
			return err
		}
		for _, listed := range pods {
			if listed.Name == p.FullName() {
				return errors.New("it is listed")
			}
		}
		return nil
	})
}

// waitForAllocation waits until the kubelet's List has the pod's containers with so many GPUs, and returns which, by container.
func waitForAllocation(ctx context.Context, t *testing.T, n *node.RealNode, p node.StaticPod) map[string][]string {
	t.Helper()
	var held map[string][]string
	await(ctx, t, fmt.Sprintf("List has pod %s with its GPUs", p.Name), func(ctx context.Context) error {
		holders, err := n.Owners(ctx, gpuResource)
		if err != nil {
			return err
		}
		held = map[string][]string{}
		for id, holder := range holders {
			if holder.Pod == p.FullName() {
				held[holder.Container] = append(held[holder.Container], id)
			}
		}
		for _, c := range p.Containers {
			if len(held[c.Name]) != c.Limits[gpuResource] {
				return fmt.Errorf("container %s has %q", c.Name, held[c.Name])
			}
		}
		return nil
	})
	return held
}

// allocatedGPU is the GPU of a pod whose container "main" has one.
func allocatedGPU(ctx context.Context, t *testing.T, n *node.RealNode, p node.StaticPod) string {
	t.Helper()
	return waitForAllocation(ctx, t, n, p)["main"][0]
}

// mainContainer is the container "main" of a pod, as the kubelet names it.
func mainContainer(p node.StaticPod) node.OwnerKey {
	return node.OwnerKey{Namespace: cmp.Or(p.Namespace, "default"), Pod: p.FullName(), Container: "main"}
}
