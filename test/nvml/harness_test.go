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
)

// waitTimeout is how long a test waits for what must happen. Nothing takes that long.
const waitTimeout = 20 * time.Second

// childEnv names the library to load in the process that a test runs its body in.
const childEnv = "NVMLTEST_LIBRARY"

// testNode is a program's view of the stand-in, and the hand that moves it.
type testNode struct {
	*testing.T
	nvml.Interface
	scenario *Scenario
	calls    string // path
}

// runOnNode runs a test against the stand-in, through go-nvml. A process can load one
// NVML in its life, so it runs this very test again in a process of its own, and
// the body there. Without these functions the library is that of an older driver.
func runOnNode(t *testing.T, body func(n *testNode), without ...string) {
	t.Helper()
	if lib := os.Getenv(childEnv); lib != "" {
		body(&testNode{t, nvml.New(nvml.WithLibraryPath(lib)), NewScenario(os.Getenv(EnvScenario)), os.Getenv(EnvCalls)})
		return
	}
	out, err := runChild(t, without...)
	if err != nil || !bytes.Contains(out, []byte("--- PASS: "+t.Name())) {
		t.Fatalf("in its own process: %v\n%s", err, out)
	}
}

func runChild(t *testing.T, without ...string) (out []byte, err error) {
	t.Helper()
	t.Parallel()
	dir := t.TempDir()
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v", "-test.timeout=2m")
	cmd.Env = append(os.Environ(), childEnv+"="+library(t, without...),
		EnvScenario+"="+filepath.Join(dir, "scenario"), EnvCalls+"="+filepath.Join(dir, "calls"),
		"GORACE=atexit_sleep_ms=0") // else the race detector holds up each exit by a second
	return cmd.CombinedOutput()
}

// library returns the whole library, or one without some functions.
func library(t *testing.T, without ...string) string {
	t.Helper()
	build := wholeLibrary
	if len(without) > 0 {
		build = func() (string, error) { return Build(t.TempDir(), without...) }
	}
	lib, err := build()
	if err != nil {
		t.Fatal(err)
	}
	return lib
}

// wholeLibrary builds the library once. TestMain sets it and removes what it built.
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

// setup sets up the machine and initializes NVML.
func (n *testNode) setup(lines ...string) {
	n.Helper()
	n.setLines(lines...)
	n.want(nvml.SUCCESS, n.Init())
}

func (n *testNode) setLines(lines ...string) { n.Helper(); n.mustSucceed(n.scenario.Set(lines...)) }

func (n *testNode) clear(words string) { n.Helper(); n.mustSucceed(n.scenario.Clear(words)) }

func (n *testNode) event(gpu int, what string) {
	n.Helper()
	n.mustSucceed(n.scenario.Event(gpu, what))
}

func (n *testNode) mustSucceed(err error) {
	n.Helper()
	if err != nil {
		n.Fatal(err)
	}
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

// waitUntil waits until something is so.
func (n *testNode) waitUntil(what string, so func() bool) {
	n.Helper()
	for deadline := time.Now().Add(waitTimeout); !so(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			n.Fatalf("it never came to be that %s", what)
		}
	}
}

// startCall starts a call. What it returns can be received from the channel.
func startCall(call func() nvml.Return) <-chan nvml.Return {
	answer := make(chan nvml.Return, 1)
	go func() { answer <- call() }() // ends with the call; the test receives
	return answer
}

// wantHang waits until a call is under way that does not end: a second look, some
// time later, finds it where the first did.
func (n *testNode) wantHang(gpu int, answer <-chan nvml.Return) {
	n.Helper()
	n.waitUntil("a call is under way", func() bool { return n.readCalls().InFlight(gpu) > 0 })
	select {
	case ret := <-answer:
		n.Fatalf("the call did not hang, it answered %v", ret)
	case <-time.After(50 * time.Millisecond):
	}
}

// wantReturn waits for a call to return.
func (n *testNode) wantReturn(want nvml.Return, answer <-chan nvml.Return) {
	n.Helper()
	select {
	case ret := <-answer:
		n.want(want, ret)
	case <-time.After(waitTimeout):
		n.Fatal("the call does not return")
	}
}
