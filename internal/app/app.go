package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/podgauge/podgauge/exporter"
	"github.com/podgauge/podgauge/internal/allocation"
	"github.com/podgauge/podgauge/internal/cgroup"
	"github.com/podgauge/podgauge/internal/config"
	"github.com/podgauge/podgauge/internal/dcgm"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/flags"
	"github.com/podgauge/podgauge/internal/health"
	"github.com/podgauge/podgauge/internal/hpcjobs"
	"github.com/podgauge/podgauge/internal/incident"
	"github.com/podgauge/podgauge/internal/kmsg"
	"github.com/podgauge/podgauge/internal/node"
	"github.com/podgauge/podgauge/internal/operator"
	"github.com/podgauge/podgauge/internal/pods"
	"github.com/podgauge/podgauge/internal/pubsub"
	"github.com/podgauge/podgauge/internal/readiness"
	"github.com/podgauge/podgauge/internal/rules"
	"github.com/podgauge/podgauge/internal/state"
	"github.com/podgauge/podgauge/internal/sxid"
	"github.com/podgauge/podgauge/internal/sysfs"
	"github.com/podgauge/podgauge/internal/web/server"
	"github.com/podgauge/podgauge/plugin"
	"github.com/podgauge/podgauge/podresources"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
)

// version is set by the Makefile, or by Main after go install of a version.
var version = "dev"

// app is the daemon: components and the published state.
type app struct {
	o       *flags.Options
	machine *Hardware
	reload  <-chan os.Signal // forces a read of the config
	log     *slog.Logger

	node         *node.State
	registry     *prometheus.Registry
	selfMetrics  *exporter.SelfMetrics
	readers      *health.Readers
	podResources *podresources.Client
	state        *state.Store // nil without --state-dir
	takenOver    io.Closer    // from an older process, until this process ends
	incidents    *incident.Log
	monitor      *health.Monitor
	metrics      *exporter.Exporter

	ignoredClaims *config.ClaimsFile // nil without --ignore-claims-file

	components map[string]component
	tasks      []task // tasks without health checks
}

// task runs until ctx is done.
type task = func(ctx context.Context) error

// component is a task with a liveness check. A component with a Ready method
// has a readiness check as well.
type component interface {
	Run(ctx context.Context) error
	Alive() error
}

// newApp assembles the components. Each gets the values that it reads and
// writes in its constructor.
func newApp(o *flags.Options, m *Hardware, reload <-chan os.Signal, log *slog.Logger) (*app, error) {
	a := &app{
		o: o, machine: m, reload: reload, log: log,
		node:       &node.State{IsPlugin: o.DevicePlugin},
		registry:   prometheus.NewRegistry(),
		readers:    health.NewReaders(m.Backend),
		components: map[string]component{},
	}
	a.selfMetrics = exporter.NewSelfMetrics(a.registry, version, m.Simulated)
	a.addConfig()
	if err := a.addAllocations(); err != nil {
		return nil, err
	}
	a.addHealth()
	if err := a.addExporter(); err != nil {
		return nil, err
	}
	if o.DevicePlugin {
		a.addDevicePlugin()
	}
	if m.Node != nil {
		a.tasks = append(a.tasks, m.Node.Run)
	}
	return a, nil
}

// logger returns the log of a component.
func (a *app) logger(component string) *slog.Logger { return a.log.With("component", component) }

// addConfig adds the watchers of the config and of the retired devices.
func (a *app) addConfig() {
	watcher := config.NewWatcher(a.o.Builder, a.o.Loaded, config.WatcherOptions{
		Settings: &a.node.Settings, Reload: a.reload, Log: a.logger("config"),
	})
	a.selfMetrics.ExportOne("podgauge_config_unknown_keys", func() float64 { return float64(watcher.UnknownKeys()) })
	retired := config.NewRetiredWatcher(a.o.Health.RetiredFile, &a.node.Retired, a.logger("config"))
	a.tasks = append(a.tasks, watcher.Run, retired.Run)
	if a.o.IgnoreClaimsFile != "" {
		a.ignoredClaims = config.NewClaimsFile(a.o.IgnoreClaimsFile, a.logger("config"))
		a.tasks = append(a.tasks, a.ignoredClaims.Run)
	}
}

