package podresources

import (
	"maps"
	"slices"
	"time"

	"github.com/podgauge/podgauge/internal/device"
)

// settleTimeout is how long a kubelet that was (re)started may go without listing
// pods that it has: first it lists none, then the static ones, then those that it
// gets from the API server.
const settleTimeout = 60 * time.Second

// maxPendingAge is how long an allocation is kept that nobody can say more of.
const maxPendingAge = time.Hour

// minPruneSize is how many rows that nobody has may be known as named.
const minPruneSize = 64

// allocationTracker is what is known of holders from answer to answer. It has no lock and
// reads no clock: its owner brings both. Answers come in the order in which they
// were asked for.
type allocationTracker struct {
	// allocations is what stands, in the order of device.Allocations.All. Once set it is
	// replaced and not written, since it was published.
	allocations []device.Allocation
	settled     bool
	// pending are the allocations whose holder's name is not known, by when they
	// were made.
	pending   map[allocationKey]timeInterval
	lifetimes podLifetimes
	// endedPods are pods that hold something and of which somebody has told that they are over:
	// they do not stand. A later answer of the kubelet's is as good.
	endedPods map[podName]time.Time
	history   ownerHistory
	own       ownIDs // as of the newest answer

	requestedAt time.Time    // when the newest answer was asked for
	epoch       kubeletEpoch // over which it came
	// confirmed are the rows that answers over link have named, by their keys.
	confirmed map[device.Allocation]bool
	// trustedSince is when the first answer over link was asked for that left out
	// nobody; zero while there was none.
	trustedSince time.Time
	// apiPods has the API server's pods.
	apiPods apiPodTracker
	// podUIDs are those of the pods that had held rows by the checkpoint when this connection was
	// made, or as soon after it as the checkpoint had any.
	podUIDs map[allocationKey]string
	// caughtUp says that the notes since then have been gone through.
	caughtUp bool
	// checkpoint are the newest notes that were there before an answer was asked for,
	// and notedFor is when that was: the zero value while there were none.
	checkpoint     kubeletCheckpoint
	checkpointAsOf time.Time

	scratch []device.Allocation // scratch
}

type allocationKey struct {
	resource string
	id       device.AdvertisedID
}

// timeInterval is the time in which something happened.
type timeInterval struct{ earliest, latest time.Time }

// ownedSince is from when on somebody who is named at a time has had for sure what was
// allocated then. Of what was allocated before this process began only the latest is known.
func (i timeInterval) ownedSince(namedAt time.Time) time.Time {
	if i.earliest.IsZero() {
		return namedAt
	}
	return i.latest
}

func keyOf(h device.Allocation) allocationKey { return allocationKey{h.Resource, h.DeviceID} }

// confirmedKey is by what a row is known again that was named before: what a plugin gives has one
// holder, so that naming another one says that the first has it no more. What is claimed
// may have several.
func confirmedKey(h device.Allocation) device.Allocation {
	if !h.Claimed() {
		h.Owner = device.Owner{}
	}
	return h
}

func newAllocationTracker() allocationTracker {
	return allocationTracker{
		pending: map[allocationKey]timeInterval{}, confirmed: map[device.Allocation]bool{}, lifetimes: newPodLifetimes(), endedPods: map[podName]time.Time{}, history: newOwnerHistory(), podUIDs: map[allocationKey]string{},
	}
}

// recordAllocate notes that the ids are about to be held by somebody new: whoever held
// them before does not any more. It tells whether that changed anything.
func (t *allocationTracker) recordAllocate(resource string, ids []device.AdvertisedID, now time.Time) bool {
	t.scratch = t.scratch[:0]
	for _, h := range t.allocations {
		if h.Resource != resource || !slices.Contains(ids, h.DeviceID) {
			t.scratch = append(t.scratch, h)
		}
	}
	for _, id := range ids {
		t.pending[allocationKey{resource, id}] = timeInterval{now, now}
		t.scratch = append(t.scratch, device.Allocation{Resource: resource, DeviceID: id})
	}
	return t.commit(now)
}

