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

// mostIncidents bounds --incidents.max-count: incidents are one file, which is written as a whole.
const mostIncidents = 10_000

// healthOptions are the part of the command line that says what makes a device ill, and
// what is remembered of that.
type healthOptions struct {
	stateDir       string
	unhealthyAfter time.Duration
	kernelLog      string
	holdersFor     time.Duration
	maxAge         time.Duration
	maxIncidents   int
}

func (m *healthOptions) flags(f *pflag.FlagSet) {
	f.StringVar(&m.stateDir, "state-dir", "", "`folder` of this program's own, in which health and incidents outlive it; empty: nothing does")
	f.DurationVar(&m.unhealthyAfter, "unhealthy-after", 30*time.Second, "a GPU is unhealthy when a call to its driver has not come back for this `time`")
	f.StringVar(&m.kernelLog, "kernel-log", "/dev/kmsg", "kernel's log `file`, a second witness of Xids where it can be read; empty: none")
	f.DurationVar(&m.holdersFor, "holders.max-age", time.Hour, "forget who held a device this `time` after its end")
	f.DurationVar(&m.maxAge, "incidents.max-age", 30*24*time.Hour, "forget incidents that are older than this `time`")
	f.IntVar(&m.maxIncidents, "incidents.max-count", 1000, "forget the oldest of more than this `number` of incidents, 10000 at most")
}

func (m *healthOptions) check() error {
	switch {
	case m.unhealthyAfter < time.Second:
		return errors.New("--unhealthy-after: want a second or more")
	case m.holdersFor < time.Second:
		return errors.New("--holders.max-age: want a second or more")
	case m.maxAge < time.Minute:
		return errors.New("--incidents.max-age: want a minute or more")
	case m.maxIncidents < 1 || m.maxIncidents > mostIncidents:
		return fmt.Errorf("--incidents.max-count: want 1 to %d", mostIncidents)
	}
	return nil
}

// recall has the devices' health outlive the process, where there is a folder for it, and
// returns what says why it does not.
func (a *assembly) recall(dir string) func() error {
	if dir == "" {
		a.log.Info("health and incidents are forgotten with this process: there is no --state-dir")
		return nil
	}
	a.folder = disk.OpenFolder(dir)
	a.state, a.monitor.Remembered = state.Open(state.Options{Folder: a.folder, Log: a.log.With("part", "state")})
	a.monitor.Remember, a.monitor.Counted = a.state.Save, a.state.Counted
	return a.state.Err
}

// remember has those be named who hold a device when it goes bad.
func (a *assembly) remember(m healthOptions) {
	a.monitor.UnhealthyAfter = m.unhealthyAfter
	if a.state != nil {
		a.tasks = append(a.tasks, a.state.Run)
	}
	a.incidents = incident.New(incident.Options{
		Folder: a.folder, MaxAge: m.maxAge, MaxIncidents: m.maxIncidents,
		Holders: a.holders.Look, Board: a.board.Look, Pods: a.pods.Fates, Log: a.log.With("part", "incidents"),
	})
	a.monitor.Happened = a.incidents.Happened
	a.parts["incidents"] = a.incidents
}

// incidentsKnown are the incidents as they were published last.
func (a *assembly) incidentsKnown() incident.Known {
	known, _ := a.incidents.Look()
	return known
}

// listen has the kernel's log be a second witness, where the driver is a real one.
func (a *assembly) listen(path string) {
	if path == "" || a.hw.xidAt == nil {
		return
	}
	remembered := a.monitor.Remembered
	a.tasks = append(a.tasks, kmsg.NewReader(kmsg.Options{
		Path: path, Report: a.monitor.Report,
		Event:      func(l kmsg.Line) (device.Event, bool) { return a.hw.xidAt(l.PCI, l.Xid, l.GI, l.CI) },
		Remembered: func(e device.Event) time.Time { return reported(remembered, e) },
		Log:        a.log.With("part", "kmsg"),
	}).Run)
}

// reported returns when such an event last happened of which an earlier process knew; zero if
// none has.
func reported(h device.History, e device.Event) time.Time {
	for _, r := range h.Records {
		if r.GPU != e.GPU || r.Device != "" {
			continue
		}
		for _, x := range r.Xids {
			if x.Code == e.Xid {
				if x.Past.After(x.Last) {
					return x.Past
				}
				return x.Last
			}
		}
	}
	return time.Time{}
}

// xidPolicies are the config's, as the Monitor knows them.
var xidPolicies = map[config.Policy]device.Policy{
	config.Default: device.ByTable, config.Ignore: device.Ignore, config.Warn: device.Warn, config.Unhealthy: device.Condemn,
}

// end writes what was known at the end. The Monitor has returned by then.
func (a *assembly) end() {
	if a.state != nil {
		a.state.End()
	}
}
