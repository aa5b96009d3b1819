package collect

import "time"

const (
	// DenialsToConfirm is how often in a row a GPU has to deny something to be believed: one
	// stray NOT_SUPPORTED is no word to go by.
	DenialsToConfirm = 3
	// unconfirmedRetryInterval is how long something is not asked for that was denied less often.
	unconfirmedRetryInterval = 10 * time.Second
	// confirmedRetryInterval is how long something is not asked for that the GPU said so often not
	// to have.
	confirmedRetryInterval = 5 * time.Minute
)

// Denials is how often in a row the GPU has said that it does not have something. The zero
// absence is none.
type Denials struct {
	count  int
	lastAt time.Time
}

// Record takes the newest answer.
func (a *Denials) Record(denied bool, now time.Time) {
	if !denied {
		*a = Denials{}
		return
	}
	a.count, a.lastAt = min(a.count+1, DenialsToConfirm), now
}

// Denied reports whether the newest answer was that there is no such thing.
func (a Denials) Denied() bool { return a.count > 0 }

// Confirmed reports whether that was said often enough.
func (a Denials) Confirmed() bool { return a.count >= DenialsToConfirm }

// unconfirmed reports whether that is to be asked again soon.
func (a Denials) unconfirmed() bool { return a.Denied() && !a.Confirmed() }

// shouldSkip reports whether there is no use in asking now.
func (a Denials) shouldSkip(now time.Time) bool {
	switch {
	case !a.Denied():
		return false
	case a.unconfirmed():
		return now.Sub(a.lastAt) < unconfirmedRetryInterval
	default:
		return now.Sub(a.lastAt) < confirmedRetryInterval
	}
}
