// Package e2e tests podgauge on a real node, with unmodified kubelet, containerd and Prometheus.
//
// Each test function starts a node with startNode, waits for conditions with await, and cleans up.
package e2e

import (
	"context"
	"fmt"
	"os"
	"testing"

	nvmltest "github.com/podgauge/podgauge/test/nvml"

	"github.com/podgauge/podgauge/test/e2e/node"
)

// libraryDir is the folder of the stand-in for the NVML library.
var libraryDir string

func TestMain(m *testing.M) {
	status, err := runTests(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		status = 1
	}
	os.Exit(status)
}

func runTests(m *testing.M) (status int, err error) {
	// Fail if the machine cannot run the tests: skipped tests look like passed tests.
	if err := node.CheckRequirements(node.Options{}); err != nil {
		return 0, err
	}
	logf := func(format string, values ...any) { fmt.Fprintf(os.Stderr, "e2e: "+format+"\n", values...) }
	run, err := node.LockRun(context.Background(), logf)
	if err != nil {
		return 0, err
	}
	defer run.Close()
	if libraryDir, err = os.MkdirTemp("", "podgauge-e2e-"); err != nil {
		return 0, err
	}
	defer os.RemoveAll(libraryDir)
	if _, err := nvmltest.Build(libraryDir); err != nil {
		return 0, err
	}
	return m.Run(), nil
}
