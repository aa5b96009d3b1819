// Package capture records the answers of NVML to podgauge in a file: the
// functions that podgauge calls, its fields, the MIG layout, the registration
// of events, present and absent symbols, and the time of each call. The names
// and numbers by which people know a machine are masked.
package capture

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/nvml"
	"github.com/podgauge/podgauge/internal/nvml/lib"
	"github.com/podgauge/podgauge/internal/retry"
)

const (
	// callTimeout is the time for a listing, and for the calls about a GPU. The
	// first listing initializes the driver: seconds for each GPU without
	// persistence mode.
	callTimeout  = 5 * time.Second
	firstTimeout = 30 * time.Second
	// The last round has the second sample of GPM, ten seconds after the first.
	rounds        = 6
	roundInterval = 2 * time.Second
)

// Run opens the driver's library, makes the calls of a daemon for ten seconds,
// and writes the answers. A GPU that hangs is not called again. No call changes
// the node.
func Run(ctx context.Context, o nvml.Options, version string, w io.Writer) (err error) {
	r := &recorder{answers: map[string]*Answer{}}
	if o.Library == nil {
		if o.Library, err = lib.FindLibrary(o.DriverRoots); err != nil {
			return err
		}
	}
	o.Library, o.PerLink = NewTap(o.Library, r.answer), true
	b := nvml.New(o)
	hanging := map[device.GPU]bool{} // "": the library
	run := func(id device.GPU, timeout time.Duration, calls func(context.Context) []device.Device) []device.Device {
		if hanging[id] {
			return nil
		}
		devices, inTime := retry.WithTimeout(ctx, timeout, calls)
		hanging[id] = !inTime
		return devices
	}
	list := func(ctx context.Context) []device.Device {
		devices, _ := b.Devices(ctx) // here and below, errors are answers
		return devices
	}
	run("", firstTimeout, list)
	began := time.Now()
	for i := range rounds {
		_ = retry.Sleep(ctx, time.Until(began.Add(time.Duration(i)*roundInterval)))
		for _, d := range run("", callTimeout, list) {
			if d.WholeGPU() {
				run(d.GPU, callTimeout, func(context.Context) []device.Device { return readGPU(b, d) })
			}
		}
		run("", callTimeout, func(ctx context.Context) []device.Device {
			if i == 0 {
				_, _ = b.Links(ctx)
			}
			_, _ = b.Wait(ctx)
			return nil
		})
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("interrupted: %w", err)
	}
	return r.write(w, version)
}

func readGPU(b *nvml.Backend, d device.Device) []device.Device {
	_, _ = b.Check(d.GPU)
	_, _ = b.Read(d.GPU)
	_, _ = b.ReadProcessUsage(d.GPU)
	_, _ = b.Processes(d)
	return nil
}
