package e2e

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
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
	state, err := os.MkdirTemp(n.Logs, "state-")
	must(t, err)
	file := filepath.Join(n.Logs, "machine.scenario") // kept if the test fails
	m := &simulatedMachine{
		Scenario: nvmltest.NewScenario(file), libraryDir: libraryDir, scenarioFile: file, stateRoot: state,
		callsFile: filepath.Join(n.Logs, "nvml.calls"),
	}
	must(t, m.Set(append([]string{fmt.Sprintf("epoch %d", time.Now().Add(-time.Hour).Unix())}, lines...)...))
	return m
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

// maxCallersPerGPU limits concurrent calls about a GPU: its reader, the listing, and the wait for events, which registers its events.
const maxCallersPerGPU = 3

// checkedCalls returns the counts of library calls. The test fails if a GPU ever had more than maxCallersPerGPU concurrent calls.
func (m *simulatedMachine) checkedCalls(t *testing.T) nvmltest.CallCounts {
	t.Helper()
	calls, err := nvmltest.ReadCalls(m.callsFile)
	must(t, err)
	for gpu := range nvmltest.MaxGPUs {
		if got := calls.MaxInFlight(gpu); got > maxCallersPerGPU {
			t.Fatalf("concurrent calls about GPU %d: got %d, want at most %d", gpu, got, maxCallersPerGPU)
		}
	}
	return calls
}

// podgaugeProcess is a podgauge process in a node.
type podgaugeProcess struct {
	*node.Process // nil in a pod
	port          int
	n             *node.RealNode
	log           func() (string, error)
	client        *http.Client
	earlier       []string // sockets of killed processes, at the start
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
	earlier := sockets(t, n)
	p, err := n.Exec("podgauge", commandLine(t, args...), env...)
	must(t, err)
	d := newPodgaugeProcess(n, p.Output)
	d.Process, d.earlier = p, earlier
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
func newPodgaugeProcess(n *node.RealNode, log func() (string, error)) *podgaugeProcess {
	return &podgaugeProcess{port: defaultPort, n: n, log: log, client: &http.Client{
		Timeout: 10 * time.Second,
		// A new connection for each scrape: idle connections would change the counts of file descriptors and goroutines.
		Transport: &http.Transport{DisableKeepAlives: true},
	}}
}

// stop stops podgauge with SIGTERM and checks that it exits with status 0 and removes its socket. It does nothing after podgauge's exit.
// A process that ends before its first registration leaves the sockets of killed processes.
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
	isEarlier := func(path string) bool { return slices.Contains(d.earlier, path) }
	if left := slices.DeleteFunc(d.sockets(t), isEarlier); len(left) > 0 && err == nil {
		t.Errorf("podgauge's sockets after its exit: got %q, want none", left)
	}
}

// sockets returns podgauge's sockets in the kubelet's device-plugin folder: one for each registered resource.
func (d *podgaugeProcess) sockets(t *testing.T) []string {
	t.Helper()
	return sockets(t, d.n)
}

func sockets(t *testing.T, n *node.RealNode) []string {
	t.Helper()
	sockets, err := filepath.Glob(filepath.Join(n.KubeletDir(), "device-plugins", "podgauge-*"))
	must(t, err)
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
func (d *podgaugeProcess) waitUntilListening(t *testing.T) {
	t.Helper()
	await(t, "podgauge serves /healthz", func(ctx context.Context) error { return d.checkProbe(ctx, "/healthz") })
}

// waitUntilReady waits until the readiness probe succeeds.
func (d *podgaugeProcess) waitUntilReady(t *testing.T) {
	t.Helper()
	await(t, "podgauge is ready", func(ctx context.Context) error { return d.checkProbe(ctx, "/readyz") })
}

// logLines returns the lines of podgauge's log that contain all words.
func (d *podgaugeProcess) logLines(t *testing.T, words ...string) []string {
	t.Helper()
	out, err := d.log()
	must(t, err)
	return linesWith(out, words...)
}

// hasLogLine returns an error unless podgauge's log has exactly one line with all words.
func (d *podgaugeProcess) hasLogLine(words ...string) error {
	out, err := d.log()
	if lines := linesWith(out, words...); err != nil || len(lines) != 1 {
		return fmt.Errorf("log lines with %q: got %q, want one, %w", words, lines, err)
	}
	return nil
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
