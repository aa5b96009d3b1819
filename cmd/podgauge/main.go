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

func main() { os.Exit(app.Main(nvidiaPlatform{})) }

// nvidiaPlatform is the platform of NVIDIA's driver.
type nvidiaPlatform struct{}

func (nvidiaPlatform) Simulated() bool { return false }

func (nvidiaPlatform) AddFlags(*pflag.FlagSet) {}

func (nvidiaPlatform) CheckFlags(bool) error { return nil }

func (nvidiaPlatform) Open(o app.OpenOptions) (device.Backend, app.SimulatedNode, error) {
	return nvml.New(nvml.Options{DriverRoots: o.DriverRoots, PerLink: o.PerLink}), nil, nil
}

func (nvidiaPlatform) Driver(roots []string) doctor.DriverProbe {
	return driverProbe{nvml.New(nvml.Options{DriverRoots: roots})}
}

func (nvidiaPlatform) ClaimedDevice(c device.Claim, statuses []device.Status) (device.ID, bool) {
	return nvml.ClaimedDevice(c, statuses)
}

// driverProbe is the driver as doctor reads it.
type driverProbe struct{ *nvml.Backend }

func (d driverProbe) Library() doctor.Library {
	info := d.LibraryInfo()
	return doctor.Library{Path: info.Library, Version: info.Version, MissingFunctions: info.MissingFunctions, MissingFamilies: d.MissingFamilies()}
}
