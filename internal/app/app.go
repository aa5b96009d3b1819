package app

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/podgauge/podgauge/exporter"
	"github.com/podgauge/podgauge/internal/cgroup"
	"github.com/podgauge/podgauge/internal/config"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/incident"
	"github.com/podgauge/podgauge/internal/node"
	"github.com/podgauge/podgauge/internal/pods"
	"github.com/podgauge/podgauge/internal/rules"
	"github.com/podgauge/podgauge/internal/state"
	"github.com/podgauge/podgauge/plugin"
	"github.com/podgauge/podgauge/podresources"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
)

// app is the process: components and the published state.
type app struct {
	o       options
	machine *Hardware
	log     *slog.Logger

	registry      *prometheus.Registry
	selfMetrics   *exporter.SelfMetrics
	node          *node.State
	configWatcher *config.Watcher
	readers       *device.Readers
	podResources  *podresources.Client
	pods          *pods.Client
	state         *state.Store // nil without --state-dir
	incidents     *incident.Log
	monitor       *device.Monitor
	metrics       *exporter.Exporter
	readiness     readiness

	components map[string]component
	tasks      []func(context.Context) error // tasks without health checks
}

// component is a task with a liveness check. A component with a Ready method
// has a readiness check as well.
type component interface {
	Run(ctx context.Context) error
	Alive() error
}

// newApp assembles the components. Each gets the values that it reads and
// writes in its constructor.
func newApp(o options, m *Hardware, log *slog.Logger) (*app, error) {
	a := &app{o: o, machine: m, log: log, registry: prometheus.NewRegistry()}
	a.node = &node.State{IsPlugin: o.devicePlugin}
	a.selfMetrics = exporter.NewSelfMetrics(a.registry, version, m.Simulated)
	a.readiness = readiness{
		checks:  map[string]func() error{"driver": a.checkDriver, "devices": a.checkDevices},
		timeout: o.health.notReadyAfter, log: log, failingSince: map[string]time.Time{}, logged: map[string]bool{},
	}
	a.configWatcher = config.NewWatcher(o.builder, o.loaded, config.WatcherOptions{
		Settings: &a.node.Settings, Reload: o.reload, Log: log.With("component", "config"),
	})
	// Without the wrapper: the backend may have more methods than device.Backend.
	a.readers = device.NewReaders(m.Backend)
	if err := a.addAllocations(); err != nil {
		return nil, err
	}
	history := a.addHealth()
	processes := m.Processes
	if processes == nil {
		processes = cgroup.New(cgroup.Options{
			Proc: m.ProcDir, Pods: o.podLogsDir, ResolveOwner: a.node.ContainerOwner,
			Log: log.With("component", "containers"),
		})
	}
	a.metrics = exporter.New(exporter.Sources{
		Metrics: m.Metrics(), State: a.node, Readers: a.readers, Processes: processes,
		ListAllocations: a.podResources.ListAllocations,
	}, o.metrics.Options)
	if m.Library != nil {
		a.selfMetrics.ExportUnsupportedFamilies(m.Library.MissingFamilies)
		a.tasks = append(a.tasks, a.logMissingFamilies)
	}
	a.selfMetrics.ExportUnknownConfigKeys(a.configWatcher.UnknownKeys)
	a.selfMetrics.ExportEventsUp(func() bool { return !a.monitor.EventsInterrupted() })

	a.components = map[string]component{
		"monitor": a.monitor, "podresources": a.podResources, "pods": a.pods, "incidents": a.incidents,
	}
	a.tasks = append(a.tasks, a.configWatcher.Run)
	if m.Node != nil {
		a.tasks = append(a.tasks, m.Node.Run)
	}
	if o.loaded.Settings.FailOnInitError {
		a.tasks = append(a.tasks, func(ctx context.Context) error { return requireDriver(ctx, a.monitor) })
	}
	a.addKernelLog(history)
	a.addKubernetes()
	if o.devicePlugin {
		a.addDevicePlugin()
	}
	return a, nil
}

