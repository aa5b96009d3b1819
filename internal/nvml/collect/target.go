package collect

import (
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/nvml/lib"
	"github.com/podgauge/podgauge/internal/nvml/metric"
)

// target is the subject of calls: a GPU or a GPU instance.
type target struct {
	Handle   nvml.Device // valid until the next Init
	kind     metric.Target
	latest   metric.Values
	attempts []attempt // by metric.Calls
	sampler  gpmSampler
}

func newTarget(handle nvml.Device, kind metric.Target) target {
	return target{Handle: handle, kind: kind, attempts: make([]attempt, len(metric.Calls))}
}

// forget drops all values that are read again and again. All calls are due.
func (t *target) forget() {
	for i := range metric.Calls {
		if metric.Calls[i].Pace != device.PaceStatic {
			t.latest.Unset(metric.Calls[i].Values)
		}
	}
	clear(t.attempts)
	t.latest.UnsetGPM()
	t.sampler.takenAt, t.sampler.attempt = time.Time{}, attempt{}
}

// maxWindowAge is the maximum age of a GPM window in a collection: below a
// minute, even if shown for another second.
const maxWindowAge = 55 * time.Second

// gpmWindow is the minimum time between two samples: a little less than two
// inexact intervals of checks.
const gpmWindow = 9500 * time.Millisecond

// gpmSampler keeps the newest sample of a GPU or of a GPU instance.
type gpmSampler struct {
	attempt
	previous, next nvml.GpmSample // nil: not allocated yet
	takenAt        time.Time      // zero: previous is empty
	resets         uint64         // of the GPU, when previous was taken
}

// expire drops the metrics of an old window, as while checks fail.
func (s *gpmSampler) expire(values *metric.Values, now time.Time) {
	if now.Sub(s.takenAt) > maxWindowAge {
		values.UnsetGPM()
	}
}

func (s *gpmSampler) due(now time.Time) bool {
	return s.attempt.due(0, now) && now.Sub(s.takenAt) >= gpmWindow
}

// instance is a GPU instance, with separate memory and engines. Compute
// instances share both, so only a single MIG device gets the values: sums over
// all devices must not count values twice.
type instance struct {
	gi       int
	members  []MIGDevice // empty: not listed; the first one gets the values
	target               // by the device's handle
	verified bool        // in this collection the handle was still the device's
}

func isSame(a, b MIGDevice) bool { return a.ID == b.ID && a.CI == b.CI }

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
