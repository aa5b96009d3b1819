package nvml

import "time"

const (
	// denialsToConfirm is how often in a row a GPU has to deny something to be believed: one
	// stray NOT_SUPPORTED is no word to go by.
	denialsToConfirm = 3
	// unconfirmedRetryInterval is how long something is not asked for that was denied less often.
	unconfirmedRetryInterval = 10 * time.Second
	// confirmedRetryInterval is how long something is not asked for that the GPU said so often not
	// to have.
	confirmedRetryInterval = 5 * time.Minute
)

// denialTracker is how often in a row the GPU has said that it does not have something. The zero
// absence is none.
type denialTracker struct {
	count  int
	lastAt time.Time
}

// record takes the newest answer.
func (a *denialTracker) record(denied bool, now time.Time) {
	if !denied {
		*a = denialTracker{}
		return
	}
	a.count, a.lastAt = min(a.count+1, denialsToConfirm), now
}

// denied reports whether the newest answer was that there is no such thing.
func (a denialTracker) denied() bool { return a.count > 0 }

// confirmed reports whether that was said often enough.
func (a denialTracker) confirmed() bool { return a.count >= denialsToConfirm }

// unconfirmed reports whether that is to be asked again soon.
func (a denialTracker) unconfirmed() bool { return a.denied() && !a.confirmed() }

// shouldSkip reports whether there is no use in asking now.
func (a denialTracker) shouldSkip(now time.Time) bool {
	switch {
	case !a.denied():
		return false
	case a.unconfirmed():
		return now.Sub(a.lastAt) < unconfirmedRetryInterval
	default:
		return now.Sub(a.lastAt) < confirmedRetryInterval
	}
}
