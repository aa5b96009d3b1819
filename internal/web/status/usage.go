package status

import (
	"fmt"
	"strings"

	"github.com/podgauge/podgauge/internal/device"
)

// usageBar is a bar of Percent length, with the same value as text, and a line
// of the last half hour. Without a limit Percent is empty; without a value, Text
// as well.
type usageBar struct {
	Name    string
	Class   string // of the style
	Label   string // for screen readers
	Percent string
	Text    string
	Past    *sparkline // nil without a reading
}

// usageBars returns the bars of a device by measure; nil without a current or
// past value.
func (d *nodeData) usageBars(id device.ID, name string) (bars [measureCount]*usageBar) {
	reading := d.Readings.Devices[id]
	past := d.Readings.History.points(id, d.now)
	for measure, bar := range [...]usageBar{
		useMeasure:    {Name: "Utilization", Class: "use"},
		memoryMeasure: {Name: "Memory", Class: "memory"},
		powerMeasure:  {Name: "Power", Class: "power"},
	} {
		bar.Label = name + ", " + bar.Name
		bar.Text = reading.text(measure)
		bar.Past = newSparkline(bar.Name, past[measure])
		if bar.Text == "" && bar.Past == nil {
			continue
		}
		if ratio, ok := reading.ratio(measure); ok {
			bar.Percent = formatPercent(max(0, min(ratio, 1)))
		}
		bars[measure] = &bar
	}
	return bars
}

// text returns a measure with its limit; empty if unknown.
func (r DeviceReading) text(measure int) string {
	ratio, hasRatio := r.ratio(measure)
	power, hasPower := r[Power]
	switch {
	case measure == powerMeasure && hasRatio:
		return formatWatts(power) + " of " + formatWatts(r[PowerLimit])
	case measure == powerMeasure && hasPower:
		return formatWatts(power)
	case !hasRatio:
		return ""
	case measure == memoryMeasure:
		return fmt.Sprintf("%.1f of %.1f GiB", r[MemoryUsed]/gib, r[MemoryTotal]/gib)
	}
	return formatPercent(ratio) + " %"
}

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
