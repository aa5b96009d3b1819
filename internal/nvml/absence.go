package nvml

import "time"

const (
	// believedAfter is how often in a row a GPU has to deny something to be believed: one
	// stray NOT_SUPPORTED is no word to go by.
	believedAfter = 3
	// doubtedFor is how long something is not asked for that was denied less often.
	doubtedFor = 10 * time.Second
	// askAgainAfter is how long something is not asked for that the GPU said so often not
	// to have.
	askAgainAfter = 5 * time.Minute
)

// absence is how often in a row the GPU has said that it does not have something. The zero
// absence is none.
type absence struct {
	times int
	last  time.Time
}

// note takes the newest answer.
func (a *absence) note(denied bool, now time.Time) {
	if !denied {
		*a = absence{}
		return
	}
	a.times, a.last = min(a.times+1, believedAfter), now
}

// denied reports whether the newest answer was that there is no such thing.
func (a absence) denied() bool { return a.times > 0 }

// believed reports whether that was said often enough.
func (a absence) believed() bool { return a.times >= believedAfter }

// doubted reports whether that is to be asked again soon.
func (a absence) doubted() bool { return a.denied() && !a.believed() }

// hides reports whether there is no use in asking now.
func (a absence) hides(now time.Time) bool {
	switch {
	case !a.denied():
		return false
	case a.doubted():
		return now.Sub(a.last) < doubtedFor
	default:
		return now.Sub(a.last) < askAgainAfter
	}
}
