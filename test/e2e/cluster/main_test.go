//go:build cluster

// The build tag excludes the tests from `go test ./...`, because their programs take ten minutes to build: make e2e-cluster.
package cluster_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"testing"

	"github.com/podgauge/podgauge/test/e2e/cluster"
	"github.com/podgauge/podgauge/test/e2e/node"
	"github.com/podgauge/podgauge/test/e2e/programs"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == draDriverCommand {
		if err := runDRADriver(os.Args[2:]); err != nil {
			log.Fatal(err)
		}
		return
	}
	os.Exit(run(m))
}

func run(m *testing.M) int {
	logf := func(format string, values ...any) { fmt.Fprintf(os.Stderr, "e2e: "+format+"\n", values...) }
	if err := cluster.CheckRequirements(programs.OfMonitoredCluster()); err != nil {
		logf("%v", err)
		return 1
	}
	lock, err := node.LockRun(context.Background(), logf)
	if err != nil {
		logf("%v", err)
		return 1
	}
	defer lock.Close()
	return m.Run()
}