// merge merges an answer in and tells whether anybody's holding changed. An answer
// counts for when it was asked for.
func (t *allocationTracker) merge(response *rawListResponse, epoch kubeletEpoch, requestedAt time.Time) bool {
	t.own = response.resources.foreign.own
	becameSettled := t.recordResponse(response.pods, epoch, requestedAt)
	t.lifetimes.update(response.pods, requestedAt, !t.trustedSince.IsZero())
	t.scratch = t.scratch[:0]
	for _, h := range response.allocations {
		allocatedAt, pending := t.pending[keyOf(h)]
		if pending && allocatedAt.latest.After(requestedAt) {
			continue // the answer is older than the allocation
		}
		delete(t.pending, keyOf(h))
		t.scratch = append(t.scratch, h)
		t.confirmed[confirmedKey(h)] = true
		if t.own.has(h.DeviceID.Device()) {
			t.history.recordOwner(h, allocatedAt.ownedSince(requestedAt), requestedAt)
		}
	}
	t.dropEndedPending()
	for _, h := range t.allocations {
		if t.isRetained(h, response.pods) {
			t.scratch = append(t.scratch, h)
		}
	}
	maps.DeleteFunc(t.endedPods, func(_ podName, endedAt time.Time) bool { return endedAt.Before(requestedAt) })
	changed := t.commit(requestedAt)
	t.history.prune(requestedAt)
	t.pruneConfirmed(requestedAt)
	return changed || becameSettled
}

// pruneConfirmed forgets which rows were named that nobody has any more: only catchUp asks for those.
func (t *allocationTracker) pruneConfirmed(now time.Time) {
	catchingUp := !t.caughtUp && (t.trustedSince.IsZero() || t.isCatchingUp(now))
	if len(t.confirmed) <= 2*len(t.allocations)+minPruneSize {
		return
	}
	maps.DeleteFunc(t.confirmed, func(h device.Allocation, _ bool) bool {
		if h.Claimed() {
			_, found := slices.BinarySearchFunc(t.allocations, h, device.CompareAllocations)
			return !found
		}
		return !catchingUp && !containsKey(t.allocations, keyOf(h))
	})
}

// confirmPod takes in what one pod was said to have. That says nothing of anybody else: it may
// give an allocation the name that it waits for, and takes nothing away. It tells whether
// it did.
func (t *allocationTracker) confirmPod(rows []device.Allocation, epoch kubeletEpoch, requestedAt time.Time) bool {
	if epoch != t.epoch { // what has become of the rest is for a List to say
		return false
	}
	t.scratch = append(t.scratch[:0], t.allocations...)
	for _, h := range rows {
		allocatedAt, pending := t.pending[keyOf(h)]
		if !pending || allocatedAt.latest.After(requestedAt) {
			continue
		}
		delete(t.pending, keyOf(h))
		if endedAt, epoch := t.endedPods[podNameOf(h)]; epoch && endedAt.Before(allocatedAt.earliest) { // that was another of the name
			delete(t.endedPods, podNameOf(h))
		}
		unowned := device.Allocation{Resource: h.Resource, DeviceID: h.DeviceID}
		t.scratch[slices.Index(t.scratch, unowned)] = h
		t.confirmed[confirmedKey(h)] = true
		t.history.recordOwner(h, allocatedAt.ownedSince(requestedAt), requestedAt)
	}
	return t.commit(requestedAt)
}

// recordResponse notes that an answer came, and reports whether it is the first whose absences count.
func (t *allocationTracker) recordResponse(pods []podName, epoch kubeletEpoch, requestedAt time.Time) bool {
	t.requestedAt = requestedAt
	t.apiPods.update(pods, epoch != t.epoch, requestedAt)
	if epoch != t.epoch {
		t.epoch, t.trustedSince, t.caughtUp = epoch, time.Time{}, false
		clear(t.confirmed)
		t.recordPodUIDs()
	}
	if t.trustedSince.IsZero() && requestedAt.Sub(epoch.kubeletStartedAt) >= settleTimeout && !t.apiPods.isIncomplete(requestedAt) {
		t.trustedSince = requestedAt
	}
	if t.settled || t.trustedSince.IsZero() {
		return false
	}
	t.settled = true
	return true
}

