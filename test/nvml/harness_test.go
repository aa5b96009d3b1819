package nvmltest

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/podgauge/podgauge/test/helpers/require"
)

// waitTimeout limits all waits; correct code needs far less.
const waitTimeout = 20 * time.Second

// childEnv is the environment variable with the library's path, set in the child process of a test.
const childEnv = "NVMLTEST_LIBRARY"

// testNode is the stand-in with its scenario, seen through go-nvml.
type testNode struct {
	*testing.T
	nvml.Interface
	scenario *Scenario
	calls    string // path
}

// runOnNode runs a test body against the stand-in without the hidden functions, through go-nvml.
// A process can load NVML only once, so runOnNode runs the test again in a child process, with the body there.
func runOnNode(t *testing.T, body func(n *testNode), without ...string) {
	t.Helper()
	if lib := os.Getenv(childEnv); lib != "" {
		body(&testNode{t, nvml.New(nvml.WithLibraryPath(lib)), NewScenario(os.Getenv(EnvScenario)), os.Getenv(EnvCalls)})
		return
	}
	out, err := runChild(t, without...)
	if err != nil || !bytes.Contains(out, []byte("--- PASS: "+t.Name())) {
		t.Fatalf("child process: %v\n%s", err, out)
	}
}

func runChild(t *testing.T, without ...string) (out []byte, err error) {
	t.Helper()
	t.Parallel()
	dir := t.TempDir()
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v", "-test.timeout=2m")
	cmd.Env = append(os.Environ(), childEnv+"="+library(t, without...),
		EnvScenario+"="+filepath.Join(dir, "scenario"), EnvCalls+"="+filepath.Join(dir, "calls"),
		"GORACE=atexit_sleep_ms=0") // otherwise the race detector delays each exit by a second
	return cmd.CombinedOutput()
}

// library returns the library's path, without the hidden functions.
func library(t *testing.T, without ...string) string {
	t.Helper()
	build := wholeLibrary
	if len(without) > 0 {
		build = func() (string, error) { return Build(t.TempDir(), without...) }
	}
	lib, err := build()
	require.NoError(t, err)
	return lib
}

// wholeLibrary builds the library once. TestMain sets the function and removes the library.
var wholeLibrary func() (lib string, err error)

func TestMain(m *testing.M) { os.Exit(runTests(m)) }

func runTests(m *testing.M) int {
	if os.Getenv(childEnv) != "" {
		return m.Run()
	}
	dir, err := os.MkdirTemp("", "nvmltest-")
	if err != nil {
		panic(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	wholeLibrary = sync.OnceValues(func() (string, error) { return Build(dir) })
	return m.Run()
}

// setup writes the scenario and initializes NVML.
func (n *testNode) setup(lines ...string) {
	n.Helper()
	n.setLines(lines...)
	n.want(nvml.SUCCESS, n.Init())
}

func (n *testNode) setLines(lines ...string) { n.Helper(); n.mustSucceed(n.scenario.Set(lines...)) }

func (n *testNode) clear(words string) { n.Helper(); n.mustSucceed(n.scenario.Clear(words)) }

func (n *testNode) event(gpu int, description string) {
	n.Helper()
	n.mustSucceed(n.scenario.Event(gpu, description))
}

func (n *testNode) mustSucceed(err error) {
	n.Helper()
	require.NoError(n, err)
}

func (n *testNode) want(want, got nvml.Return) {
	n.Helper()
	if want != got {
		n.Fatalf("got %d (%v), want %d (%v)", got, got, want, want)
	}
}

// gpu returns the handle of a GPU.
func (n *testNode) gpu(index int) nvml.Device {
	n.Helper()
	d, ret := n.DeviceGetHandleByIndex(index)
	n.want(nvml.SUCCESS, ret)
	return d
}

func (n *testNode) readCalls() CallCounts {
	n.Helper()
	c, err := ReadCalls(n.calls)
	n.mustSucceed(err)
	return c
}

// waitUntil waits until the condition holds.
func (n *testNode) waitUntil(condition string, holds func() bool) {
	n.Helper()
	for deadline := time.Now().Add(waitTimeout); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			n.Fatalf("timeout: wait until %s", condition)
		}
	}
}

// startCall starts a call and returns a channel with the result.
func startCall(call func() nvml.Return) <-chan nvml.Return {
	result := make(chan nvml.Return, 1)
	go func() { result <- call() }() // ends with the call; the test receives
	return result
}

// wantHang waits for the begin of a call and checks that the call still runs after 50 ms.
func (n *testNode) wantHang(gpu int, result <-chan nvml.Return) {
	n.Helper()
	n.waitUntil("a call is running", func() bool { return n.readCalls().InFlight(gpu) > 0 })
	select {
	case ret := <-result:
		n.Fatalf("the call returned %v, want a hang", ret)
	case <-time.After(50 * time.Millisecond):
	}
}

// wantReturn waits for a call to return.
func (n *testNode) wantReturn(want nvml.Return, result <-chan nvml.Return) {
	n.Helper()
	select {
	case ret := <-result:
		n.want(want, ret)
	case <-time.After(waitTimeout):
		n.Fatal("timeout: the call does not return")
	}
}
