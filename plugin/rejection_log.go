package plugin

import (
	"fmt"
	"hash/maphash"
	"slices"
	"sync"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/loglimit"
)

// rejectionLogInterval is the interval between two messages about the same rejection: the kubelet repeats a rejected start every
// few seconds, and a controller replaces a rejected pod.
const rejectionLogInterval = time.Minute

// rejectionLog limits the messages about rejections of one resource.
type rejectionLog struct {
	seed    maphash.Seed
	mu      sync.Mutex
	limiter *loglimit.Limiter[uint64] // by hash of the rejection, since a request has up to 4 MiB of ids; guarded by mu
}

func newRejectionLog() *rejectionLog {
	return &rejectionLog{seed: maphash.MakeSeed(), limiter: loglimit.New[uint64](rejectionLogInterval)}
}

// allow reports whether to log a rejection. The order of the ids does not matter, nor does the message: it may name a process.
func (r *rejectionLog) allow(operation string, reason RejectReason, ids []device.AdvertisedID, now time.Time) bool {
	key := maphash.String(r.seed, fmt.Sprintf("%s %s %q", operation, reason, slices.Sorted(slices.Values(ids))))
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.limiter.Allow(key, now)
}
