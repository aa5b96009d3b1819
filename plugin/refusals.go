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
	// sayAgain is how long a refusal that was logged is not logged again: the kubelet
	// tries a start that was refused every few seconds, for as long as the pod is
	// there, and whoever makes pods replaces one that was turned away.
	sayAgain = time.Minute
	// mostRefusals bounds what is remembered of a resource. A node has fewer pods.
	mostRefusals = 256
)

// refusals are those of a resource that were logged of late. The zero refusals are
// ready for use.
type refusals struct {
	mu   sync.Mutex
	seed maphash.Seed         // guarded by mu
	said map[uint64]*repeated // by what is the same in a refusal; guarded by mu
}

type repeated struct {
	at     time.Time // when it was last logged
	unsaid int       // how often it was met since
}

// met notes a refusal and tells whether it is to be logged, and how many of the
// same were not since it last was. The same is what refuses the same ids, in
// whichever order, for the same reason: the text may name a process, which is
// another one each time.
func (r *refusals) met(what string, why Why, ids []device.OfferedID, now time.Time) (unsaid int, say bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.said == nil {
		r.seed, r.said = maphash.MakeSeed(), map[uint64]*repeated{}
	}
	key := maphash.String(r.seed, fmt.Sprintf("%s %s %q", what, why, slices.Sorted(slices.Values(ids))))
	before := r.said[key]
	switch {
	case before == nil:
		r.makeRoom()
		r.said[key] = &repeated{at: now}
		return 0, true
	case now.Sub(before.at) < sayAgain:
		before.unsaid++
		return 0, false
	}
	unsaid = before.unsaid
	*before = repeated{at: now}
	return unsaid, true
}

// makeRoom forgets the refusal that was logged the longest ago, where there are
// too many. mu is held.
func (r *refusals) makeRoom() {
	if len(r.said) < mostRefusals {
		return
	}
	var oldest uint64
	first := true
	for key, s := range r.said {
		if first || s.at.Before(r.said[oldest].at) {
			oldest, first = key, false
		}
	}
	delete(r.said, oldest)
}
