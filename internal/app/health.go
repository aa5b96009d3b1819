package app

import (
	"errors"
	"fmt"
	"time"

	"github.com/podgauge/podgauge/internal/config"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/incident"
	"github.com/podgauge/podgauge/internal/nvml/kmsg"
	"github.com/podgauge/podgauge/internal/state"
	"github.com/podgauge/podgauge/internal/state/disk"
	"github.com/spf13/pflag"
)

// maxIncidentCount bounds --incidents.max-count: incidents are one file, which is written as a whole.
const maxIncidentCount = 10_000

// healthOptions are the part of the command line that says what makes a device ill, and
// what is remembered of that.
type healthOptions struct {
	stateDir          string
	unhealthyAfter    time.Duration
	kernelLog         string
	ownersMaxAge      time.Duration
	incidentsMaxAge   time.Duration
	incidentsMaxCount int
}

func (o *healthOptions) addFlags(f *pflag.FlagSet) {
	f.StringVar(&o.stateDir, "state-dir", "", "`folder` of this program's own, in which health and incidents outlive it; empty: nothing does")
	f.DurationVar(&o.unhealthyAfter, "unhealthy-after", 30*time.Second, "a GPU is unhealthy when a call to its driver has not come back for this `time`")
	f.StringVar(&o.kernelLog, "kernel-log", "/dev/kmsg", "kernel's log `file`, a second witness of Xids where it can be read; empty: none")
	f.DurationVar(&o.ownersMaxAge, "holders.max-age", time.Hour, "forget who held a device this `time` after its end")
	f.DurationVar(&o.incidentsMaxAge, "incidents.max-age", 30*24*time.Hour, "forget incidents that are older than this `time`")
	f.IntVar(&o.incidentsMaxCount, "incidents.max-count", 1000, "forget the oldest of more than this `number` of incidents, 10000 at most")
}

func (o *healthOptions) check() error {
	switch {
	case o.unhealthyAfter < time.Second:
		return errors.New("--unhealthy-after: want a second or more")
	case o.ownersMaxAge < time.Second:
		return errors.New("--holders.max-age: want a second or more")
	case o.incidentsMaxAge < time.Minute:
		return errors.New("--incidents.max-age: want a minute or more")
	case o.incidentsMaxCount < 1 || o.incidentsMaxCount > maxIncidentCount:
		return fmt.Errorf("--incidents.max-count: want 1 to %d", maxIncidentCount)
	}
	return nil
}

// openState opens the state folder, if there is one, and returns the devices' health in the previous process.
func (a *app) openState(dir string) (history device.HealthHistory) {
	if dir == "" {
		a.log.Info("health and incidents are forgotten with this process: there is no --state-dir")
		return history
	}
	a.stateFolder = disk.OpenFolder(dir)
	a.state, history = state.Open(state.Options{Folder: a.stateFolder, Log: a.log.With("part", "state")})
	return history
}

// newMonitor returns the Monitor of the node's devices.
func (a *app) newMonitor(o healthOptions, history device.HealthHistory) *device.Monitor {
	options := device.MonitorOptions{
		Log: a.log.With("part", "monitor"), UnhealthyTimeout: o.unhealthyAfter, History: history,
		IsAllocated: a.isAllocated, Policy: a.xidPolicy, OnHealthEvent: a.incidents.Record,
	}
	if a.state != nil {
		options.Store = a.state
	}
	return device.NewMonitor(a.backend.Backend, a.readers, a.board, options)
}

// isAllocated reports whether a container has the device.
func (a *app) isAllocated(id device.ID) bool {
	allocations, _ := a.podResources.Snapshot()
	return len(allocations.ForDevice(id)) > 0
}

// xidPolicy returns the configured policy for an Xid.
func (a *app) xidPolicy(xid uint64) device.Policy {
	settings, _ := a.configWatcher.Get()
	return xidPolicies[settings.Health.Policy(xid)]
}

// newIncidentLog returns the log of incidents and the containers that each affected.
func (a *app) newIncidentLog(o healthOptions) *incident.Log {
	return incident.New(incident.Options{
		Folder: a.stateFolder, MaxAge: o.incidentsMaxAge, MaxIncidents: o.incidentsMaxCount,
		Allocations: a.podResources.Snapshot, Statuses: a.board.Get, Terminations: a.pods.TerminationLookup, Log: a.log.With("part", "incidents"),
	})
}

// addKernelLog adds the kernel log as a second source of Xids, unless the driver is simulated.
func (a *app) addKernelLog(path string, history device.HealthHistory) {
	if path == "" || a.backend.xidEventAt == nil {
		return
	}
	a.tasks = append(a.tasks, kmsg.NewReader(path, kernelXids{a.monitor, a.backend, history}, a.log.With("part", "kmsg")).Run)
}

// kernelXids passes the Xids of the kernel log to the Monitor.
type kernelXids struct {
	*device.Monitor
	backend *nodeBackend
	history device.HealthHistory // of earlier processes
}

func (k kernelXids) EventOf(l kmsg.XidLine) (device.Event, bool) {
	return k.backend.xidEventAt(l.PCI, l.Xid, l.GI, l.CI)
}

func (k kernelXids) LastReported(e device.Event) time.Time { return lastReported(k.history, e) }

// lastReported returns when such an event last happened of which an earlier process knew; zero if
// none has.
func lastReported(h device.HealthHistory, e device.Event) time.Time {
	for _, r := range h.Records {
		if r.GPU != e.GPU || r.Device != "" {
			continue
		}
		for _, x := range r.Xids {
			if x.Code == e.Xid {
				if x.LastHistorical.After(x.Last) {
					return x.LastHistorical
				}
				return x.Last
			}
		}
	}
	return time.Time{}
}

// xidPolicies are the config's, as the Monitor knows them.
var xidPolicies = map[config.XidPolicy]device.Policy{
	config.XidDefault: device.PolicyDefault, config.XidIgnore: device.PolicyIgnore, config.XidWarn: device.PolicyWarn, config.XidUnhealthy: device.PolicyUnhealthy,
}

// closeState writes what was known at the end. The Monitor has returned by then.
func (a *app) closeState() {
	if a.state != nil {
		a.state.End()
	}
}
