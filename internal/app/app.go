package app

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"time"

	"github.com/podgauge/podgauge/exporter"
	"github.com/podgauge/podgauge/internal/cgroup"
	"github.com/podgauge/podgauge/internal/config"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/incident"
	"github.com/podgauge/podgauge/internal/pods"
	"github.com/podgauge/podgauge/internal/state"
	"github.com/podgauge/podgauge/internal/state/disk"
	"github.com/podgauge/podgauge/plugin"
	"github.com/podgauge/podgauge/podresources"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
)

// shutdownTimeout is how long the end may take: what still hangs then, hangs in a driver.
const shutdownTimeout = 2 * time.Second

// runDaemon takes what can be refused, and serves.
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

// serve puts the parts together and runs them until ctx is done.
func serve(ctx context.Context, o options, nb *nodeBackend, l listeners, log *slog.Logger) error {
	a, err := newApp(o, nb, log)
	if err != nil {
		return errors.Join(err, l.Close())
	}
	if o.devicePlugin {
		a.addDevicePlugin()
	}
	o.loaded.Report(log)
	log.Info("podgauge", "version", version, "listen", l.main.Addr().String(), "kubelet_dir", nb.kubeletDir, "simulated", o.platform.Simulated())

	for _, p := range a.components {
		a.tasks = append(a.tasks, p.Run)
	}
	a.tasks = append(a.tasks, o.web.serveTasks(a.metrics, exporter.HandlerOptions{
		TelemetryPath: o.web.telemetryPath, Pprof: o.web.pprof, Registry: a.registry,
		Alive: a.components.alive(), Ready: a.components.ready(), Log: log.With("part", "exporter"),
		Version: version, Simulated: o.platform.Simulated(),
	}, l, log)...)
	err = runAll(ctx, a.tasks)
	a.metrics.Drain()
	a.closeState()
	nb.shutdown(a.readers, a.monitor)
	if errors.Is(err, device.ErrDriverReplaced) { // nothing is wrong with this process, and only another one can go on
		log.Info("end, to be started anew", "why", err)
		return nil
	}
	return err
}

// app is the process's parts, and what they share.
type app struct {
	platform     Platform
	backend      *nodeBackend
	registry     *prometheus.Registry
	selfMetrics  *exporter.SelfMetrics
	board        *device.Inventory
	readers      *device.Readers
	monitor      *device.Monitor
	podResources *podresources.Client
	metrics      *exporter.Exporter
	pods         *pods.Client
	// incidents and state outlive the process, in the folder; the latter two are nil without --state-dir.
	incidents     *incident.Log
	state         *state.HealthFile
	stateFolder   *disk.Folder
	configWatcher *config.Watcher
	log           *slog.Logger
	// rules are the device plugin's, nil where another one serves; and registrations are how
	// the kubelet takes what it is offered.
	rules         valueFunc[plugin.Rules]
	registrations registrationTracker

	components components                    // with a health of their own
	tasks      []func(context.Context) error // all others
}

