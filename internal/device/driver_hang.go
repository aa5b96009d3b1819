package device

import (
	"errors"
	"time"
)

// A driver may hang as a whole: it takes locks that all GPUs share. Nothing then returns that
// could say so, so the Monitor infers it from the calls about each GPU, within five seconds:
// checks of different GPUs begin at different times, and the first that does not return has
// all other GPUs be checked at once. While it has not returned, they are checked every
// maxCheckSpacing: the driver may hang later than that GPU.
const (
	// hangSuspectTimeout is how long a call about a GPU runs before all others are checked.
	hangSuspectTimeout = 500 * time.Millisecond
	// driverHangTimeout is how long calls about all GPUs run before the driver counts as hung.
	driverHangTimeout = 2 * time.Second
	// maxCheckSpacing is how far apart checks of different GPUs begin, at most: a node with few
	// GPUs checks each of them more often.
	maxCheckSpacing = 1500 * time.Millisecond
)

var errDriverHung = errors.New("calls about all GPUs do not return")

// gpuCheckSchedule says when a GPU that is well is checked: once a period, at a time of its own.
type gpuCheckSchedule struct{ period, offset time.Duration }

// newGPUCheckSchedule returns the rota of the n-th of some GPUs.
func newGPUCheckSchedule(n, gpus int) gpuCheckSchedule {
	gpus = max(gpus, 1)
	period := min(checkInterval, time.Duration(gpus)*maxCheckSpacing)
	return gpuCheckSchedule{period, period * time.Duration(n%gpus) / time.Duration(gpus)}
}

// due reports whether a turn has begun since the newest check. A clock that was set back makes
// it begin.
func (s gpuCheckSchedule) due(now, checked time.Time) bool {
	return !now.Add(s.offset).Truncate(s.period).Equal(checked.Add(s.offset).Truncate(s.period))
}

// suspectHang returns since when a call about a GPU runs that should have returned.
func (m *Monitor) suspectHang(now time.Time) (since time.Time, suspected bool) {
	for gpu := range m.gpus {
		if busy := m.readers.Busy(gpu); busy > hangSuspectTimeout && (!suspected || now.Add(-busy).Before(since)) {
			since, suspected = now.Add(-busy), true
		}
	}
	return since, suspected
}

// detectDriverHang has the driver not answer while calls about all listed GPUs hang, and be listed
// when one of them has returned.
func (m *Monitor) detectDriverHang(now time.Time) {
	listed, hung := 0, 0
	for gpu, g := range m.gpus {
		if !g.listed || !g.assessed {
			continue
		}
		listed++
		if m.readers.Busy(gpu) > driverHangTimeout {
			hung++
		}
	}
	wasHung := m.driverHung
	m.driverHung = listed > 0 && hung == listed
	switch {
	case m.driverHung:
		m.setDriverHung(errDriverHung)
	case wasHung:
		m.requestList(now)
	}
}

// setDriverHung has the driver not answer. The first error of a hang stays: several calls hang at
// once, and each change of the error would be logged.
func (m *Monitor) setDriverHung(err error) {
	if m.Driver().State != DriverNotAnswering {
		m.setDriver(Driver{DriverNotAnswering, err})
	}
}
