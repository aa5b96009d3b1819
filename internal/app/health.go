package app

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/incident"
	"github.com/podgauge/podgauge/internal/kmsg"
	"github.com/podgauge/podgauge/internal/state"
	"github.com/spf13/pflag"
)

// Limits of --incidents.max-count: each change writes the whole file of
// incidents, and a quarter of them has a quota of its own.
const minIncidentCount, maxIncidentCount = 4, 10_000

// healthOptions are the flags of device health and incidents.
type healthOptions struct {
	stateDir          string
	unhealthyAfter    time.Duration
	restartAfter      time.Duration
	notReadyAfter     time.Duration
	kernelLog         string
	ownersMaxAge      time.Duration
	incidentsMaxAge   time.Duration
	incidentsMaxCount int
}

func (o *healthOptions) addFlags(f *pflag.FlagSet) {
	f.StringVar(&o.stateDir, "state-dir", "", "`folder` for health and incidents, to survive a restart; empty: no folder")
	f.DurationVar(&o.unhealthyAfter, "unhealthy-after", 30*time.Second, "mark a GPU unhealthy if a driver call takes longer than this `time`")
	f.DurationVar(&o.restartAfter, "driver-restart-after", time.Minute, "exit, for a new container, if all driver calls fail for this `time`; doubled by each exit, up to 1h; 0: never")
	f.DurationVar(&o.notReadyAfter, "not-ready-after", 5*time.Minute, "a ready process turns not ready if a check of /readyz fails for this `time`")
	f.StringVar(&o.kernelLog, "kernel-log", "/dev/kmsg", "kernel log `file`, a second source of Xids; empty: no second source")
	f.DurationVar(&o.ownersMaxAge, "allocations.max-age", time.Hour, "forget the owners of an ended allocation after this `time`")
	f.DurationVar(&o.incidentsMaxAge, "incidents.max-age", 30*24*time.Hour, "forget incidents older than this `time`")
	f.IntVar(&o.incidentsMaxCount, "incidents.max-count", 1000, "keep at most this `number` of incidents, 4 to 10000, a quarter for application errors")
}

func (o *healthOptions) check() error {
	switch {
	case o.unhealthyAfter < time.Second:
		return errors.New("--unhealthy-after: expected at least 1s")
	case o.restartAfter != 0 && o.restartAfter < time.Second:
		return errors.New("--driver-restart-after: expected 0 or at least 1s")
	case o.notReadyAfter < time.Second:
		return errors.New("--not-ready-after: expected at least 1s")
	case o.ownersMaxAge < time.Second:
		return errors.New("--allocations.max-age: expected at least 1s")
	case o.incidentsMaxAge < time.Minute:
		return errors.New("--incidents.max-age: expected at least 1m")
	case o.incidentsMaxCount < minIncidentCount || o.incidentsMaxCount > maxIncidentCount:
		return fmt.Errorf("--incidents.max-count: expected %d to %d", minIncidentCount, maxIncidentCount)
	}
	return nil
}

// addHealth adds the Monitor, the incidents and, with a state folder, the Store. The history is of an earlier process.
func (a *app) addHealth() (history device.HealthHistory) {
	o := a.o.health
	monitorOptions := device.MonitorOptions{
		Log: a.log.With("component", "monitor"), UnhealthyTimeout: o.unhealthyAfter, RestartAfter: o.restartAfter,
		Driver: &a.node.Driver, IsAllocated: a.node.IsAllocated, Policy: a.node.XidPolicy,
		ExpectedGPUs: a.node.ExpectedGPUs,
	}
	incidentOptions := incident.Options{
		Devices: &a.node.Devices, Allocations: &a.node.Allocations, Terminations: a.node.Terminations,
		Incidents: &a.node.Incidents, MaxAge: o.incidentsMaxAge, MaxIncidents: o.incidentsMaxCount,
		Log: a.log.With("component", "incidents"),
	}
	if o.stateDir == "" {
		a.log.Info("no --state-dir, health and incidents are lost at a restart")
	} else {
		log := a.log.With("component", "state")
		a.state, history, incidentOptions.Stored = state.Open(o.stateDir, state.BootIDPath, &a.node.StateFile, log)
		monitorOptions.Store, incidentOptions.Store = a.state, a.state
		a.tasks = append(a.tasks, a.state.Run, a.serveSocket)
	}
	a.incidents = incident.New(incidentOptions)
	monitorOptions.History, monitorOptions.OnHealthEvent = history, a.incidents.Record
	a.monitor = device.NewMonitor(a.machine.Backend, a.readers, &a.node.Devices, monitorOptions)
	return history
}

// addKernelLog adds the kernel log as a second source of Xids, unless the devices are simulated.
func (a *app) addKernelLog(history device.HealthHistory) {
	if path := a.o.health.kernelLog; path != "" && a.machine.Library != nil {
		a.tasks = append(a.tasks, kmsg.NewReader(path, kernelXids{a.monitor, a.machine.Library, history}, a.log.With("component", "kmsg")).Run)
	}
}

// kernelXids passes the Xids of the kernel log to the Monitor.
type kernelXids struct {
	*device.Monitor
	library DriverLibrary
	history device.HealthHistory // of earlier processes
}

func (k kernelXids) EventOf(l kmsg.XidLine) (device.Event, bool) {
	return k.library.XidEventAt(l.PCI, l.Xid, l.GI, l.CI)
}

// LastReported returns the time of the last such event in an earlier process; zero: no such event.
func (k kernelXids) LastReported(e device.Event) (last time.Time) {
	for _, r := range k.history.Records {
		for _, x := range r.Xids {
			if r.GPU == e.GPU && r.Device == "" && x.Code == e.Xid {
				last = slices.MaxFunc([]time.Time{last, x.Last, x.LastHistorical}, time.Time.Compare)
			}
		}
	}
	return last
}