// newApp joins all parts but the device plugin, beside which another one may serve.
func newApp(o options, nb *nodeBackend, log *slog.Logger) (*app, error) {
	a := &app{platform: o.platform, backend: nb, registry: prometheus.NewRegistry(), board: &device.Inventory{}, log: log}
	exporterOptions := o.metrics.exporterOptions(o.hostname)
	a.selfMetrics = exporter.NewSelfMetrics(a.registry, version, o.platform.Simulated(), exporterOptions.Filter)
	a.readers = device.NewReaders(nb.Backend) // itself, since it may be more than a Backend
	var err error
	if a.podResources, err = podresources.New(filepath.Join(nb.kubeletDir, "pod-resources", "kubelet.sock"), podresources.Options{
		Log: log.With("part", "podresources"), CheckpointPath: filepath.Join(nb.devicePluginDir, podresources.CheckpointFile),
		NodeName: o.hostname, OwnerRetention: o.health.ownersMaxAge, Devices: ownDevices{a}, OnCall: a.selfMetrics.ObserveKubeletCall,
	}); err != nil {
		return nil, err
	}
	if a.pods, err = pods.New(filepath.Join(nb.kubeletDir, "pods-api", "pods-api.sock"), pods.Options{
		Labels: o.metrics.labelsAllowlist, Log: log.With("part", "pods"), Observer: a,
	}); err != nil {
		return nil, err
	}
	processes := nb.processes
	if processes == nil {
		processes = cgroup.New(cgroup.Options{Proc: nb.procDir, Pods: o.podLogsDir, ResolveOwner: a.containerOwner, Log: log.With("part", "containers")})
	}
	a.configWatcher = config.NewWatcher(o.builder, o.loaded, config.WatcherOptions{Reload: o.reload, Log: log.With("part", "config")})
	history := a.openState(o.health.stateDir)
	a.incidents = a.newIncidentLog(o.health)
	a.monitor = a.newMonitor(o.health, history)
	a.metrics = exporter.New(exporter.Sources{Metrics: nb.Metrics(), Node: exportedNode{a}, Readers: a.readers, Processes: processes}, exporterOptions)
	a.selfMetrics.ExportUnsupportedFamilies(nb.missingFamilies)
	a.selfMetrics.ExportUnknownConfigKeys(a.configWatcher.UnknownKeys)
	a.selfMetrics.ExportEventsUp(func() bool { return a.monitor.EventOutage() == 0 })

	a.components = components{"monitor": a.monitor, "podresources": a.podResources, "pods": a.pods, "incidents": a.incidents}
	a.tasks = []func(context.Context) error{
		nb.run, a.configWatcher.Run,
		func(ctx context.Context) error { return logMissingFamilies(ctx, a.board, nb.missingFamilies, log) },
		func(ctx context.Context) error { return handleDriverSignals(ctx, o.driverSignals, a.monitor, log) },
	}
	if o.loaded.Settings.FailOnInitError {
		a.tasks = append(a.tasks, a.requireDriver)
	}
	if a.state != nil {
		a.tasks = append(a.tasks, a.state.Run)
	}
	a.addKernelLog(o.health.kernelLog, history)
	return a, nil
}

// ownDevices is the podresources.DeviceIndex of the app.
type ownDevices struct{ *app }

// DeviceIDs returns the ids of all devices in the inventory; nil before the first one.
func (a ownDevices) DeviceIDs() []device.ID {
	statuses, _ := a.board.Get()
	if statuses == nil {
		return nil
	}
	ids := make([]device.ID, len(statuses))
	for i := range statuses {
		ids[i] = statuses[i].ID
	}
	return ids
}

// ClaimedDevice returns the device that a claim allocates. A claim that the configuration
// ignores allocates none.
func (a ownDevices) ClaimedDevice(c device.Claim) (device.ID, bool) {
	if settings, _ := a.configWatcher.Get(); settings.Claims.Ignores(c.ClaimNamespace, c.ClaimName, c.Driver) {
		return "", false
	}
	statuses, _ := a.board.Get()
	return a.platform.ClaimedDevice(c, statuses)
}

// containerOwner is whose container it is, as the kubelet's Pods API says. A static pod's UID in a
// cgroup is not its own, so the container's id decides.
func (a *app) containerOwner(_, containerID string) (device.Owner, bool) {
	cache, _ := a.pods.Snapshot()
	pod, container, ok := cache.ByContainer(containerID)
	return device.Owner{Namespace: pod.Namespace, Pod: pod.Name, Container: container}, ok
}

// OnPodAdded implements pods.Observer.
func (a *app) OnPodAdded(namespace, name string) { a.podResources.OnPodAdded(namespace, name) }

// OnPodEnded implements pods.Observer. The end of a pod whose name belongs to another running pod is not reported.
func (a *app) OnPodEnded(p pods.Pod) {
	cache, _ := a.pods.Snapshot()
	if other, found := cache.ByName(p.Namespace, p.Name); found && other.UID != p.UID && !other.Ended() {
		return
	}
	a.podResources.OnPodEnded(p.Namespace, p.Name)
}

