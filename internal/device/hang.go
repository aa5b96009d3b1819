package device

import (
	"errors"
	"time"
)

// A driver may hang as a whole: it takes locks that all GPUs share. Nothing then returns that
// could say so, so the Monitor infers it from the calls about each GPU, within five seconds:
// checks of different GPUs begin at different times, and the first that does not return has
// all other GPUs be checked at once. While it has not returned, they are checked every
// checkApart: the driver may hang later than that GPU.
const (
	// hangSuspectedAfter is how long a call about a GPU runs before all others are checked.
	hangSuspectedAfter = 500 * time.Millisecond
	// hangsAfter is how long calls about all GPUs run before the driver counts as hung.
	hangsAfter = 2 * time.Second
	// checkApart is how far apart checks of different GPUs begin, at most: a node with few
	// GPUs checks each of them more often.
	checkApart = 1500 * time.Millisecond
)

var errHangs = errors.New("calls about all GPUs do not return")

// rota says when a GPU that is well is checked: once a period, at a time of its own.
type rota struct{ period, offset time.Duration }

// rotaOf returns the rota of the n-th of some GPUs.
func rotaOf(n, gpus int) rota {
	gpus = max(gpus, 1)
	period := min(checkEvery, time.Duration(gpus)*checkApart)
	return rota{period, period * time.Duration(n%gpus) / time.Duration(gpus)}
}

// due reports whether a turn has begun since the newest check. A clock that was set back makes
// it begin.
func (r rota) due(now, checked time.Time) bool {
	return !now.Add(r.offset).Truncate(r.period).Equal(checked.Add(r.offset).Truncate(r.period))
}

// suspectHang returns since when a call about a GPU runs that should have returned.
func (m *Monitor) suspectHang(now time.Time) (since time.Time, suspected bool) {
	for gpu := range m.patients {
		if busy := m.readers.Busy(gpu); busy > hangSuspectedAfter && (!suspected || now.Add(-busy).Before(since)) {
			since, suspected = now.Add(-busy), true
		}
	}
	return since, suspected
}

// judgeDriver has the driver not answer while calls about all listed GPUs hang, and be listed
// when one of them has returned.
func (m *Monitor) judgeDriver(now time.Time) {
	listed, hung := 0, 0
	for gpu, p := range m.patients {
		if !p.listed || !p.answered {
			continue
		}
		listed++
		if m.readers.Busy(gpu) > hangsAfter {
			hung++
		}
	}
	was := m.hung
	m.hung = listed > 0 && hung == listed
	switch {
	case m.hung:
		m.driverHangs(errHangs)
	case was:
		m.list(now)
	}
}

// driverHangs has the driver not answer. The first error of a hang stays: several calls hang at
// once, and each change of the error would be logged.
func (m *Monitor) driverHangs(err error) {
	if m.Driver().State != DriverNotAnswering {
		m.setDriver(Driver{DriverNotAnswering, err})
	}
}
