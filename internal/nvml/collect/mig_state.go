package collect

import (
	"math"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/podgauge/podgauge/internal/device"
)

// MIGState is how a GPU is partitioned, as far as readings need it. It is never written.
type MIGState struct {
	// Capable is true if the GPU has MIG mode, pendingEnabled if the mode will be on after a reset.
	Capable, Enabled, PendingEnabled bool
	// Denied is true if the GPU has said often enough that it has no such mode.
	Denied  bool
	Devices []MIGDevice
}

// MIGDevice is a MIG device of a listing.
type MIGDevice struct {
	ID     device.ID
	GI, CI int
	Handle nvml.Device // nil: the listing could not have it
}

// NoInstanceID stands where the number of a GPU or compute instance would, for a report
// that names none.
const NoInstanceID = math.MaxUint32

// DeviceID is the slice that an event of a GPU names. It names none where it lacks
// the numbers, which the driver gives to the privileged only, or where they are of no
// slice that is listed: then it is the GPU's. That of a GPU instance alone names the slice
// where that is the only one in it.
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
