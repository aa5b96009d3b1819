package status

import (
	"fmt"
	"strconv"
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
	var path []byte
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
			path = appendStep(path, 'M', slot, y)
			path = append(path, "h0"...) // a dot, also without a next point
		} else {
			path = appendStep(path, 'L', slot, y)
		}
		last = slot
	}
	if last < 0 {
		return nil
	}
	return &sparkline{
		Label: fmt.Sprintf("%s of the last 30 min: %d to %d %%", measure, low, high),
		Path:  string(path),
	}
}

func appendStep(path []byte, command byte, x, y int) []byte {
	path = strconv.AppendInt(append(path, command), int64(x), 10)
	return strconv.AppendInt(append(path, ' '), int64(y), 10)
}