// dropEndedPending forgets the allocations that nobody who is listed may have: the pod was
// turned away after Allocate, or it ended before anybody saw its name, or only its
// init container had the device. The kubelet's notes may have them for days yet.
func (t *allocationTracker) dropEndedPending() {
	maps.DeleteFunc(t.pending, func(_ allocationKey, allocatedAt timeInterval) bool {
		return t.isOver(allocatedAt, func(podName) bool { return false })
	})
}

// isOver tells whether nobody who is listed may have an allocation, but for those of
// whom it is known that they have not.
func (t *allocationTracker) isOver(allocatedAt timeInterval, known func(podName) bool) bool {
	return !t.trustedSince.IsZero() && t.requestedAt.Sub(allocatedAt.latest) >= ownerLookupTimeout && !t.lifetimes.mayOwn(allocatedAt, known)
}

// isRetained reports whether an allocation goes on that the newest answer does not name, or names
// another owner for. After a restart the kubelet names ever more of what it has, so what this
// connection has named once, it would name again.
func (t *allocationTracker) isRetained(h device.Allocation, pods []podName) bool {
	if _, pending := t.pending[keyOf(h)]; pending {
		return h.Owner == (device.Owner{})
	}
	_, ended := t.endedPods[podNameOf(h)]
	return h.Owner != (device.Owner{}) && !ended && !t.confirmed[confirmedKey(h)] && !slices.Contains(pods, podNameOf(h)) &&
		(t.requestedAt.Sub(t.epoch.connectedAt) < settleTimeout || t.isKeptInOutage(h))
}

// isKeptInOutage reports whether an allocation goes on as long as the kubelet lacks the API server's pods:
// its pod is one of them, and the checkpoint still has it for the same pod. The checkpoint has
// no claims. One that cannot be read counts for a minute as it was.
func (t *allocationTracker) isKeptInOutage(h device.Allocation) bool {
	if !t.apiPods.isIncomplete(t.requestedAt) || t.apiPods.isStatic(podNameOf(h)) {
		return false
	}
	if h.Claimed() {
		return true
	}
	uid, has := t.checkpoint.allocated[keyOf(h)]
	before, known := t.podUIDs[keyOf(h)]
	return has && (!known || uid == before) && t.requestedAt.Sub(t.checkpointAsOf) < settleTimeout
}

// recordPodUIDs notes the UIDs of those who have something, where the checkpoint has them.
func (t *allocationTracker) recordPodUIDs() {
	clear(t.podUIDs)
	for _, h := range t.allocations {
		if uid, has := t.checkpoint.allocated[keyOf(h)]; has && h.Owner != (device.Owner{}) {
			t.podUIDs[keyOf(h)] = uid
		}
	}
}

// containsKey tells whether an allocation is among the sorted rows, whoever holds it.
func containsKey(rows []device.Allocation, key allocationKey) bool {
	target := device.Allocation{Resource: key.resource, DeviceID: key.id} // no owner sorts before the zero one
	i, _ := slices.BinarySearchFunc(rows, target, device.CompareAllocations)
	return i < len(rows) && keyOf(rows[i]) == key
}

// commit makes next what stands, where that differs.
func (t *allocationTracker) commit(now time.Time) bool {
	slices.SortFunc(t.scratch, device.CompareAllocations)
	t.scratch = slices.Compact(t.scratch) // a device of two NUMA nodes is listed twice
	if slices.Equal(t.scratch, t.allocations) {
		return false
	}
	t.allocations = slices.Clone(t.scratch)
	t.history.markEnded(t.allocations, now)
	return true
}

// expectsUpdate tells whether something may show soon: the name of an allocation, that of a holder
// who stands, or the kubelet's notes of this hour.
func (t *allocationTracker) expectsUpdate(now time.Time) bool {
	_, pending := t.oldestPending(now)
	return pending || t.isCatchingUp(now) || t.awaitsConfirmation(now)
}

