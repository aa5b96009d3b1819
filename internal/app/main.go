// Package app is the podgauge process: device plugin, exporter, and commands to query a running podgauge.
package app

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/KimMachineGun/automemlimit/memlimit"
)

const (
	// memoryLimitRatio is Go's share of the cgroup's memory limit. The rest is for the driver's library, sockets and the binary.
	memoryLimitRatio = 0.75
	// gcPercent saves 4 MB and costs some µs a scrape (docs/benchmarks.md): the heap is small, and a scrape makes little garbage.
	gcPercent = 30
	// startGCPercent lets the heap grow to 16 MB in startTime, more than a start allocates: collections took a third of the CPU time until
	// the first device list.
	startGCPercent = 400
	startTime      = time.Second
)

// Main runs the command line of the process, and returns the exit status. GOGC, GOMAXPROCS and GOMEMLIMIT in the environment take
// precedence.
//
// With one processor, goroutines hand over to each other without waking threads: a quarter less CPU time for a scrape
// (docs/benchmarks.md). Go takes the processor away from a call into the driver that blocks.
func Main(p Platform) int {
	time.Local = time.UTC // of logs, JSON and files
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(1)
	}
	tuneGC := os.Getenv("GOGC") == ""
	if tuneGC {
		debug.SetGCPercent(startGCPercent)
	}
	time.AfterFunc(startTime, func() {
		if tuneGC {
			debug.SetGCPercent(gcPercent)
			debug.FreeOSMemory()
		}
		_ = dropProgramPages() // otherwise 3 to 4 MB more are resident
	})
	memlimit.Set(memlimit.WithRatio(memoryLimitRatio)) //nolint:errcheck // without a cgroup there is no limit
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	args, note := withDaemonFlags("/proc", os.Args[1:])
	if note != "" {
		fmt.Fprintln(os.Stderr, "podgauge doctor:", note)
	}
	return run(ctx, p, args, os.LookupEnv, os.Stdout, os.Stderr)
}

// run runs a command line in a given environment, and returns the exit status.
func run(ctx context.Context, p Platform, args []string, lookupEnv envLookup, stdout, stderr io.Writer) int {
	if len(args) > 0 {
		if _, ok := clientCommands[args[0]]; ok {
			return runClient(ctx, args[0], args[1:], stdout, stderr)
		}
	}
	// Catch signals first: an uncaught signal ends the process.
	reload, driverSignals := make(chan os.Signal, 1), make(chan os.Signal, 16) // one waiting reload stands for all
	signal.Notify(reload, syscall.SIGHUP)
	signal.Notify(driverSignals, syscall.SIGUSR1, syscall.SIGUSR2)
	defer signal.Stop(reload)
	defer signal.Stop(driverSignals)
	o, err := parseOptions(p, args, lookupEnv, stderr)
	switch {
	case isHelp(err):
		return exitOK
	case err != nil && o.command == "doctor":
		fmt.Fprintln(stderr, "podgauge doctor:", err)
		return exitUsage
	case err != nil:
		fmt.Fprintln(stderr, "podgauge:", err)
		return exitUsage
	case o.version:
		fmt.Fprintln(stdout, "podgauge", version)
		return exitOK
	case o.command == "validate":
		return o.validate(ctx, stdout, stderr)
	case o.command == "doctor":
		return o.runDoctor(ctx, lookupEnv, stdout, stderr)
	}
	o.reload, o.driverSignals = reload, driverSignals
	if err := runDaemon(ctx, o, o.logger(stderr)); err != nil {
		fmt.Fprintln(stderr, "podgauge:", err)
		return exitError
	}
	return exitOK
}

// runDaemon checks listeners, IMEX channels and platform, and runs the process until ctx is done.
func runDaemon(ctx context.Context, o options, log *slog.Logger) error {
	l, err := o.web.listen()
	if err != nil {
		return err
	}
	if _, err := imexChannels(o.loaded.Settings); err != nil {
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
