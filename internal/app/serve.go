package app

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"time"

	"github.com/podgauge/podgauge/exporter"
	"github.com/podgauge/podgauge/internal/config"
	"github.com/podgauge/podgauge/internal/containers"
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

// leaveBy is how long the end may take: what still hangs then, hangs in a driver.
const leaveBy = 2 * time.Second

// start takes what can be refused, and serves.
func start(ctx context.Context, o options, log *slog.Logger) error {
	l, err := o.web.listen()
	if err != nil {
		return err
	}
	if _, err := imex(o.loaded.Settings); err != nil {
		return errors.Join(err, l.Close())
	}
	hw, err := o.hardware(log)
	if err != nil {
		return errors.Join(err, l.Close())
	}
	defer hw.close()
	return serve(ctx, o, hw, l, log)
}

// serve puts the parts together and runs them until ctx is done.
func serve(ctx context.Context, o options, hw *hardware, l listeners, log *slog.Logger) error {
	a, err := assemble(o, hw, log)
	if err != nil {
		return errors.Join(err, l.Close())
	}
	if o.devicePlugin {
		a.offer()
	}
	o.loaded.Report(log)
	log.Info("podgauge", "version", version, "listen", l.all.Addr().String(), "kubelet_dir", hw.kubeletDir, "simulated", o.platform.Simulated())

	for _, p := range a.parts {
		a.tasks = append(a.tasks, p.Run)
	}
	a.tasks = append(a.tasks, o.web.serving(a.metrics, exporter.Server{
		TelemetryPath: o.web.telemetryPath, Pprof: o.web.pprof, Registry: a.registry,
		Alive: a.parts.alive(), Ready: a.parts.ready(), Log: log.With("part", "exporter"),
		Version: version, Simulated: o.platform.Simulated(),
	}, l, log)...)
	err = together(ctx, a.tasks)
	a.metrics.Drain()
	a.end()
	hw.leave(a.readers, a.monitor)
	if errors.Is(err, device.ErrReplaced) { // nothing is wrong with this process, and only another one can go on
		log.Info("end, to be started anew", "why", err)
		return nil
	}
	return err
}

// assembly is the process's parts, and what they share.
type assembly struct {
	platform Platform
	hw       *hardware
	registry *prometheus.Registry
	own      *exporter.Own
	board    *device.Board
	readers  *device.Readers
	monitor  *device.Monitor
	holders  *podresources.Client
	metrics  *exporter.Exporter
	pods     *pods.Client
	// incidents and state outlive the process, in the folder; the latter two are nil without --state-dir.
	incidents *incident.Log
	state     *state.File
	folder    *disk.Folder
	watch     *config.Watch
	log       *slog.Logger
	// rules are the device plugin's, nil where another one serves; and registrations are how
	// the kubelet takes what it is offered.
	rules         looker[plugin.Rules]
	registrations registrations

	parts parts                         // with a health of their own
	tasks []func(context.Context) error // all others
}

// assemble joins all parts but the device plugin, beside which another one may serve.
func assemble(o options, hw *hardware, log *slog.Logger) (*assembly, error) {
	a := &assembly{platform: o.platform, hw: hw, registry: prometheus.NewRegistry(), board: &device.Board{}, log: log}
	shown := o.metrics.exporter(o.hostname)
	a.own = exporter.NewOwn(a.registry, version, o.platform.Simulated(), shown.Choice)
	a.readers = device.NewReaders(hw.Backend) // itself, since it may be more than a Backend
	a.monitor = device.NewMonitor(hw.Backend, a.readers, a.board, log.With("part", "monitor"))
	var err error
	if a.holders, err = podresources.New(filepath.Join(hw.kubeletDir, "pod-resources", "kubelet.sock"),
		log.With("part", "podresources"), podresources.Trace{Called: a.own.Asked}); err != nil {
		return nil, err
	}
	a.holders.KeepHolders(o.health.holdersFor)
	a.holders.OnNode(o.hostname)
	a.holders.Checkpoint = filepath.Join(hw.devicePluginDir, podresources.CheckpointFile)
	if a.pods, err = pods.New(filepath.Join(hw.kubeletDir, "pods-api", "pods-api.sock"), pods.Options{
		Labels: o.metrics.labelsAllowlist, Log: log.With("part", "pods"), Trace: pods.Trace{Arrived: a.holders.Arrived, Ended: a.ended},
	}); err != nil {
		return nil, err
	}
	processes := hw.processes
	if processes == nil {
		processes = containers.New(containers.Options{Proc: hw.proc, Pods: o.podLogsDir, Named: a.named, Log: log.With("part", "containers")})
	}
	a.metrics = exporter.New(exporter.Sources{
		Metrics: hw.Metrics(), Look: a.board.Look, Read: a.readers.Read, ReadOne: a.readers.ReadOne, Stalled: a.readers.Stalled,
		Owners: a.holders.Owners, Held: a.holders.Look, Driver: a.monitor.Driver, Processes: processes, Pod: a.meta,
		Incidents: a.incidentsKnown, State: a.recall(o.health.stateDir), Offers: a.offers, PodsAPI: a.podsFollowed,
	}, shown)
	a.watch = config.NewWatch(o.builder, o.loaded, config.WatchOptions{Again: o.again, Log: log.With("part", "config")})

	a.monitor.Held = func(id device.ID) bool {
		known, _ := a.holders.Look()
		return len(known.Rows(id)) > 0
	}
	a.holders.Claimed, a.holders.Devices = a.claimed, a.deviceIDs
	a.monitor.Policy = func(xid uint64) device.Policy {
		settings, _ := a.watch.Look()
		return xidPolicies[settings.Health.Policy(xid)]
	}
	a.own.Unsupported(hw.unsupported)
	a.own.UnknownConfigKeys(a.watch.UnknownKeys)
	a.own.Heard(func() bool { return a.monitor.Deaf() == 0 })

	a.parts = parts{"monitor": a.monitor, "podresources": a.holders, "pods": a.pods}
	a.tasks = []func(context.Context) error{
		hw.run, a.watch.Run,
		func(ctx context.Context) error { return sayUnsupported(ctx, a.board, hw.unsupported, log) },
		func(ctx context.Context) error { return obey(ctx, o.orders, a.monitor, log) },
	}
	if o.loaded.Settings.FailOnInitError {
		a.tasks = append(a.tasks, a.requireDriver)
	}
	a.remember(o.health)
	a.listen(o.health.kernelLog)
	return a, nil
}