// oldestPending tells whether an allocation is looked for, and when the first of those was made, at
// the earliest.
func (t *allocationTracker) oldestPending(now time.Time) (since time.Time, found bool) {
	for _, allocatedAt := range t.pending {
		if now.Sub(allocatedAt.latest) < ownerLookupTimeout && (!found || allocatedAt.earliest.Before(since)) {
			since, found = allocatedAt.earliest, true
		}
	}
	return since, found
}

// awaitsConfirmation tells whether a holder stands whom the kubelet has not named since it came back, and
// will soon: one that ends before it is named here cannot be told from one that is not named
// yet, and stands for a minute.
func (t *allocationTracker) awaitsConfirmation(now time.Time) bool {
	return now.Sub(t.epoch.connectedAt) < ownerLookupTimeout && slices.ContainsFunc(t.allocations, func(h device.Allocation) bool {
		return h.Owner != (device.Owner{}) && !t.confirmed[confirmedKey(h)]
	})
}

// isCatchingUp tells whether the kubelet's notes may still tell of allocations from
// before this process began.
func (t *allocationTracker) isCatchingUp(now time.Time) bool {
	return !t.caughtUp && !t.trustedSince.IsZero() && now.Sub(t.trustedSince) < ownerLookupTimeout
}

// hasAllocation tells whether a pod is known to hold something.
func (t *allocationTracker) hasAllocation(p podName) bool {
	return slices.ContainsFunc(t.allocations, func(h device.Allocation) bool { return podNameOf(h) == p })
}

// needsCheckpoint tells whether there are questions that notes might answer, and whether one
// of them is overdue: an allocation that was looked for and not found.
func (t *allocationTracker) needsCheckpoint(now time.Time) (needed, overdue bool) {
	for _, allocatedAt := range t.pending {
		overdue = overdue || now.Sub(allocatedAt.latest) >= ownerLookupTimeout
	}
	return overdue || t.isCatchingUp(now), overdue
}

// mergeCheckpoint takes in the kubelet's notes, or that they cannot be read, as of a time
// before they were read. It tells whether that changed anything.
func (t *allocationTracker) mergeCheckpoint(checkpoint kubeletCheckpoint, err error, now time.Time) bool {
	uids := t.checkpointUIDs(checkpoint)
	for a, allocatedAt := range t.pending {
		age := now.Sub(allocatedAt.latest)
		_, found := checkpoint.allocated[a]
		if err != nil && age >= maxPendingAge || err == nil && age >= ownerLookupTimeout && (!found || t.isOver(allocatedAt, checkpoint.otherPods(a, allocatedAt, uids))) {
			delete(t.pending, a)
		}
	}
	t.scratch = t.scratch[:0]
	for _, h := range t.allocations {
		_, pending := t.pending[keyOf(h)]
		if pending || h.Owner != (device.Owner{}) && (err != nil || !t.isFreed(h, checkpoint)) {
			t.scratch = append(t.scratch, h)
		}
	}
	if err == nil {
		if t.isCatchingUp(now) {
			t.catchUp(checkpoint)
		}
		t.storeCheckpoint(checkpoint)
	}
	return t.commit(now)
}

// isFreed tells whether somebody who stands, since the kubelet has not named him after its
// restart, has nothing any more: its notes had it, and those that it has written since have
// not. It never forgets in them what is held.
func (t *allocationTracker) isFreed(h device.Allocation, checkpoint kubeletCheckpoint) bool {
	_, had := t.checkpoint.allocated[keyOf(h)]
	_, has := checkpoint.allocated[keyOf(h)]
	return had && !has && !t.confirmed[confirmedKey(h)] && checkpoint.writtenAt.After(t.epoch.kubeletStartedAt)
}

