// Package e2e tests podgauge on a real node, with unmodified kubelet, containerd and Prometheus.
//
// Each test function is a scenario. It creates a node with node.ForTest, waits for conditions with node.Until, and cleans up.
package e2e

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/podgauge/podgauge/test/e2e/node"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(abandonNodeEnv); dir != "" {
		runAbandonedNode(dir)
	}
	// Fail if the machine cannot run the tests: skipped tests look like passed tests.
	if err := node.CheckRequirements(node.Options{}); err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		os.Exit(1)
	}
	run, err := node.LockRun(context.Background(), func(format string, values ...any) { fmt.Fprintf(os.Stderr, "e2e: "+format+"\n", values...) })
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		os.Exit(1)
	}
	status := m.Run()
	run.Close() //nolint:errcheck // the process ends
	if dir, err := scratchDir(); err == nil {
		os.RemoveAll(dir)
	}
	os.Exit(status)
}