// deviceIDs returns the ids of all devices on the Board; nil before there are any.
func (a *assembly) deviceIDs() []device.ID {
	statuses, _ := a.board.Look()
	if statuses == nil {
		return nil
	}
	ids := make([]device.ID, len(statuses))
	for i := range statuses {
		ids[i] = statuses[i].ID
	}
	return ids
}

// claimed returns the device that a claim allocates. A claim that the configuration
// ignores allocates none.
func (a *assembly) claimed(c device.Claim) (device.ID, bool) {
	if settings, _ := a.watch.Look(); settings.Claims.Ignores(c.ClaimNamespace, c.ClaimName, c.Driver) {
		return "", false
	}
	statuses, _ := a.board.Look()
	return a.platform.Claimed(c, statuses)
}

// named is whose container it is, as the kubelet's Pods API says. A static pod's UID in a
// cgroup is not its own, so the container's id decides.
func (a *assembly) named(_, containerID string) (device.Owner, bool) {
	known, _ := a.pods.Look()
	pod, container, ok := known.ByContainer(containerID)
	return device.Owner{Namespace: pod.Namespace, Pod: pod.Name, Container: container}, ok
}

// ended is told of a pod that is over.
func (a *assembly) ended(p pods.Pod) {
	known, _ := a.pods.Look()
	if other, there := known.ByName(p.Namespace, p.Name); there && other.UID != p.UID && !other.Ended() {
		return
	}
	a.holders.Ended(p.Namespace, p.Name)
}

// meta is what the Pods API says of a pod.
func (a *assembly) meta(namespace, pod string) device.PodMeta {
	known, _ := a.pods.Look()
	return known.Meta(namespace, pod)
}

// offer adds the device plugin, and what it follows.
func (a *assembly) offer() {
	specs := &specs{settings: a.watch.Look, board: a.board.Look, dir: a.hw.cdiDir, log: a.log.With("part", "cdi")}
	book := newRulebook(a.watch.Look, specs, a.log.With("part", "plugin"))
	a.tasks, a.rules = append(a.tasks, book.Run), book.Look
	a.parts["cdi"] = specs
	a.own.CDISpecs(specs.Written)
	a.parts["plugin"] = gatedPlugin{rules: book, Plugin: plugin.New(plugin.Options{
		Dir: a.hw.devicePluginDir, Look: book.Gate(a.board.Look), Rules: book.Look, Links: a.monitor.Links, Holders: a.holders.Look,
		Fit: func(ctx context.Context, ask plugin.Ask) error { return a.readers.Fit(ctx, ask.Device, ask.Alone) },
		Log: a.log.With("part", "plugin"), Trace: a.registrations.listen(trace(a.own, a.holders, a.metrics)),
	})}
}

// together runs tasks until all have ended, and ends all with the first that fails.
func together(ctx context.Context, tasks []func(context.Context) error) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, task := range tasks {
		g.Go(func() error { return task(ctx) })
	}
	return g.Wait()
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
		Offers: func(resource string) {
			own.Offers(resource)
			for _, why := range plugin.Whys() {
				own.Refuses(resource, string(why))
			}
		},
		Registered: func(resource string, err error) {
			own.Registered(resource, err)
			if err == nil {
				holders.Returned()
			}
		},
		Streaming: own.Streaming, Answered: own.Answered, Released: own.Released,
		Sent: func(resource string, devices, healthy int) {
			own.Listed(resource, devices, healthy)
			holders.Told()
		},
		Refused: func(resource string, _ []device.OfferedID, why plugin.Why, _ error) {
			own.Refused(resource, string(why))
		},
		Allocated: func(resource string, ids []device.OfferedID) {
			metrics.Mark(devices(ids)...) // before a collection can see that they are allocated
			holders.Allocated(resource, ids)
		},
	}
}

// devices are those behind offered ids.
func devices(ids []device.OfferedID) []device.ID {
	all := make([]device.ID, len(ids))
	for i, id := range ids {
		all[i] = id.Device()
	}
	return all
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
