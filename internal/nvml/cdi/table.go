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

// library is all of NVML that nvcdi calls itself.
type library struct {
	nvml.Interface
	driverVersion string
}

// Init is answered so that nvcdi may go on. The driver is not its to begin or end.
func (l library) Init() nvml.Return { return nvml.SUCCESS }

// Shutdown ends nothing.
func (l library) Shutdown() nvml.Return { return nvml.SUCCESS }

// SystemGetDriverVersion tells the driver's libraries from other files.
func (l library) SystemGetDriverVersion() (string, nvml.Return) {
	return l.driverVersion, nvml.SUCCESS
}

// inventory is one GPU, in the shape of go-nvlib's list of all.
type inventory struct {
	nvlib.Interface
	gpu gpu
}

// VisitDevices visits the GPU.
func (i inventory) VisitDevices(visit func(int, nvlib.Device) error) error {
	return visit(i.gpu.device.Index, i.gpu)
}

// VisitMigDevices visits none: nvcdi would ask for their profiles, and find their
// nodes in the proc of this process alone. Our listing has them.
func (i inventory) VisitMigDevices(func(int, nvlib.Device, int, nvlib.MigDevice) error) error {
	return nil
}

// NewDeviceByUUID finds the GPU again.
func (i inventory) NewDeviceByUUID(uuid string) (nvlib.Device, error) {
	if uuid != string(i.gpu.device.GPU) {
		return nil, errors.New(uuid + " is not listed")
	}
	return i.gpu, nil
}

// gpu is one, also one that has slices.
type gpu struct {
	nvlib.Device
	device device.Device
}

// GetUUID is the GPU's, also where the device is a slice.
func (g gpu) GetUUID() (string, nvml.Return) { return string(g.device.GPU), nvml.SUCCESS }

// GetMinorNumber is the N of /dev/nvidiaN. It is known, or nvcdi is not asked.
func (g gpu) GetMinorNumber() (int, nvml.Return) { return g.device.Minor, nvml.SUCCESS }

// GetPCIBusID leads to the GPU's nodes for graphics.
func (g gpu) GetPCIBusID() (string, error) { return g.device.PCI, nil }

// IsMigEnabled says no, or nvcdi would leave the GPU out.
func (g gpu) IsMigEnabled() (bool, error) { return false, nil }

// IsCoherent is asked for with a feature flag, and not known: nvcdi then leaves
// the annotation out.
func (g gpu) IsCoherent() (bool, error) { return false, errors.New("is not known") }
