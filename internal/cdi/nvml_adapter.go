package cdi

import (
	"errors"

	nvlib "github.com/NVIDIA/go-nvlib/pkg/nvlib/device"
	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/podgauge/podgauge/internal/device"
)

// The adapters answer nvcdi's NVML calls from the inventory. Only the methods
// that nvcdi calls for whole GPUs exist; any other method is nil, and
// specBuilder.build recovers from the panic.

// nvmlAdapter is the library for nvcdi itself.
type nvmlAdapter struct {
	nvml.Interface
	driverVersion string
}

// Init and Shutdown do nothing: the Backend owns the driver.
func (a nvmlAdapter) Init() nvml.Return     { return nvml.SUCCESS }
func (a nvmlAdapter) Shutdown() nvml.Return { return nvml.SUCCESS }

// SystemGetDriverVersion returns the version in the names of the driver's
// libraries.
func (a nvmlAdapter) SystemGetDriverVersion() (string, nvml.Return) {
	return a.driverVersion, nvml.SUCCESS
}

// deviceLibAdapter is a node with a single GPU.
type deviceLibAdapter struct {
	nvlib.Interface
	gpu deviceAdapter
}

func (a deviceLibAdapter) VisitDevices(visit func(int, nvlib.Device) error) error {
	return visit(a.gpu.device.Index, a.gpu)
}

// VisitMigDevices visits none. nvcdi would look for device nodes in the /proc
// of this process; the inventory has the nodes.
func (a deviceLibAdapter) VisitMigDevices(func(int, nvlib.Device, int, nvlib.MigDevice) error) error {
	return nil
}

func (a deviceLibAdapter) NewDeviceByUUID(uuid string) (nvlib.Device, error) {
	if uuid != string(a.gpu.device.GPU) {
		return nil, errors.New(uuid + " is not listed")
	}
	return a.gpu, nil
}

// deviceAdapter is the GPU of a device.
type deviceAdapter struct {
	nvlib.Device
	device device.Device
}

// GetUUID returns the GPU's UUID, also for a MIG device.
func (a deviceAdapter) GetUUID() (string, nvml.Return) { return string(a.device.GPU), nvml.SUCCESS }

// GetMinorNumber returns the number in /dev/nvidiaN. gpuEdits rejects a device
// without the number.
func (a deviceAdapter) GetMinorNumber() (int, nvml.Return) { return a.device.Minor, nvml.SUCCESS }

// GetPCIBusID returns the address that nvcdi finds the nodes for graphics by.
func (a deviceAdapter) GetPCIBusID() (string, error) { return a.device.PCI, nil }

// IsMigEnabled returns false, because nvcdi skips a MIG-enabled GPU.
func (a deviceAdapter) IsMigEnabled() (bool, error) { return false, nil }

// IsCoherent returns an error: nvcdi then omits the annotation of a feature
// flag.
func (a deviceAdapter) IsCoherent() (bool, error) { return false, errors.New("coherence is unknown") }
