package podresources

import (
	"maps"
	"slices"
	"time"

	"github.com/podgauge/podgauge/internal/device"
)

// settleTimeout is the time after its start within which a kubelet may omit pods.
const settleTimeout = 60 * time.Second

// allocationPhase is the state of knowledge about an allocation. An absence in a List proves little after a restart: a kubelet first
// lists no pods, then static pods, then the API server's pods. docs/explanation/attribution.md has the transitions.
type allocationPhase uint8

const (
	absent    allocationPhase = iota // not allocated, as far as is known
	pending                          // allocated; no response named the owner yet
	confirmed                        // a response over this connection named the owner; later responses repeat the owner until the end
	retained                         // responses named the owner over an earlier connection, not yet over this connection
)

// allocationTracker tracks allocations from response to response, without a lock or a clock. Responses are merged in the order of requests,
// and count for the time of the request.
type allocationTracker struct {
	allocations []device.Allocation // in the order of device.Allocations.All; published, so replaced and never written
	settled     bool                // a response of any connection was complete
	own         ownIDs              // as of the newest response
	history     ownerHistory
	lifetimes   podLifetimes
	apiPods     apiPodTracker

	// pending has the allocations in phase pending, by the time of Allocate.
	pending map[allocationKey]timeInterval
	// confirmed has the confirmedKey of each allocation named over this connection.
	confirmed map[device.Allocation]bool
	// endedPods are the pods with allocations but ended by the Pods API, until a later List.
	endedPods map[podName]time.Time

	requestedAt time.Time    // request of the newest response
	epoch       kubeletEpoch // connection of the newest response
	// trustedSince is the request of the first response over this connection without omitted pods; zero before.
	trustedSince time.Time

	// checkpoint is the newest from before a request, and checkpointAsOf the time of the request; zero without any.
	checkpoint     kubeletCheckpoint
	checkpointAsOf time.Time
	// podUIDs are the UIDs of the owners, by the checkpoint when the connection was made or the first checkpoint afterwards.
	podUIDs  map[allocationKey]string
	caughtUp bool // the first checkpoint written after trustedSince was merged

	scratch []device.Allocation // the next allocations, unordered
}

type podName struct{ namespace, pod string }

func podNameOf(a device.Allocation) podName { return podName{a.Owner.Namespace, a.Owner.Pod} }

type allocationKey struct {
	resource string
	id       device.AdvertisedID
}

func keyOf(a device.Allocation) allocationKey { return allocationKey{a.Resource, a.DeviceID} }

// confirmedKey returns the key of an allocation in confirmed. A plugin's id has a single owner, so a different owner ends the allocation; a
// claim may have several owners.
func confirmedKey(a device.Allocation) device.Allocation {
	if !a.Claimed() {
		a.Owner = device.Owner{}
	}
	return a
}

// timeInterval bounds the time of an allocation.
type timeInterval struct {
	earliest time.Time // zero: before this process began
	latest   time.Time
}

func newAllocationTracker() allocationTracker {
	return allocationTracker{
		pending: map[allocationKey]timeInterval{}, confirmed: map[device.Allocation]bool{}, endedPods: map[podName]time.Time{},
		podUIDs: map[allocationKey]string{}, lifetimes: podLifetimes{pods: map[podName]podPresence{}}, history: newOwnerHistory(),
	}
}

// phaseOf returns the phase of an allocation of the tracker.
func (t *allocationTracker) phaseOf(a device.Allocation) allocationPhase {
	_, isPending := t.pending[keyOf(a)]
	switch hasOwner := a.Owner != (device.Owner{}); {
	case isPending && !hasOwner:
		return pending
	case isPending || !hasOwner:
		return absent
	case t.confirmed[confirmedKey(a)]:
		return confirmed
	}
	return retained
}

// keep appends the allocations that do not end to scratch.
func (t *allocationTracker) keep(ends func(device.Allocation, allocationPhase) bool) {
	for _, a := range t.allocations {
		phase := t.phaseOf(a)
		if phase != absent && !ends(a, phase) {
			t.scratch = append(t.scratch, a)
		} else if phase == pending {
			delete(t.pending, keyOf(a))
		}
	}
}

// addPending appends an allocation without an owner to scratch.
func (t *allocationTracker) addPending(key allocationKey, allocatedAt timeInterval) {
	t.pending[key] = allocatedAt
	t.scratch = append(t.scratch, device.Allocation{Resource: key.resource, DeviceID: key.id})
}

// commit replaces the allocations by scratch, and reports whether the allocations changed.
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