// addAllocations adds the clients of the kubelet's APIs.
func (a *app) addAllocations() (err error) {
	socket := filepath.Join(a.machine.KubeletDir, "pod-resources", "kubelet.sock")
	a.podResources, err = podresources.New(socket, podresources.Options{
		Allocations: &a.node.Allocations, Devices: &a.node.Devices, ClaimedDevice: a.claimedDevice,
		ForeignPlugin:  !a.o.DevicePlugin,
		CheckpointPath: filepath.Join(a.machine.DevicePluginDir, podresources.CheckpointFile),
		OwnPod:         a.o.OwnPod, OwnerRetention: a.o.Health.OwnersMaxAge,
		OnCall: a.selfMetrics.ObserveKubeletCall, Log: a.logger("podresources"),
	})
	if err != nil {
		return err
	}
	podsAPI := filepath.Join(a.machine.KubeletDir, "pods-api", "pods-api.sock")
	client, err := pods.New(podsAPI, pods.Options{
		Labels: a.o.Metrics.LabelsAllowlist, JobLabel: a.o.Metrics.JobLabel,
		FallbackSocket: a.o.PodsAPIFallbackSocket,
		Pods:           &a.node.Pods, Log: a.logger("pods"),
		OnPodAdded: a.podResources.OnPodAdded, OnPodEnded: a.podResources.OnPodEnded,
	})
	if err != nil {
		return err
	}
	if folder := a.o.Metrics.JobMappingDir; folder != "" {
		a.tasks = append(a.tasks, func(ctx context.Context) error {
			read := func() (hpcjobs.Mapping, error) { return hpcjobs.Read(folder) }
			hpcjobs.Follow(ctx, read, &a.node.HPCJobs, a.logger("hpcjobs"))
			return nil
		})
	}
	a.components["podresources"] = a.podResources
	a.components["pods"] = client
	return nil
}

// claimedDevice returns the device of a claim. Ignored claims allocate no
// device.
func (a *app) claimedDevice(c allocation.Claim) (device.ID, bool) {
	settings := a.node.Settings.Newest()
	if settings.Claims.Ignores(c.ClaimNamespace, c.ClaimName, c.Driver) ||
		a.ignoredClaims != nil && a.ignoredClaims.Claims().Ignores(c.ClaimNamespace, c.ClaimName, c.Driver) {
		return "", false
	}
	return a.machine.ClaimedDevice(c, a.node.Statuses())
}

// addHealth adds the Monitor, the incidents, the kernel log and, with a state
// folder, the Store with the history of earlier processes.
func (a *app) addHealth() {
	o := &a.o.Health
	monitorOptions := health.Options{
		UnhealthyTimeout: o.UnhealthyAfter, RestartAfter: o.RestartAfter, Log: a.logger("monitor"),
		Driver: &a.node.Driver, IsAllocated: a.node.IsAllocated, Policy: a.node.XidPolicy,
		ExpectedGPUs: a.node.ExpectedGPUs, Retired: a.node.Retirements,
	}
	incidentOptions := incident.Options{
		Devices: &a.node.Devices, Allocations: &a.node.Allocations, Terminations: a.node.Terminations,
		HPCJobs: a.node.JobsOf, Incidents: &a.node.Incidents,
		MaxAge: o.IncidentsMaxAge, MaxIncidents: o.IncidentsMaxCount,
		Log: a.logger("incidents"),
	}
	if o.StateDir == "" {
		a.log.Info("no --state-dir, health and incidents are lost at a restart")
	} else {
		a.takenOver = operator.TakeOver(o.StateDir, a.log)
		a.state, monitorOptions.History, incidentOptions.Stored = state.Open(o.StateDir, state.BootIDPath,
			&a.node.StateFile, a.logger("state"))
		monitorOptions.Store, incidentOptions.Store = a.state, a.state
		a.tasks = append(a.tasks, a.state.Run, a.serveSocket)
	}
	a.incidents = incident.New(incidentOptions)
	monitorOptions.OnHealthEvent = a.incidents.Record
	a.monitor = health.NewMonitor(a.machine.Backend, a.readers, &a.node.Devices, monitorOptions)
	a.selfMetrics.ExportOne("podgauge_events_up", func() float64 {
		if a.monitor.EventsInterrupted() {
			return 0
		}
		return 1
	})
	a.components["monitor"] = a.monitor
	a.components["incidents"] = a.incidents
	if a.o.Loaded.Settings.FailOnInitError {
		a.tasks = append(a.tasks, a.requireDriver)
	}
	switches := cmp.Or(a.machine.SwitchErrors, sxid.NewLog(a.logger("nvswitch")))
	a.selfMetrics.Export("podgauge_nvswitch_errors_total", switches.Counts)
	a.selfMetrics.Export("podgauge_nvswitch_error_last_timestamp_seconds", switches.LastTimes)
	a.selfMetrics.Export("podgauge_nvswitch_error_last_link", switches.LastLinks)
	if o.KernelLog != "" && a.machine.Library != nil {
		xids := kernelXids{a.monitor, a.machine.Library, monitorOptions.History}
		a.tasks = append(a.tasks, kmsg.NewReader(o.KernelLog, xids, switches, a.logger("kmsg")).Run)
	}
}

