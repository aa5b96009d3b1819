// Command podgauge is the device plugin for a node's NVIDIA GPUs and exports
// their metrics, labelled with the pod that holds each.
package main

import (
	"context"
	"io"
	"os"

	"github.com/podgauge/podgauge/internal/app"
	"github.com/podgauge/podgauge/internal/dra"
	"github.com/podgauge/podgauge/internal/nvml"
	"github.com/podgauge/podgauge/internal/nvml/capture"
	"github.com/spf13/pflag"
)

func main() { os.Exit(app.Main(nvidiaPlatform{})) }

// nvidiaPlatform is the platform of NVIDIA's driver.
type nvidiaPlatform struct{}

func (nvidiaPlatform) AddFlags(*pflag.FlagSet) {}

func (nvidiaPlatform) Open(o app.OpenOptions) (*app.Hardware, error) {
	b := nvml.New(nvml.Options{
		DriverRoots: o.DriverRoots, PerLink: o.PerLink, Reads: o.Reads, CheckFabricManager: o.CheckFabricManager,
	})
	record := func(ctx context.Context, version string, w io.Writer) error {
		return capture.Run(ctx, nvml.Options{DriverRoots: o.DriverRoots}, version, w)
	}
	return &app.Hardware{
		Backend: b, Library: b, ClaimedDevice: dra.ClaimedDevice, Capture: record,
	}, nil
}
