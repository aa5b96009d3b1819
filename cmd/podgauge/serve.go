package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"time"

	"github.com/podgauge/podgauge/device"
	"github.com/podgauge/podgauge/exporter"
	"github.com/podgauge/podgauge/plugin"
	"github.com/podgauge/podgauge/podresources"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
)

// resource is what whole GPUs are offered as, under the name that every workload
// asks for.
const resource = "nvidia.com/gpu"

// leaveBy is how long the end may take: what still hangs then, hangs in a driver.
const leaveBy = 2 * time.Second

// start takes what can be refused, and serves.
func start(ctx context.Context, c config, log *slog.Logger) error {
	listener, err := net.Listen("tcp", c.listenAddress)
	if err != nil {
		return fmt.Errorf("serve metrics: %w", err)
	}
	hw, err := c.hardware(log)
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	defer hw.close()
	return serve(ctx, c, hw, listener, log)
}

// serve puts the parts together and runs them until ctx is done.
func serve(ctx context.Context, c config, hw *hardware, listener net.Listener, log *slog.Logger) error {
	registry := prometheus.NewRegistry()
	own := exporter.NewOwn(registry, version, c.simulate != simulateNothing)
	board := &device.Board{}
	readers := device.NewReaders(hw)
	monitor := device.NewMonitor(hw, readers, board, log.With("part", "monitor"))
	holders, err := podresources.New(filepath.Join(hw.kubeletDir, "pod-resources", "kubelet.sock"),
		log.With("part", "podresources"), podresources.Trace{Called: own.Asked})
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	holders.Checkpoint = filepath.Join(hw.devicePluginDir, podresources.CheckpointFile)
	metrics := exporter.New(exporter.Sources{
		Metrics: hw.Metrics(), Look: board.Look, Read: readers.Read, Stalled: readers.Stalled,
		Owners: holders.Owners, Held: holders.Look, Driver: monitor.Driver,
	})
	own.Allocatable(holders.Allocatable)
	own.Unsupported(hw.unsupported)

	parts := parts{"monitor": monitor, "podresources": holders}
	if c.devicePlugin {
		own.Offers(resource)
		parts["plugin"] = plugin.New(plugin.Options{
			Dir: hw.devicePluginDir, Resource: resource, Look: wholeGPUs(board.Look), DeviceSpecs: c.passDeviceSpecs,
			Log: log.With("part", "plugin"), Trace: trace(own, holders, metrics),
		})
	}
	server := &http.Server{
		Handler: metrics.Handler(exporter.Server{
			TelemetryPath: c.telemetryPath, Pprof: c.pprof, Registry: registry,
			Alive: parts.alive(), Ready: parts.ready(), Log: log.With("part", "exporter"),
		}),
		ReadHeaderTimeout: 10 * time.Second, WriteTimeout: time.Minute, IdleTimeout: 2 * time.Minute,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
	log.Info("podgauge", "version", version, "listen", listener.Addr().String(), "kubelet_dir", hw.kubeletDir, "simulate", c.simulate)

	g, ctx := errgroup.WithContext(ctx)
	for _, p := range parts {
		g.Go(func() error { return p.Run(ctx) })
	}
	g.Go(func() error { return holders.Faults(ctx, board.Look) })
	g.Go(func() error { return answer(ctx, server, listener) })
	g.Go(func() error { return hw.run(ctx) })
	g.Go(func() error { return sayUnsupported(ctx, board, hw.unsupported, log) })
	err = g.Wait()
	metrics.Drain()
	hw.leave(readers, monitor)
	return err
}

// sayUnsupported says once, when the driver has shown its devices, what it is too
// old for.
func sayUnsupported(ctx context.Context, board *device.Board, unsupported func() []string, log *slog.Logger) error {
	for {
		statuses, changed := board.Look()
		if statuses != nil {
			break
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
	}
	if families := unsupported(); len(families) > 0 {
		log.Warn("the driver's library is too old for some families, which are absent", "families", strings.Join(families, ","))
	}
	return nil
}

// trace joins the plugin with those who learn from it.
func trace(own *exporter.Own, holders *podresources.Client, metrics *exporter.Exporter) plugin.Trace {
	return plugin.Trace{
		Registered: func(err error) { own.Registered(resource, err) },
		Streaming:  func(streams int) { own.Streaming(resource, streams) },
		Sent:       func(devices, healthy int) { own.Listed(resource, devices, healthy) },
		Answered:   own.Answered,
		Allocated: func(resource string, ids []device.OfferedID) {
			holders.Allocated(resource, ids)
			metrics.Mark()
		},
	}
}

// part is one task of the process, with its health.
type part interface {
	Run(ctx context.Context) error
	Alive() error
	Ready() error
}

type parts map[string]part

func (ps parts) alive() map[string]func() error {
	asks := map[string]func() error{}
	for name, p := range ps {
		asks[name] = p.Alive
	}
	return asks
}

func (ps parts) ready() map[string]func() error {
	asks := map[string]func() error{}
	for name, p := range ps {
		asks[name] = p.Ready
	}
	return asks
}

// answer serves HTTP until ctx is done, and lets the answers under way be given.
func answer(ctx context.Context, server *http.Server, listener net.Listener) error {
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }() // ends with Shutdown or Close, and is waited for
	select {
	case err := <-served:
		return fmt.Errorf("serve metrics: %w", err)
	case <-ctx.Done():
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveBy)
	defer cancel()
	if server.Shutdown(grace) != nil {
		server.Close() //nolint:errcheck // the listener is closed already; the rest is cut off
	}
	<-served //nolint:errcheck // that the server was closed is no error
	return nil
}
