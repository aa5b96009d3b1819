package status

import (
	"fmt"
	"strings"
)

const (
	sparkHeight = 16 // of 100 %
	maxSlotGap  = 4  // slots without a reading within a line
)

// sparkline is a line through the points of a measure, one unit wide for each
// slot.
type sparkline struct{ Label, Path string }

// newSparkline returns the line of a measure; nil without a point.
func newSparkline(measure string, points slotPoints) *sparkline {
	var path strings.Builder
	low, high := 100, 0
	last := -1 // slot of the latest point
	for slot, point := range points {
		if point == 0 {
			continue
		}
		percent := int(point) - 1
		low, high = min(low, percent), max(high, percent)
		y := sparkHeight - (percent*sparkHeight+50)/100
		if last < 0 || slot-last > maxSlotGap {
			fmt.Fprintf(&path, "M%d %dh0", slot, y) // a dot, also without a next point
		} else {
			fmt.Fprintf(&path, "L%d %d", slot, y)
		}
		last = slot
	}
	if last < 0 {
		return nil
	}
	return &sparkline{
		Label: fmt.Sprintf("%s of the last 30 min: %d to %d %%", measure, low, high),
		Path:  path.String(),
	}
}
