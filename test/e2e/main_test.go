// Package e2e runs podgauge on a real node: kubelet, containerd and Prometheus as they are shipped.
//
// One function is one scenario. It gets a node with node.ForTest, waits for things themselves with node.Until, and leaves nothing behind.
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
	// A machine that cannot run the tests is a failure: skipped tests look like passed ones.
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
