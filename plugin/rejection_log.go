package plugin

import (
	"fmt"
	"hash/maphash"
	"slices"
	"sync"
	"time"

	"github.com/podgauge/podgauge/internal/device"
)

const (
	// rejectionLogInterval is how long a refusal that was logged is not logged again: the kubelet
	// tries a start that was refused every few seconds, for as long as the pod is
	// there, and whoever makes pods replaces one that was turned away.
	rejectionLogInterval = time.Minute
	// maxRejections bounds what is remembered of a resource. A node has fewer pods.
	maxRejections = 256
)

// rejectionLog are those of a resource that were logged of late. The zero refusals are
// ready for use.
type rejectionLog struct {
	mu      sync.Mutex
	seed    maphash.Seed                // guarded by mu
	entries map[uint64]*loggedRejection // by what is the same in a refusal; guarded by mu
}

type loggedRejection struct {
	loggedAt   time.Time // when it was last logged
	suppressed int       // how often it was met since
}

// record notes a refusal and tells whether it is to be logged, and how many of the
// same were not since it last was. The same is what refuses the same ids, in
// whichever order, for the same reason: the text may name a process, which is
// another one each time.
func (r *rejectionLog) record(operation string, reason RejectReason, ids []device.AdvertisedID, now time.Time) (suppressed int, shouldLog bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.entries == nil {
		r.seed, r.entries = maphash.MakeSeed(), map[uint64]*loggedRejection{}
	}
	key := maphash.String(r.seed, fmt.Sprintf("%s %s %q", operation, reason, slices.Sorted(slices.Values(ids))))
	before := r.entries[key]
	switch {
	case before == nil:
		r.dropOldest()
		r.entries[key] = &loggedRejection{loggedAt: now}
		return 0, true
	case now.Sub(before.loggedAt) < rejectionLogInterval:
		before.suppressed++
		return 0, false
	}
	suppressed = before.suppressed
	*before = loggedRejection{loggedAt: now}
	return suppressed, true
}

// dropOldest forgets the refusal that was logged the longest ago, where there are
// too many. mu is held.
func (r *rejectionLog) dropOldest() {
	if len(r.entries) < maxRejections {
		return
	}
	var oldest uint64
	first := true
	for key, s := range r.entries {
		if first || s.loggedAt.Before(r.entries[oldest].loggedAt) {
			oldest, first = key, false
		}
	}
	delete(r.entries, oldest)
}
