// Package app is the podgauge process: device plugin and exporter, and the
// commands beside them.
package app

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"github.com/KimMachineGun/automemlimit/memlimit"
	"github.com/podgauge/podgauge/internal/client"
)

const (
	// memoryLimitRatio is Go's share of the cgroup's memory limit. The rest is
	// for the driver's library, sockets and the binary.
	memoryLimitRatio = 0.75
	gcPercent        = 75 // saves 2 MB, and costs a scrape of 64 GPUs 2 ms
	maxProcs         = 2
)

// Main runs the command line of the process, and returns the exit status. GOGC,
// GOMAXPROCS and GOMEMLIMIT in the environment take precedence.
//
// A call into the driver keeps its processor for up to 10 ms: with one
// processor, scrapes with a slow driver take twice as long. More than two gain
// nothing, and cost context switches (docs/contributing/benchmarks.md).
func Main(p Platform) int {
	time.Local = time.UTC // of logs, JSON and files
	if info, ok := debug.ReadBuildInfo(); ok && version == "dev" && strings.HasPrefix(info.Main.Version, "v") {
		version = info.Main.Version
	}
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(min(maxProcs, runtime.GOMAXPROCS(0)))
	}
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	memlimit.Set(memlimit.WithRatio(memoryLimitRatio)) //nolint:errcheck // without a cgroup there is no limit
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	args, note := client.WithDaemonFlags("/proc", os.Args[1:])
	if note != "" {
		fmt.Fprintf(os.Stderr, "podgauge %s: %s\n", args[0], note)
	}
	return Run(ctx, p, args, os.LookupEnv, os.Stdout, os.Stderr)
}
