package status

import (
	"strconv"
	"sync"
	"time"

	"github.com/podgauge/podgauge/internal/device"
)

// Bounds of a ReadingHistory: half an hour of points, and the devices with points. 64 GPUs need 20 kB, all devices 100 kB.
const (
	historySlots  = 60
	slotDuration  = 30 * time.Second
	maxHistories  = 384
	maxSlotGap    = 4 // slots without a reading within a line
	sparkHeight   = 16
	percentOffset = 1 // added to each point; 0 is no reading
)

// The measures of a device, each a ratio.
const (
	useMeasure = iota
	memoryMeasure
	powerMeasure
	measureCount
)

// slotPoints are the readings of a measure, one byte each, oldest first if returned by points.
type slotPoints [historySlots]uint8

// ReadingHistory has the readings of the last half hour, as far as collections took place: it causes none. A point is the newest reading in
// its slot.
type ReadingHistory struct {
	mu      sync.Mutex
	begin   time.Time // of slot 0
	slot    int       // newest
	devices map[device.ID]*[measureCount]slotPoints
}

// Record adds the readings of a collection. Later readings of a slot replace earlier ones.
func (h *ReadingHistory) Record(at time.Time, readings map[device.ID]DeviceReading) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.devices == nil {
		h.begin, h.devices = at, map[device.ID]*[measureCount]slotPoints{}
	}
	h.advance(int(at.Sub(h.begin) / slotDuration))
	for id, reading := range readings {
		points := h.devices[id]
		if points == nil && len(h.devices) < maxHistories {
			points = new([measureCount]slotPoints)
			h.devices[id] = points
		}
		if points == nil {
			continue
		}
		for measure := range points {
			if ratio, ok := reading.ratio(measure); ok {
				points[measure][h.slot%historySlots] = uint8(100*max(0, min(ratio, 1))+0.5) + percentOffset
			}
		}
	}
}

// advance begins a slot: it clears the slots since the newest one, and forgets devices without a point.
func (h *ReadingHistory) advance(slot int) {
	if slot <= h.slot {
		return
	}
	first := max(h.slot+1, slot-historySlots+1)
	for id, points := range h.devices {
		for measure := range points {
			for s := first; s <= slot; s++ {
				points[measure][s%historySlots] = 0
			}
		}
		if *points == ([measureCount]slotPoints{}) {
			delete(h.devices, id)
		}
	}
	h.slot = slot
}

// points returns the points of a device up to now, oldest first.
func (h *ReadingHistory) points(id device.ID, now time.Time) (ordered [measureCount]slotPoints) {
	if h == nil {
		return ordered
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	points := h.devices[id]
	if points == nil {
		return ordered
	}
	newest := max(h.slot, int(now.Sub(h.begin)/slotDuration))
	for i := range historySlots {
		slot := newest - historySlots + 1 + i
		if slot < 0 || slot <= h.slot-historySlots || slot > h.slot {
			continue
		}
		for measure := range points {
			ordered[measure][i] = points[measure][slot%historySlots]
		}
	}
	return ordered
}

// sparkline is a line through the points of a measure. Low and High are percentages. Without points Path is empty.
type sparkline struct {
	Path      string
	Low, High int
}

// newSparkline draws a line of one unit a slot, and of sparkHeight for 100 %, with relative and joined steps: a page has hundreds of them.
func newSparkline(points *slotPoints) (s sparkline) {
	var buffer [8 * historySlots]byte
	path := buffer[:0]
	drawn, lastX, lastY := 0, -1, 0 // path ends at (drawn, lastY), the line at (lastX, lastY)
	isDot := false                  // nothing is drawn since the latest move
	drawFlat := func() {
		if lastX > drawn || isDot {
			path = strconv.AppendInt(append(path, 'h'), int64(lastX-drawn), 10)
		}
		isDot = false
	}
	s.Low = 100
	for x, point := range points {
		if point == 0 {
			continue
		}
		percent := int(point - percentOffset)
		s.Low, s.High = min(s.Low, percent), max(s.High, percent)
		y := sparkHeight - (percent*sparkHeight+50)/100
		switch {
		case lastX < 0 || x-lastX > maxSlotGap:
			drawFlat()
			path = appendPair(append(path, 'M'), x, y)
			drawn, isDot = x, true
		case y != lastY:
			if lastX > drawn {
				drawFlat()
			}
			path = appendPair(append(path, 'l'), x-lastX, y-lastY)
			drawn, isDot = x, false
		}
		lastX, lastY = x, y
	}
	drawFlat()
	s.Path = string(path)
	return s
}

func appendPair(path []byte, x, y int) []byte {
	path = strconv.AppendInt(path, int64(x), 10)
	if y >= 0 {
		path = append(path, ' ')
	}
	return strconv.AppendInt(path, int64(y), 10)
}