func (t *allocationTracker) storeCheckpoint(checkpoint kubeletCheckpoint) {
	if checkpoint.writtenAt.Add(maxMtimeLag).After(t.requestedAt) {
		return
	}
	t.checkpoint, t.checkpointAsOf = checkpoint, t.requestedAt
	for _, h := range t.allocations {
		uid, has := checkpoint.allocated[keyOf(h)]
		if _, known := t.podUIDs[keyOf(h)]; has && !known && h.Owner != (device.Owner{}) && !t.confirmed[confirmedKey(h)] {
			t.podUIDs[keyOf(h)] = uid
		}
	}
}

// mayBePartial tells whether an answer over a connection may be one of a kubelet that was
// restarted unnoticed, and that leaves out whom the one before it has let in.
func (t *allocationTracker) mayBePartial(epoch kubeletEpoch, requestedAt time.Time) bool {
	return t.settled && epoch != t.epoch && requestedAt.Sub(epoch.kubeletStartedAt) < settleTimeout
}

// addAllocatedInOutage takes in the kubelet's notes when it does not answer, or not all yet: an id
// that the last answer did not name may have been allocated since. It tells whether
// that changed anything. Foreign ids are left out, as in catchUp.
func (t *allocationTracker) addAllocatedInOutage(checkpoint kubeletCheckpoint, now time.Time) bool {
	if !t.settled { // nothing is called idle
		return false
	}
	t.scratch = append(t.scratch[:0], t.allocations...)
	for a := range checkpoint.allocated {
		if _, known := t.pending[a]; known || containsKey(t.allocations, a) || !t.own.hasOrHad(a.id.Device()) || !t.isNewInCheckpoint(checkpoint, a) {
			continue
		}
		allocatedAt := timeInterval{t.requestedAt, now}
		if !t.checkpointAsOf.IsZero() {
			allocatedAt.earliest = t.checkpointAsOf
		}
		if checkpoint.writtenAt.Before(now) {
			allocatedAt.latest = checkpoint.writtenAt
		}
		t.pending[a] = allocatedAt
		t.scratch = append(t.scratch, device.Allocation{Resource: a.resource, DeviceID: a.id})
	}
	return t.commit(now)
}

// isNewInCheckpoint tells whether what notes have was allocated since an answer that did not
// name it. A kubelet that starts writes down anew what is long over, so the time of
// the writing decides only where the notes of before were not seen.
func (t *allocationTracker) isNewInCheckpoint(checkpoint kubeletCheckpoint, a allocationKey) bool {
	if t.checkpointAsOf.IsZero() {
		return checkpoint.writtenAt.Add(maxMtimeLag).After(t.requestedAt)
	}
	uid, had := t.checkpoint.allocated[a]
	return !had || uid != checkpoint.allocated[a]
}

// checkpointUIDs are those that the notes have for pods, by what these hold by name; "" for
// a pod of which they are not clear.
func (t *allocationTracker) checkpointUIDs(checkpoint kubeletCheckpoint) map[podName]string {
	uids := map[podName]string{}
	for _, h := range t.allocations {
		if h.Claimed() { // the notes are the device manager's, and claims another's
			continue
		}
		p, uid := podNameOf(h), checkpoint.allocated[keyOf(h)]
		if other, twice := uids[p]; twice && other != uid {
			uid = ""
		}
		uids[p] = uid
	}
	return uids
}

// catchUp adds the allocations that the notes have and no answer names: those of
// init containers, of which an earlier process was told. Notes that are older than
// the first full answer are not believed: it may have freed what they have. An allocation of a
// foreign id is left out, since an answer may have had too many of them to keep.
func (t *allocationTracker) catchUp(checkpoint kubeletCheckpoint) {
	if !checkpoint.writtenAt.After(t.trustedSince) || checkpoint.writtenAt.After(t.requestedAt) {
		return
	}
	t.caughtUp = true
	for a := range checkpoint.allocated {
		if _, known := t.pending[a]; !known && t.own.hasOrHad(a.id.Device()) && !t.confirmed[device.Allocation{Resource: a.resource, DeviceID: a.id}] && !containsKey(t.allocations, a) {
			t.pending[a] = timeInterval{latest: t.trustedSince}
			t.scratch = append(t.scratch, device.Allocation{Resource: a.resource, DeviceID: a.id})
		}
	}
}
