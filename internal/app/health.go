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

// openState has the devices' health outlive the process, where there is a folder for it, and
// returns what says why it does not.
func (a *app) openState(dir string) func() error {
	if dir == "" {
		a.log.Info("health and incidents are forgotten with this process: there is no --state-dir")
		return nil
	}
	a.stateFolder = disk.OpenFolder(dir)
	a.state, a.monitor.PreviousHistory = state.Open(state.Options{Folder: a.stateFolder, Log: a.log.With("part", "state")})
	a.monitor.SaveHistory, a.monitor.SavedHistory = a.state.Save, a.state.ExportedCounts
	return a.state.Err
}

// addIncidents has those be named who hold a device when it goes bad.
func (a *app) addIncidents(o healthOptions) {
	a.monitor.UnhealthyTimeout = o.unhealthyAfter
	if a.state != nil {
		a.tasks = append(a.tasks, a.state.Run)
	}
	a.incidents = incident.New(incident.Options{
		Folder: a.stateFolder, MaxAge: o.incidentsMaxAge, MaxIncidents: o.incidentsMaxCount,
		Allocations: a.podResources.Snapshot, Statuses: a.board.Get, Terminations: a.pods.TerminationLookup, Log: a.log.With("part", "incidents"),
	})
	a.monitor.OnHealthEvent = a.incidents.Record
	a.components["incidents"] = a.incidents
}

// incidentSnapshot are the incidents as they were published last.
func (a *app) incidentSnapshot() incident.Snapshot {
	snapshot, _ := a.incidents.Get()
	return snapshot
}

// addKernelLog has the kernel's log be a second witness, where the driver is a real one.
func (a *app) addKernelLog(path string) {
	if path == "" || a.backend.xidEventAt == nil {
		return
	}
	history := a.monitor.PreviousHistory
	a.tasks = append(a.tasks, kmsg.NewReader(kmsg.Options{
		Path: path, Report: a.monitor.Report,
		EventOf:      func(l kmsg.XidLine) (device.Event, bool) { return a.backend.xidEventAt(l.PCI, l.Xid, l.GI, l.CI) },
		LastReported: func(e device.Event) time.Time { return lastReported(history, e) },
		Log:          a.log.With("part", "kmsg"),
	}).Run)
}

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