// recordAllocate records the return of Allocate for the ids, and ends earlier allocations of the ids. The result reports whether
// allocations changed.
func (t *allocationTracker) recordAllocate(resource string, ids []device.AdvertisedID, now time.Time) bool {
	t.scratch = t.scratch[:0]
	for _, a := range t.allocations {
		if a.Resource != resource || !slices.Contains(ids, a.DeviceID) {
			t.scratch = append(t.scratch, a)
		}
	}
	for _, id := range ids {
		t.addPending(allocationKey{resource, id}, timeInterval{now, now})
	}
	return t.commit(now)
}

// merge merges a List, and reports whether allocations or settled changed.
func (t *allocationTracker) merge(response *rawListResponse, epoch kubeletEpoch, requestedAt time.Time) bool {
	t.own = response.resources.foreign.own
	becameSettled := t.recordResponse(response.pods, epoch, requestedAt)
	t.lifetimes.update(response.pods, requestedAt, !t.trustedSince.IsZero())
	t.scratch = t.scratch[:0]
	for _, a := range response.allocations {
		allocatedAt, isPending := t.pending[keyOf(a)]
		if isPending && allocatedAt.latest.After(requestedAt) {
			continue // requested before the allocation
		}
		t.scratch = append(t.scratch, a)
		t.confirm(a, allocatedAt, requestedAt)
	}
	t.keep(func(a device.Allocation, phase allocationPhase) bool { return !t.outlasts(a, phase, response.pods) })
	maps.DeleteFunc(t.endedPods, func(_ podName, endedAt time.Time) bool { return endedAt.Before(requestedAt) })
	changed := t.commit(requestedAt)
	t.history.prune(requestedAt)
	t.pruneConfirmed(requestedAt)
	return changed || becameSettled
}

// recordResponse records the request of a response, and reports whether the response is the first complete response over any connection.
func (t *allocationTracker) recordResponse(pods []podName, epoch kubeletEpoch, requestedAt time.Time) bool {
	t.requestedAt = requestedAt
	t.apiPods.update(pods, epoch != t.epoch, requestedAt)
	if epoch != t.epoch {
		t.epoch, t.trustedSince, t.caughtUp = epoch, time.Time{}, false
		clear(t.confirmed) // all become retained
		clear(t.podUIDs)
		t.recordPodUIDs(func(device.Allocation) bool { return true })
	}
	if t.trustedSince.IsZero() && requestedAt.Sub(epoch.kubeletStartedAt) >= settleTimeout && !t.apiPods.isIncomplete(requestedAt) {
		t.trustedSince = requestedAt
	}
	becameSettled := !t.settled && !t.trustedSince.IsZero()
	t.settled = t.settled || becameSettled
	return becameSettled
}

// recordPodUIDs records the UIDs of owners by the checkpoint, unless already known.
func (t *allocationTracker) recordPodUIDs(include func(device.Allocation) bool) {
	for _, a := range t.allocations {
		uid, has := t.checkpoint.allocated[keyOf(a)]
		if _, known := t.podUIDs[keyOf(a)]; has && !known && a.Owner != (device.Owner{}) && include(a) {
			t.podUIDs[keyOf(a)] = uid
		}
	}
}

// confirm records that a response names the owner of an allocation.
func (t *allocationTracker) confirm(a device.Allocation, allocatedAt timeInterval, requestedAt time.Time) {
	delete(t.pending, keyOf(a))
	t.confirmed[confirmedKey(a)] = true
	ownedSince := allocatedAt.latest
	if allocatedAt.earliest.IsZero() {
		ownedSince = requestedAt
	}
	if t.own.has(a.DeviceID.Device()) {
		t.history.recordOwner(a, ownedSince, requestedAt)
	}
}

// outlasts reports whether an earlier allocation goes on although the newest List does not name its owner.
func (t *allocationTracker) outlasts(a device.Allocation, phase allocationPhase, pods []podName) bool {
	pod := podNameOf(a)
	switch _, ended := t.endedPods[pod]; {
	case phase == pending:
		// The pod was rejected after Allocate, or ended before a List named it, or used the device in an init container only.
		allocatedAt := t.pending[keyOf(a)]
		return t.trustedSince.IsZero() || t.requestedAt.Sub(allocatedAt.latest) < ownerLookupTimeout || t.lifetimes.mayOwn(allocatedAt)
	case phase == confirmed || ended || slices.Contains(pods, pod):
		return false
	}
	return t.requestedAt.Sub(t.epoch.connectedAt) < settleTimeout || t.isKeptInAPIOutage(a)
}

