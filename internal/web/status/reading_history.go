package status

import (
	"sync"
	"time"

	"github.com/podgauge/podgauge/internal/device"
)

// Bounds of a ReadingHistory: half an hour of points, and the devices with
// points.
const (
	historySlots = 60
	slotDuration = 30 * time.Second
	maxHistories = 1024
)

// slotPoints are the readings of a measure, oldest first: percentages plus 1;
// 0 is no reading.
type slotPoints [historySlots]uint8

// devicePoints are the points of a device, by measure.
type devicePoints [measureCount]slotPoints

// ReadingHistory has the readings of the last half hour. A point is the newest
// reading in a slot; slots without a collection have no point.
type ReadingHistory struct {
	mu      sync.Mutex // guards all below
	newest  time.Time  // beginning of the newest slot
	devices map[device.ID]*devicePoints
}

// Record adds the readings of a collection. Later readings of a slot replace
// earlier ones.
func (h *ReadingHistory) Record(at time.Time, readings map[device.ID]DeviceReading) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.devices == nil {
		h.newest, h.devices = at, map[device.ID]*devicePoints{}
	}
	h.advance(at)
	for id, reading := range readings {
		points := h.devices[id]
		if points == nil {
			if len(h.devices) == maxHistories {
				continue
			}
			points = &devicePoints{}
			h.devices[id] = points
		}
		for measure := range points {
			if ratio, ok := reading.ratio(measure); ok {
				points[measure][historySlots-1] = 1 + uint8(100*max(0, min(ratio, 1))+0.5)
			}
		}
	}
}

// advance moves the points to older slots until now is in the newest slot, and
// forgets devices without a point.
func (h *ReadingHistory) advance(now time.Time) {
	slots := now.Sub(h.newest) / slotDuration
	if slots <= 0 {
		return
	}
	h.newest = h.newest.Add(slots * slotDuration)
	for id, old := range h.devices {
		var points devicePoints
		for measure := range old {
			copy(points[measure][:], old[measure][min(slots, historySlots):])
		}
		if points == (devicePoints{}) {
			delete(h.devices, id)
		}
		*old = points
	}
}

// points returns the points of a device up to now.
func (h *ReadingHistory) points(id device.ID, now time.Time) devicePoints {
	if h == nil {
		return devicePoints{}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.advance(now)
	if points := h.devices[id]; points != nil {
		return *points
	}
	return devicePoints{}
}