// addAllocations adds the clients of the kubelet's APIs.
func (a *app) addAllocations() (err error) {
	o, m, log := a.o, a.machine, a.log
	socket := filepath.Join(m.KubeletDir, "pod-resources", "kubelet.sock")
	if a.podResources, err = podresources.New(socket, podresources.Options{
		Log:            log.With("component", "podresources"),
		CheckpointPath: filepath.Join(m.DevicePluginDir, podresources.CheckpointFile),
		OwnPod:         o.ownPod, OwnerRetention: o.health.ownersMaxAge, OnCall: a.selfMetrics.ObserveKubeletCall,
		Allocations: &a.node.Allocations, Devices: &a.node.Devices, ClaimedDevice: a.claimedDevice,
	}); err != nil {
		return err
	}
	if a.pods, err = pods.New(filepath.Join(m.KubeletDir, "pods-api", "pods-api.sock"), pods.Options{
		Labels: o.metrics.labelsAllowlist, Pods: &a.node.Pods, Log: log.With("component", "pods"),
		Observer:  podObserver{a.node, a.podResources},
		APIServer: o.kubernetes.podFollower(),
	}); err != nil {
		return err
	}
	return nil
}

// addDevicePlugin adds the device plugin, the plugin's rules and the CDI specs.
func (a *app) addDevicePlugin() {
	specs := rules.NewCDISpecs(&a.node.Settings, &a.node.Devices, a.machine.CDIDir, a.log.With("component", "cdi"))
	a.selfMetrics.ExportCDISpecs(specs.Written)
	watcher := rules.NewPublisher(&a.node.Settings, specs, &a.node.Rules, a.log.With("component", "plugin"))
	a.tasks = append(a.tasks, watcher.Run)
	a.components["cdi"] = specs
	a.components["plugin"] = plugin.New(plugin.Options{
		Dir: a.machine.DevicePluginDir, TakeOver: a.o.takeOver, Log: a.log.With("component", "plugin"),
		DeviceSource: plugin.Source{
			Devices: &a.node.Devices, PublishedRules: &a.node.Rules, Allocated: &a.node.Allocations,
			NewestLinks: a.monitor.Links, Check: a.readers.CheckUsable,
		},
		Hooks: pluginHooks{a.selfMetrics, a.podResources, a.metrics}, Resources: &a.node.Resources,
	})
}

// run runs all tasks until ctx is done or a task fails, and shuts down.
func (a *app) run(ctx context.Context, l listeners) error {
	g, ctx := errgroup.WithContext(ctx)
	alive := map[string]func() error{}
	for name, c := range a.components {
		alive[name] = c.Alive
		if r, ok := c.(interface{ Ready() error }); ok {
			a.readiness.checks[name] = r.Ready
		}
		g.Go(func() error { return c.Run(ctx) })
	}
	a.selfMetrics.ExportReadiness(a.readiness.values)
	handler := exporter.HandlerOptions{
		TelemetryPath: a.o.web.telemetryPath, Pprof: a.o.web.pprof, Registry: a.registry, Notes: a.notes,
		Alive: func() map[string]error { return runChecks(alive) }, Ready: a.readiness.failures,
		Log: a.log.With("component", "exporter"), Version: version, Simulated: a.machine.Simulated,
	}
	for _, task := range append(append(a.tasks, a.readiness.Run), a.o.web.serveTasks(a.metrics, handler, l, a.log)...) {
		g.Go(func() error { return task(ctx) })
	}
	err := g.Wait()
	a.metrics.Drain()
	if a.state != nil {
		a.state.End()
	}
	a.machine.shutdown(a.readers, a.monitor)
	if errors.Is(err, device.ErrDriverReplaced) { // a restart loads the new library
		a.log.Info("exiting: driver was replaced, restart loads the new library", "err", err)
		return nil
	}
	return err
}
