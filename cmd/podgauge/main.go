// Command podgauge is the device plugin for a node's NVIDIA GPUs and exports
// their metrics, labelled with the pod that holds each.
package main

import (
	"os"

	"github.com/podgauge/podgauge/internal/app"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/doctor"
	"github.com/podgauge/podgauge/internal/nvml"
	"github.com/spf13/pflag"
)

func main() { os.Exit(app.Main(nvidia{})) }

// nvidia is the platform of NVIDIA's driver.
type nvidia struct{}

func (nvidia) Simulated() bool { return false }

func (nvidia) AddFlags(*pflag.FlagSet) {}

func (nvidia) CheckFlags(bool) error { return nil }

func (nvidia) Open(o app.OpenOptions) (device.Backend, app.Node, error) {
	return nvml.New(nvml.Options{DriverRoots: o.DriverRoots, PerLink: o.PerLink}), nil, nil
}

func (nvidia) Driver(roots []string) doctor.Driver {
	return examined{nvml.New(nvml.Options{DriverRoots: roots})}
}

func (nvidia) Claimed(c device.Claim, statuses []device.Status) (device.ID, bool) {
	return nvml.Claimed(c, statuses)
}

// examined is the driver as doctor reads it.
type examined struct{ *nvml.Backend }

func (d examined) Library() doctor.Library {
	about := d.About()
	return doctor.Library{Path: about.Library, Version: about.Version, Lacks: about.Lacks, Costs: d.Missing()}
}
