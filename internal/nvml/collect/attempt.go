package collect

import (
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/podgauge/podgauge/internal/nvml/lib"
)

const (
	// denialsToConfirm is the number of denials in a row needed as proof: a
	// single NOT_SUPPORTED may be stray.
	denialsToConfirm = 2
	// slowInterval is the age of a due slow value, and the time from a first
	// denial to the next try. It is less than half a minute, so that scrapes
	// every 30 s read all values.
	slowInterval = 25 * time.Second
	// confirmedInterval is the time from confirmed denials to the next try.
	confirmedInterval = time.Minute
)

// attempt is the newest request to the driver for a value, a list or a sample.
// The zero value is a request not made yet.
type attempt struct {
	madeAt  time.Time
	failed  bool
	denials int // in a row: the GPU or its driver lacks the value
}

// record notes the result of a request.
func (a *attempt) record(ret nvml.Return, now time.Time) {
	denials := 0
	if lib.IsUnavailable(ret) {
		denials = a.denials + 1
	}
	*a = attempt{now, ret != nvml.SUCCESS, denials}
}

// due reports whether to make the request again. A denied one is not repeated
// in each collection.
func (a *attempt) due(interval time.Duration, now time.Time) bool {
	switch {
	case a.confirmed():
		interval = confirmedInterval
	case a.denials > 0:
		interval = slowInterval
	}
	return now.Sub(a.madeAt) >= interval
}

// succeeded reports whether there is a result.
func (a *attempt) succeeded() bool { return !a.madeAt.IsZero() && !a.failed }

// confirmed reports whether the denials suffice to be believed.
func (a *attempt) confirmed() bool { return a.denials >= denialsToConfirm }