// serveSocket serves the commands on the node at the socket in the state
// folder.
func (a *app) serveSocket(ctx context.Context) error {
	commands := &operator.CommandHandler{
		State: a.node, Monitor: a.monitor, Incidents: a.incidents, Store: a.state, Log: a.log,
		RetiredFile: a.o.Health.RetiredFile,
	}
	return operator.ServeSocket(ctx, a.o.Health.StateDir, commands, a.metrics.APIHandler())
}

// requireDriver fails if the first listing finds no usable driver. Probes are
// served while a driver initializes or hangs. A listing with devices and an
// error omits a device.
func (a *app) requireDriver(ctx context.Context) error {
	for ctx.Err() == nil {
		d, changed := a.node.Driver.Get()
		switch d.State {
		case device.DriverUp, device.DriverReplaced:
			return nil
		case device.DriverAbsent, device.DriverFailing:
			return fmt.Errorf("--fail-on-init-error: %w", d.Err)
		}
		pubsub.Wait(ctx, changed)
	}
	return nil
}

// addExporter adds the metrics.
func (a *app) addExporter() error {
	reader, err := a.sysfsReader()
	if err != nil {
		return err
	}
	processes := a.machine.ProcessResolver
	if processes == nil {
		processes = cgroup.New(cgroup.Options{
			Proc: a.machine.ProcDir, Pods: a.o.PodLogsDir, ResolveOwner: a.node.ContainerOwner,
			Log: a.logger("containers"),
		})
	}
	a.metrics = exporter.New(exporter.Sources{
		Metrics: a.machine.Metrics(), State: a.node, Readers: a.readers, Processes: processes,
		ListAllocations: a.podResources.ListAllocations, Sysfs: reader,
	}, a.o.Metrics.Options)
	if a.o.Metrics.DCGMCountersFile != "" {
		a.reportCounters(&a.o.Metrics.DCGM)
	}
	if a.machine.Library != nil {
		a.selfMetrics.Export("podgauge_family_unsupported", func() map[string]float64 {
			unsupported := map[string]float64{}
			for _, family := range a.machine.Library.Library().MissingFamilies {
				unsupported[family] = 1
			}
			return unsupported
		})
		a.tasks = append(a.tasks, a.logMissingFamilies)
	}
	return nil
}

// sysfsReader returns nil unless RDMA ports or CPU sensors are exported.
func (a *app) sysfsReader() (*sysfs.Reader, error) {
	o, files := &a.o.Metrics, a.machine.Sysfs
	if !o.RDMA && !o.CPU {
		return nil, nil //nolint:nilnil // the exporter takes nil
	}
	if files == nil {
		root, err := os.OpenRoot(o.SysfsDir)
		if err != nil {
			return nil, fmt.Errorf("--path.sysfs: %w", err)
		}
		files = root.FS()
	}
	return sysfs.New(sysfs.Options{Root: files, RDMA: o.RDMA, CPU: o.CPU, Log: a.logger("sysfs")}), nil
}

