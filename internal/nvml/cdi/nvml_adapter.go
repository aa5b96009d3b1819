package cdi

import (
	"errors"

	nvlib "github.com/NVIDIA/go-nvlib/pkg/nvlib/device"
	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/podgauge/podgauge/internal/device"
)

// nvcdi asks NVML for little, and all of it was asked before: so it gets the
// inventory in the shape of NVML. The interfaces are large, and only what nvcdi
// calls for whole GPUs has a method here; the rest is nil, and a call of it panics
// and is caught. A test reads nvcdi's source and holds the list of what it calls.

// nvmlAdapter is all of NVML that nvcdi calls itself.
type nvmlAdapter struct {
	nvml.Interface
	driverVersion string
}

// Init is answered so that nvcdi may go on. The driver is not its to begin or end.
func (a nvmlAdapter) Init() nvml.Return { return nvml.SUCCESS }

// Shutdown ends nothing.
func (a nvmlAdapter) Shutdown() nvml.Return { return nvml.SUCCESS }

// SystemGetDriverVersion tells the driver's libraries from other files.
func (a nvmlAdapter) SystemGetDriverVersion() (string, nvml.Return) {
	return a.driverVersion, nvml.SUCCESS
}

// deviceLibAdapter is one GPU, in the shape of go-nvlib's list of all.
type deviceLibAdapter struct {
	nvlib.Interface
	gpu deviceAdapter
}

// VisitDevices visits the GPU.
func (a deviceLibAdapter) VisitDevices(visit func(int, nvlib.Device) error) error {
	return visit(a.gpu.device.Index, a.gpu)
}

// VisitMigDevices visits none: nvcdi would ask for their profiles, and find their
// nodes in the proc of this process alone. Our listing has them.
func (a deviceLibAdapter) VisitMigDevices(func(int, nvlib.Device, int, nvlib.MigDevice) error) error {
	return nil
}

// NewDeviceByUUID finds the GPU again.
func (a deviceLibAdapter) NewDeviceByUUID(uuid string) (nvlib.Device, error) {
	if uuid != string(a.gpu.device.GPU) {
		return nil, errors.New(uuid + " is not listed")
	}
	return a.gpu, nil
}

// deviceAdapter is one, also one that has slices.
type deviceAdapter struct {
	nvlib.Device
	device device.Device
}

// GetUUID is the GPU's, also where the device is a slice.
func (a deviceAdapter) GetUUID() (string, nvml.Return) { return string(a.device.GPU), nvml.SUCCESS }

// GetMinorNumber is the N of /dev/nvidiaN. It is known, or nvcdi is not asked.
func (a deviceAdapter) GetMinorNumber() (int, nvml.Return) { return a.device.Minor, nvml.SUCCESS }

// GetPCIBusID leads to the GPU's nodes for graphics.
func (a deviceAdapter) GetPCIBusID() (string, error) { return a.device.PCI, nil }

// IsMigEnabled says no, or nvcdi would leave the GPU out.
func (a deviceAdapter) IsMigEnabled() (bool, error) { return false, nil }

// IsCoherent is asked for with a feature flag, and not known: nvcdi then leaves
// the annotation out.
func (a deviceAdapter) IsCoherent() (bool, error) { return false, errors.New("is not known") }