// addDevicePlugin adds the device plugin, and what it follows.
func (a *app) addDevicePlugin() {
	specs := &cdiSpecs{settings: a.configWatcher.Get, board: a.board.Get, dir: a.backend.cdiDir, log: a.log.With("part", "cdi")}
	watcher := newRulesWatcher(a.configWatcher.Get, specs, a.log.With("part", "plugin"))
	a.tasks, a.rules = append(a.tasks, watcher.Run), watcher.Get
	a.components["cdi"] = specs
	a.selfMetrics.ExportCDISpecs(specs.Written)
	a.components["plugin"] = gatedPlugin{rules: watcher, Plugin: plugin.New(plugin.Options{
		Dir: a.backend.devicePluginDir, Statuses: watcher.Gate(a.board.Get), Rules: watcher.Get, Links: a.monitor.Links, Allocations: a.podResources.Snapshot,
		CheckUsable: func(ctx context.Context, check plugin.UsabilityCheck) error {
			return a.readers.CheckUsable(ctx, check.Device, check.Exclusive)
		},
		Log: a.log.With("part", "plugin"), Hooks: a.registrations.wrap(pluginTrace(a.selfMetrics, a.podResources, a.metrics)),
	})}
}

// runAll runs tasks until all have ended, and ends all with the first that fails.
func runAll(ctx context.Context, tasks []func(context.Context) error) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, task := range tasks {
		g.Go(func() error { return task(ctx) })
	}
	return g.Wait()
}

// logMissingFamilies says once, when the driver has shown its devices, what it is too
// old for.
func logMissingFamilies(ctx context.Context, board *device.Inventory, missing func() []string, log *slog.Logger) error {
	for {
		statuses, changed := board.Get()
		if statuses != nil {
			break
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
	}
	if families := missing(); len(families) > 0 {
		log.Warn("the driver's library is too old for some families, which are absent", "families", strings.Join(families, ","))
	}
	return nil
}

// pluginTrace joins the plugin with those who learn from it.
func pluginTrace(selfMetrics *exporter.SelfMetrics, podResources *podresources.Client, metrics *exporter.Exporter) plugin.EndpointHooks {
	return plugin.EndpointHooks{
		OnResourceAdded: func(resource string) {
			selfMetrics.InitResource(resource)
			for _, reason := range plugin.RejectReasons() {
				selfMetrics.InitRejections(resource, string(reason))
			}
		},
		OnRegistered: func(resource string, err error) {
			selfMetrics.CountRegistration(resource, err)
			if err == nil {
				podResources.OnRegistered()
			}
		},
		OnStreamCount: selfMetrics.SetStreams, OnCallServed: selfMetrics.ObservePluginCall, OnResourceReleased: selfMetrics.DeleteResource,
		OnListSent: func(resource string, devices, healthy int) {
			selfMetrics.SetDevices(resource, devices, healthy)
			podResources.OnListSent()
		},
		OnRejected: func(resource string, _ []device.AdvertisedID, reason plugin.RejectReason, _ error) {
			selfMetrics.CountRejection(resource, string(reason))
		},
		OnAllocated: func(resource string, ids []device.AdvertisedID) {
			metrics.ReadAllocated(toDeviceIDs(ids)...) // before a collection can see that they are allocated
			podResources.OnAllocated(resource, ids)
		},
	}
}

// toDeviceIDs are those behind offered ids.
func toDeviceIDs(ids []device.AdvertisedID) []device.ID {
	all := make([]device.ID, len(ids))
	for i, id := range ids {
		all[i] = id.Device()
	}
	return all
}

// component is one task of the process, with its health.
type component interface {
	Run(ctx context.Context) error
	Alive() error
	Ready() error
}

type components map[string]component

func (cs components) alive() map[string]func() error {
	checks := map[string]func() error{}
	for name, p := range cs {
		checks[name] = p.Alive
	}
	return checks
}

func (cs components) ready() map[string]func() error {
	checks := map[string]func() error{}
	for name, p := range cs {
		checks[name] = p.Ready
	}
	return checks
}
