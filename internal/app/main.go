// Package app is the podgauge process: device plugin, exporter, and commands to query a running podgauge.
package app

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/KimMachineGun/automemlimit/memlimit"
	"github.com/podgauge/podgauge/internal/rules"
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
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(min(maxProcs, runtime.GOMAXPROCS(0)))
	}
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	memlimit.Set(memlimit.WithRatio(memoryLimitRatio)) //nolint:errcheck // without a cgroup there is no limit
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	args, note := withDaemonFlags("/proc", os.Args[1:])
	if note != "" {
		fmt.Fprintln(os.Stderr, "podgauge doctor:", note)
	}
	return run(ctx, p, args, os.LookupEnv, os.Stdout, os.Stderr)
}

// runDaemon checks listeners, IMEX channels and platform, and runs the process until ctx is done.
func runDaemon(ctx context.Context, o options, log *slog.Logger) error {
	l, err := o.web.listen()
	if err != nil {
		return err
	}
	if _, err := rules.IMEXChannels(o.loaded.Settings); err != nil {
		return err
	}
	m, err := o.openPlatform(log)
	if err != nil {
		return err
	}
	defer m.close()
	return serve(ctx, o, m, l, log)
}

// serve assembles the process, and runs it until ctx is done.
func serve(ctx context.Context, o options, m *Hardware, l listeners, log *slog.Logger) error {
	a, err := newApp(o, m, log)
	if err != nil {
		return err
	}
	o.loaded.Report(log)
	log.Info("podgauge starting", "version", version, "listen", l.main.Addr().String(), "kubelet_dir", m.KubeletDir, "simulated", m.Simulated)
	return a.run(ctx, l)
}