// reportCounters logs and exports what dcgm-exporter's counters file has in vain.
func (a *app) reportCounters(c *dcgm.Counters) {
	for _, problem := range c.Problems() {
		a.log.Warn("counters file not fully served", "problem", problem)
	}
	unserved := map[string]float64{}
	for _, u := range c.FirstUnserved() {
		unserved[u.Field+","+u.Reason] = 1
	}
	a.selfMetrics.Export("podgauge_dcgm_counters_unserved", func() map[string]float64 { return unserved })
	a.selfMetrics.ExportOne("podgauge_dcgm_counters_errors", func() float64 { return float64(len(c.Errors)) })
}

// logMissingFamilies logs the metric families missing in an old driver library,
// once after the first health check.
func (a *app) logMissingFamilies(ctx context.Context) error {
	statuses, changed := a.node.Devices.Get()
	for statuses == nil && ctx.Err() == nil {
		pubsub.Wait(ctx, changed)
		statuses, changed = a.node.Devices.Get()
	}
	if families := a.machine.Library.Library().MissingFamilies; len(families) > 0 && statuses != nil {
		a.log.Warn("driver library too old for some metric families", "families", strings.Join(families, ","))
	}
	return nil
}

// addDevicePlugin adds the device plugin, the plugin's rules and the CDI specs.
func (a *app) addDevicePlugin() {
	log := a.logger("cdi")
	specs := rules.NewCDISpecs(&a.node.Settings, &a.node.Devices, a.state.HandedOver, a.machine.CDIDir, log)
	a.selfMetrics.Export("podgauge_cdi_spec_up", specs.Written)
	a.components["cdi"] = specs
	a.selfMetrics.ExportResources(&a.node.Resources)
	publisher := rules.NewPublisher(&a.node.Settings, specs, &a.node.Rules, a.logger("plugin"))
	a.tasks = append(a.tasks, publisher.Run)
	a.components["plugin"] = plugin.New(plugin.Options{
		Dir: a.machine.DevicePluginDir, TakeOver: a.o.TakeOver, Log: a.logger("plugin"),
		Devices: &a.node.Devices, Rules: &a.node.Rules, Allocations: &a.node.Allocations,
		Links: a.monitor.Links, CheckUsable: a.readers.CheckUsable,
		Hooks: pluginHooks{a.selfMetrics, a.podResources, a.metrics}, Resources: &a.node.Resources,
	})
}

// run runs all tasks until ctx is done or a task fails, and shuts down.
func (a *app) run(ctx context.Context, l server.Listeners) error {
	alive := map[string]func() error{}
	ready := map[string]func() error{
		"driver":  func() error { return readiness.Driver(a.node, a.monitor) },
		"devices": func() error { return readiness.Devices(a.node, a.monitor) },
	}
	tasks := a.tasks
	for name, c := range a.components {
		alive[name] = c.Alive
		if r, ok := c.(interface{ Ready() error }); ok {
			ready[name] = r.Ready
		}
		tasks = append(tasks, c.Run)
	}
	readyNode := readiness.New(ready, a.o.Health.NotReadyAfter, a.log)
	a.selfMetrics.Export("podgauge_ready", readyNode.Values)
	handler := exporter.HandlerOptions{
		TelemetryPath: a.o.Web.TelemetryPath, Pprof: a.o.Web.Pprof, Registry: a.registry,
		Notes: func() []string { return readiness.Notes(a.node) },
		Alive: func() map[string]error { return readiness.RunChecks(alive) }, Ready: readyNode.Failures,
		Log: a.logger("exporter"), Version: version, Simulated: a.machine.Simulated,
	}
	tasks = append(tasks, readyNode.Run)
	tasks = append(tasks, a.o.Web.Tasks(l, a.metrics.Handler(handler), handler.Probes(), a.log)...)
	g, ctx := errgroup.WithContext(ctx)
	for _, t := range tasks {
		g.Go(func() error { return t(ctx) })
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
