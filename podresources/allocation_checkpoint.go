package podresources

import (
	"time"

	"github.com/podgauge/podgauge/internal/device"
)

// maxPendingAge is how long an allocation stays pending if the checkpoint cannot be read.
const maxPendingAge = time.Hour

// needsCheckpoint reports whether the checkpoint may decide about an allocation, and whether the lookup of an owner has taken
// ownerLookupTimeout.
func (t *allocationTracker) needsCheckpoint(now time.Time) (needed, overdue bool) {
	for _, allocatedAt := range t.pending {
		overdue = overdue || now.Sub(allocatedAt.latest) >= ownerLookupTimeout
	}
	return overdue || t.isCatchingUp(now), overdue
}

// mergeCheckpoint merges the checkpoint, or the error of reading the checkpoint, as of a time before the read. The result reports whether
// allocations changed.
func (t *allocationTracker) mergeCheckpoint(checkpoint kubeletCheckpoint, err error, now time.Time) bool {
	t.scratch = t.scratch[:0]
	t.keep(func(a device.Allocation, phase allocationPhase) bool {
		key := keyOf(a)
		_, has := checkpoint.allocated[key]
		_, had := t.checkpoint.allocated[key]
		switch age := now.Sub(t.pending[key].latest); {
		case err != nil:
			return phase == pending && age >= maxPendingAge
		case phase == pending:
			return !has && age >= ownerLookupTimeout
		}
		// A kubelet never drops the entry of a current allocation, so this kubelet freed an entry of an earlier checkpoint.
		return phase == retained && had && !has && checkpoint.writtenAt.After(t.epoch.kubeletStartedAt)
	})
	if err == nil {
		if t.isCatchingUp(now) {
			t.catchUp(checkpoint)
		}
		t.storeCheckpoint(checkpoint)
	}
	return t.commit(now)
}

// storeCheckpoint keeps a checkpoint from before the newest request, for comparison with later checkpoints.
func (t *allocationTracker) storeCheckpoint(checkpoint kubeletCheckpoint) {
	if checkpoint.writtenAt.Add(maxMtimeLag).After(t.requestedAt) {
		return
	}
	t.checkpoint, t.checkpointAsOf = checkpoint, t.requestedAt
	t.recordPodUIDs(func(a device.Allocation) bool { return !t.confirmed[confirmedKey(a)] })
}

// catchUp adds the allocations of init containers from before this process began: only the checkpoint has them. A checkpoint from before
// the first complete List does not count, since the kubelet may have freed entries in that List.
func (t *allocationTracker) catchUp(checkpoint kubeletCheckpoint) {
	if !checkpoint.writtenAt.After(t.trustedSince) || checkpoint.writtenAt.After(t.requestedAt) {
		return
	}
	t.caughtUp = true
	for key := range checkpoint.allocated {
		if !t.confirmed[device.Allocation{Resource: key.resource, DeviceID: key.id}] {
			t.addFromCheckpoint(key, timeInterval{latest: t.trustedSince})
		}
	}
}

// addAllocatedSince adds the allocations of a checkpoint from after the newest List: the kubelet does not answer, or may list only some
// pods. A starting kubelet also writes old entries, so entries of the checkpoint before do not count. The result reports whether there were
// any.
func (t *allocationTracker) addAllocatedSince(checkpoint kubeletCheckpoint, now time.Time) bool {
	if !t.settled || !checkpoint.writtenAt.Add(maxMtimeLag).After(t.requestedAt) {
		return false
	}
	t.scratch = append(t.scratch[:0], t.allocations...)
	for key, uid := range checkpoint.allocated {
		if before, had := t.checkpoint.allocated[key]; !had || uid != before {
			t.addFromCheckpoint(key, timeInterval{t.checkpointAsOf, now})
		}
	}
	return t.commit(now)
}

// addFromCheckpoint adds a pending allocation, unless the id is allocated. Foreign ids are left out: a List may have had too many to keep.
func (t *allocationTracker) addFromCheckpoint(key allocationKey, allocatedAt timeInterval) {
	if !t.has(key) && t.own.has(key.id.Device()) {
		t.addPending(key, allocatedAt)
	}
}
