package collect

import (
	"math"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/podgauge/podgauge/internal/device"
)

// MIGState is the partitioning of a GPU. It is never written.
type MIGState struct {
	Capable, Enabled bool
	PendingEnabled   bool // after a reset
	// Denied is set if the GPU has said often enough that it has no MIG mode.
	Denied  bool
	Devices []MIGDevice
}

// MIGDevice is a MIG device of a listing.
type MIGDevice struct {
	ID     device.ID
	GI, CI int
	Handle nvml.Device // nil: unknown to the listing
}

// NoInstanceID replaces the number of a GPU or compute instance in a report that names none.
const NoInstanceID = math.MaxUint32

// DeviceID returns the MIG device with these instances, or the only one in the GPU instance. It is empty for numbers that are missing,
// since the driver gives them to the privileged only, or that no listed device has: then the report concerns the GPU.
func (s *MIGState) DeviceID(gi, ci uint32) device.ID {
	var only device.ID
	inside := 0
	for _, d := range s.Devices {
		if gi == NoInstanceID || uint32(d.GI) != gi {
			continue
		}
		if uint32(d.CI) == ci {
			return d.ID
		}
		only = d.ID
		inside++
	}
	if ci == NoInstanceID && inside == 1 {
		return only
	}
	return ""
}
