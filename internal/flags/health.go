package flags

import (
	"errors"
	"fmt"
	"time"

	"github.com/podgauge/podgauge/internal/config"
	"github.com/spf13/pflag"
)

// Limits of --incidents.max-count: each change writes the whole file of
// incidents, and a quarter of them has a quota of its own.
const minIncidentCount, maxIncidentCount = 4, 10_000

// Health are the flags of device health and incidents.
type Health struct {
	StateDir          string
	RetiredFile       string
	UnhealthyAfter    time.Duration
	RestartAfter      time.Duration
	NotReadyAfter     time.Duration
	KernelLog         string
	FabricManager     bool
	OwnersMaxAge      time.Duration
	IncidentsMaxAge   time.Duration
	IncidentsMaxCount int
}

func (o *Health) addFlags(f *pflag.FlagSet) {
	f.StringVar(&o.StateDir, "state-dir", "",
		"`folder` for health and incidents, to survive a restart; empty: no folder")
	f.StringVar(&o.RetiredFile, "retired-file", "/etc/podgauge/retired/"+config.RetiredFile,
		"`file` with the retired devices of all nodes; podgauge follows changes; a file missing for 10 minutes: none")
	f.DurationVar(&o.UnhealthyAfter, "unhealthy-after", 30*time.Second,
		"mark a GPU unhealthy if a driver call takes longer than this `time`")
	f.DurationVar(&o.RestartAfter, "driver-restart-after", time.Minute,
		"exit, for a new container, if all driver calls fail for this `time`; doubled by each exit, up to 1h; "+
			"0: never")
	f.DurationVar(&o.NotReadyAfter, "not-ready-after", 5*time.Minute,
		"a ready process turns not ready if a check of /readyz fails for this `time`")
	f.StringVar(&o.KernelLog, "kernel-log", "/dev/kmsg",
		"kernel log `file`, a second source of Xids and the source of NVSwitch errors; empty: neither")
	f.BoolVar(&o.FabricManager, "health.fabric-manager", false,
		"on a node with NVSwitches, mark GPUs before Hopper unhealthy while none has an active NVLink; "+
			"unproven on hardware")
	f.DurationVar(&o.OwnersMaxAge, "allocations.max-age", time.Hour,
		"forget the owners of an ended allocation after this `time`")
	f.DurationVar(&o.IncidentsMaxAge, "incidents.max-age", 30*24*time.Hour,
		"forget incidents older than this `time`")
	f.IntVar(&o.IncidentsMaxCount, "incidents.max-count", 1000,
		"keep at most this `number` of incidents, 4 to 10000, a quarter for application errors")
}

func (o *Health) check() error {
	switch {
	case o.UnhealthyAfter < time.Second:
		return errors.New("--unhealthy-after: expected at least 1s")
	case o.RestartAfter != 0 && o.RestartAfter < time.Second:
		return errors.New("--driver-restart-after: expected 0 or at least 1s")
	case o.NotReadyAfter < time.Second:
		return errors.New("--not-ready-after: expected at least 1s")
	case o.OwnersMaxAge < time.Second:
		return errors.New("--allocations.max-age: expected at least 1s")
	case o.IncidentsMaxAge < time.Minute:
		return errors.New("--incidents.max-age: expected at least 1m")
	case o.IncidentsMaxCount < minIncidentCount || o.IncidentsMaxCount > maxIncidentCount:
		return fmt.Errorf("--incidents.max-count: expected %d to %d", minIncidentCount, maxIncidentCount)
	}
	return nil
}
