package nvml

import (
	"math"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/podgauge/podgauge/internal/device"
)

// migState is how a GPU is partitioned, as far as readings need it. It is never written.
type migState struct {
	// capable is true if the GPU has MIG mode, pendingEnabled if the mode will be on after a reset.
	capable, enabled, pendingEnabled bool
	// denied is true if the GPU has said often enough that it has no such mode.
	denied  bool
	devices []migDevice
}

// migDevice is a MIG device of a listing.
type migDevice struct {
	id     device.ID
	gi, ci int
	handle nvml.Device // nil: the listing could not have it
}

// NoInstanceID stands where the number of a GPU or compute instance would, for a report
// that names none.
const NoInstanceID = math.MaxUint32

// deviceID is the slice that an event of a GPU names. It names none where it lacks
// the numbers, which the driver gives to the privileged only, or where they are of no
// slice that is listed: then it is the GPU's. That of a GPU instance alone names the slice
// where that is the only one in it.
func (s *migState) deviceID(gi, ci uint32) device.ID {
	var only device.ID
	inside := 0
	for _, d := range s.devices {
		if gi == NoInstanceID || uint32(d.gi) != gi {
			continue
		}
		if uint32(d.ci) == ci {
			return d.id
		}
		only = d.id
		inside++
	}
	if ci == NoInstanceID && inside == 1 {
		return only
	}
	return ""
}
