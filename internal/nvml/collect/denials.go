package collect

import "time"

const (
	// DenialsToConfirm is the number of denials in a row needed as proof: a single NOT_SUPPORTED may be stray.
	DenialsToConfirm = 3
	// unconfirmedRetryInterval is the time from fewer denials to the next try.
	unconfirmedRetryInterval = 10 * time.Second
	// confirmedRetryInterval is the time from confirmed denials to the next try.
	confirmedRetryInterval = 5 * time.Minute
)

// Denials counts how often in a row a GPU has denied to have something.
type Denials struct {
	count  int
	lastAt time.Time
}

// Record takes the newest result.
func (d *Denials) Record(denied bool, now time.Time) {
	if !denied {
		*d = Denials{}
		return
	}
	d.count, d.lastAt = min(d.count+1, DenialsToConfirm), now
}

// Denied reports whether the newest result was a denial.
func (d Denials) Denied() bool { return d.count > 0 }

// Confirmed reports whether the denials suffice to be believed.
func (d Denials) Confirmed() bool { return d.count >= DenialsToConfirm }

// shouldSkip reports whether it is too early for the next try.
func (d Denials) shouldSkip(now time.Time) bool {
	interval := unconfirmedRetryInterval
	if d.Confirmed() {
		interval = confirmedRetryInterval
	}
	return d.Denied() && now.Sub(d.lastAt) < interval
}