// isKeptInAPIOutage reports whether an allocation of a pod of the API server goes on while the kubelet lacks such pods: the checkpoint has
// the same pod. Claims are never in the checkpoint. An unreadable checkpoint counts as before for settleTimeout.
func (t *allocationTracker) isKeptInAPIOutage(a device.Allocation) bool {
	if !t.apiPods.isIncomplete(t.requestedAt) || t.apiPods.isStatic(podNameOf(a)) {
		return false
	}
	uid, has := t.checkpoint.allocated[keyOf(a)]
	before, known := t.podUIDs[keyOf(a)]
	return a.Claimed() || has && (!known || uid == before) && t.requestedAt.Sub(t.checkpointAsOf) < settleTimeout
}

// pruneConfirmed drops keys without an allocation, except the keys needed by catchUp.
func (t *allocationTracker) pruneConfirmed(now time.Time) {
	needed := !t.caughtUp && (t.trustedSince.IsZero() || t.isCatchingUp(now))
	maps.DeleteFunc(t.confirmed, func(a device.Allocation, _ bool) bool {
		if a.Claimed() {
			_, found := slices.BinarySearchFunc(t.allocations, a, device.CompareAllocations)
			return !found
		}
		return !needed && !t.has(keyOf(a))
	})
}

// has reports whether a key has an allocation, with or without an owner.
func (t *allocationTracker) has(key allocationKey) bool {
	target := device.Allocation{Resource: key.resource, DeviceID: key.id} // sorts before all with an owner
	i, _ := slices.BinarySearchFunc(t.allocations, target, device.CompareAllocations)
	return i < len(t.allocations) && keyOf(t.allocations[i]) == key
}

// confirmPod merges a response of Get. Get only adds the owners of pending allocations. The result reports whether there were any.
func (t *allocationTracker) confirmPod(rows []device.Allocation, epoch kubeletEpoch, requestedAt time.Time) bool {
	if epoch != t.epoch { // the first response over a connection must be a List
		return false
	}
	t.scratch = append(t.scratch[:0], t.allocations...)
	for _, a := range rows {
		allocatedAt, isPending := t.pending[keyOf(a)]
		if !isPending || allocatedAt.latest.After(requestedAt) {
			continue
		}
		if endedAt, ended := t.endedPods[podNameOf(a)]; ended && endedAt.Before(allocatedAt.earliest) { // an earlier pod of the same name
			delete(t.endedPods, podNameOf(a))
		}
		t.scratch[slices.Index(t.scratch, device.Allocation{Resource: a.Resource, DeviceID: a.DeviceID})] = a
		t.confirm(a, allocatedAt, requestedAt)
	}
	return t.commit(requestedAt)
}

// markPodEnded records the end of a pod by the Pods API, and reports whether the pod has allocations. The kubelet may still list the pod
// for a moment.
func (t *allocationTracker) markPodEnded(p podName, now time.Time) bool {
	if !slices.ContainsFunc(t.allocations, func(a device.Allocation) bool { return podNameOf(a) == p }) {
		return false
	}
	t.endedPods[p] = now
	return true
}

// dropEndedPods ends the allocations of ended pods, since the kubelet does not answer. The result reports whether there were any.
func (t *allocationTracker) dropEndedPods(now time.Time) bool {
	t.scratch = t.scratch[:0]
	t.keep(func(a device.Allocation, phase allocationPhase) bool {
		_, ended := t.endedPods[podNameOf(a)]
		return ended && phase != pending
	})
	return t.commit(now)
}

// expectsUpdate reports whether the next List or checkpoint may soon name an owner or an allocation.
func (t *allocationTracker) expectsUpdate(now time.Time) bool {
	return t.isLookingUp(now) || t.isCatchingUp(now) || t.awaitsConfirmation(now)
}

// isLookingUp reports whether an allocation is pending for less than ownerLookupTimeout.
func (t *allocationTracker) isLookingUp(now time.Time) bool {
	for _, allocatedAt := range t.pending {
		if now.Sub(allocatedAt.latest) < ownerLookupTimeout {
			return true
		}
	}
	return false
}

// awaitsConfirmation reports whether allocations are retained and the kubelet will soon confirm them. An allocation that ends unconfirmed
// stays for settleTimeout.
func (t *allocationTracker) awaitsConfirmation(now time.Time) bool {
	return now.Sub(t.epoch.connectedAt) < ownerLookupTimeout &&
		slices.ContainsFunc(t.allocations, func(a device.Allocation) bool { return t.phaseOf(a) == retained })
}

// isCatchingUp reports whether the checkpoint may still have allocations from before this process began.
func (t *allocationTracker) isCatchingUp(now time.Time) bool {
	return !t.caughtUp && !t.trustedSince.IsZero() && now.Sub(t.trustedSince) < ownerLookupTimeout
}
