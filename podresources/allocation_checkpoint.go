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
	uids := t.checkpointUIDs(checkpoint)
	t.scratch = t.scratch[:0]
	t.apply(func(a device.Allocation) allocationEvent {
		key := keyOf(a)
		_, has := checkpoint.allocated[key]
		allocatedAt, isPending := t.pending[key]
		switch age := now.Sub(allocatedAt.latest); {
		case err != nil && isPending && age >= maxPendingAge:
			return checkpointUnreadable
		case err != nil || isPending && age < ownerLookupTimeout:
			return unaffected
		case isPending && !has || !isPending && !has && t.isFreedIn(checkpoint, key):
			return checkpointDropped
		case isPending && t.hasNoOwnerLeft(allocatedAt, checkpoint.otherPods(key, allocatedAt, uids)):
			return noOwnerLeft
		}
		return unaffected
	})
	if err == nil {
		if t.isCatchingUp(now) {
			t.catchUp(checkpoint)
		}
		t.storeCheckpoint(checkpoint)
	}
	return t.commit(now)
}

// isFreedIn reports whether this kubelet wrote a checkpoint without an entry of an earlier checkpoint. A kubelet never drops the entry of a
// current allocation.
func (t *allocationTracker) isFreedIn(checkpoint kubeletCheckpoint, key allocationKey) bool {
	_, had := t.checkpoint.allocated[key]
	return had && checkpoint.writtenAt.After(t.epoch.kubeletStartedAt)
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

// addAllocatedInOutage adds allocations of the checkpoint missing in the last List, while the kubelet does not answer or lists only some
// pods. The result reports whether there were any.
func (t *allocationTracker) addAllocatedInOutage(checkpoint kubeletCheckpoint, now time.Time) bool {
	if !t.settled { // no device is reported as unallocated yet
		return false
	}
	allocatedAt := timeInterval{t.requestedAt, now}
	if !t.checkpointAsOf.IsZero() {
		allocatedAt.earliest = t.checkpointAsOf
	}
	if checkpoint.writtenAt.Before(now) {
		allocatedAt.latest = checkpoint.writtenAt
	}
	t.scratch = append(t.scratch[:0], t.allocations...)
	for key := range checkpoint.allocated {
		if t.isNewIn(checkpoint, key) {
			t.addFromCheckpoint(key, allocatedAt)
		}
	}
	return t.commit(now)
}

// addFromCheckpoint adds a pending allocation, unless the id is allocated. Foreign ids are left out: a List may have had too many to keep.
func (t *allocationTracker) addFromCheckpoint(key allocationKey, allocatedAt timeInterval) {
	phase := absent
	if _, isPending := t.pending[key]; isPending {
		phase = pending
	} else if t.has(key) {
		phase = retained // or confirmed
	}
	if next := phase.after(checkpointAdded); next != phase && t.own.hasOrHad(key.id.Device()) {
		t.addPending(key, allocatedAt)
	}
}

// isNewIn reports whether an entry was allocated since the last List. A starting kubelet writes old entries again, so the time of writing
// counts only without an earlier checkpoint.
func (t *allocationTracker) isNewIn(checkpoint kubeletCheckpoint, key allocationKey) bool {
	if t.checkpointAsOf.IsZero() {
		return checkpoint.writtenAt.Add(maxMtimeLag).After(t.requestedAt)
	}
	uid, had := t.checkpoint.allocated[key]
	return !had || uid != checkpoint.allocated[key]
}

// checkpointUIDs returns the UIDs in the checkpoint of the pods with named allocations; "" for a pod with several UIDs.
func (t *allocationTracker) checkpointUIDs(checkpoint kubeletCheckpoint) map[podName]string {
	uids := map[podName]string{}
	for _, a := range t.allocations {
		if a.Claimed() { // not in the device manager's checkpoint
			continue
		}
		p, uid := podNameOf(a), checkpoint.allocated[keyOf(a)]
		if other, twice := uids[p]; twice && other != uid {
			uid = ""
		}
		uids[p] = uid
	}
	return uids
}
