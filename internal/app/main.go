// Package app is the podgauge process: device plugin, exporter, and commands to query a running podgauge.
package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/KimMachineGun/automemlimit/memlimit"
)

const (
	// memoryLimitRatio is Go's share of the cgroup's memory limit. The rest is for the driver's library, sockets and the binary.
	memoryLimitRatio = 0.75
	// gcPercent saves 4 MB and costs some µs a scrape (docs/benchmarks.md): the heap is small, and a scrape makes little garbage.
	gcPercent = 30
)

// Main runs the command line of the process, and returns the exit status. GOGC and GOMEMLIMIT in the environment take precedence.
func Main(p Platform) int {
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

// run runs a command line in a given environment, and returns the exit status.
func run(ctx context.Context, p Platform, args []string, lookupEnv envLookup, stdout, stderr io.Writer) int {
	if len(args) > 0 {
		if _, ok := clientCommands[args[0]]; ok {
			return runClient(ctx, args[0], args[1:], lookupEnv, stdout, stderr)
		}
	}
	// Catch signals first: an uncaught signal ends the process.
	reload, driverSignals := make(chan os.Signal, 1), make(chan os.Signal, 16)
	signal.Notify(reload, syscall.SIGHUP)
	signal.Notify(driverSignals, syscall.SIGUSR1, syscall.SIGUSR2)
	defer signal.Stop(reload)
	defer signal.Stop(driverSignals)
	o, err := parseOptions(p, args, lookupEnv, stderr)
	switch {
	case isHelp(err):
		return exitOK
	case err != nil:
		fmt.Fprintf(stderr, "%s: %v\n", o.commandName(), err)
		return exitUsage
	case o.version:
		fmt.Fprintln(stdout, "podgauge", version)
		return exitOK
	case o.validateMode:
		return o.validate(ctx, stdout, stderr)
	case o.doctorMode:
		return o.runDoctor(ctx, lookupEnv, stdout, stderr)
	}
	o.reload, o.driverSignals = coalesce(ctx, reload), driverSignals
	if err := runDaemon(ctx, o, o.logger(stderr)); err != nil {
		fmt.Fprintln(stderr, "podgauge:", err)
		return exitError
	}
	return exitOK
}

// coalesce merges a signal with a waiting signal.
func coalesce(ctx context.Context, signals <-chan os.Signal) <-chan struct{} {
	out := make(chan struct{}, 1)
	go func() { // ends with ctx, and with ctx the process
		for {
			select {
			case <-ctx.Done():
				return
			case <-signals:
			}
			select {
			case out <- struct{}{}:
			default:
			}
		}
	}()
	return out
}

// runDaemon checks listeners, IMEX channels and platform, and runs the process until ctx is done.
func runDaemon(ctx context.Context, o options, log *slog.Logger) error {
	l, err := o.web.listen()
	if err != nil {
		return err
	}
	if _, err := imexChannels(o.loaded.Settings); err != nil {
		return errors.Join(err, l.Close())
	}
	nb, err := o.openPlatform(log)
	if err != nil {
		return errors.Join(err, l.Close())
	}
	defer nb.close()
	return serve(ctx, o, nb, l, log)
}

// serve assembles the process, and runs it until ctx is done.
func serve(ctx context.Context, o options, nb *nodeBackend, l listeners, log *slog.Logger) error {
	a, err := newApp(o, nb, log)
	if err != nil {
		return errors.Join(err, l.Close())
	}
	o.loaded.Report(log)
	log.Info("podgauge starting", "version", version, "listen", l.main.Addr().String(), "kubelet_dir", nb.kubeletDir, "simulated", o.platform.Simulated())
	return a.run(ctx, l)
}
