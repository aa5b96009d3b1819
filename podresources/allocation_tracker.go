package podresources

import (
	"maps"
	"slices"
	"time"

	"github.com/podgauge/podgauge/internal/allocation"
	"github.com/podgauge/podgauge/internal/device"
)

const (
	// ownPodDelay is the time from the first List with podgauge's own pod until
	// List has all pods: a kubelet admits the pods of the API server one after
	// the other.
	ownPodDelay = 10 * time.Second
	// restartTimeout is the time after its start within which a kubelet may
	// omit pods, if no own pod shows the end of the restart.
	restartTimeout = 60 * time.Second
	// ownerLookupTimeout is how long after Allocate an owner is looked up.
	ownerLookupTimeout = 10 * time.Second
	// maxAdmissionDelay is the time that a pod may have been listed before
	// Allocate: the admission also calls other plugins.
	maxAdmissionDelay = 30 * time.Second
)

// allocationTracker tracks allocations from List to List, without a lock or a
// clock.
//
// A restarted kubelet lists no pods, then static pods, then the pods of the API
// server. The restart is over when List has podgauge's own pod, and ownPodDelay
// has passed. Until then an unlisted pod keeps its devices, if the checkpoint
// has them. Afterwards, a device without an owner in List is not allocated,
// unless Allocate returned it a moment ago.
type allocationTracker struct {
	ownPod string // a pod of the API server; "" without any

	// allocations are published, so replaced and never written.
	allocations []allocation.Allocation
	complete    bool // a restart was over since podgauge began
	resources   allocation.ResourceSet
	numaNodes   map[allocationKey][]int
	history     ownerHistory
	own         ownIDs

	// pending has the allocations without an owner, by the time of Allocate.
	pending map[allocationKey]time.Time
	// pods has the listed pods; until the restart is over also the pods before.
	pods map[podName]podPresence
	// before is the checkpoint from before the newest List; nil if unreadable.
	before *kubeletCheckpoint

	epoch       *kubeletEpoch
	restartOver bool
	ownListedAt time.Time // first List with ownPod over this connection
}

// podPresence is when a pod was listed.
type podPresence struct {
	since time.Time     // request of the first List
	epoch *kubeletEpoch // of the newest List
}

func newAllocationTracker(ownPod string, retention time.Duration) allocationTracker {
	return allocationTracker{
		ownPod:    ownPod,
		numaNodes: map[allocationKey][]int{},
		history:   ownerHistory{retention: retention},
		pending:   map[allocationKey]time.Time{},
	}
}

// merge merges a List, with the checkpoint from before the request and now, and
// reports whether allocations changed.
func (t *allocationTracker) merge(
	l *listing, epoch *kubeletEpoch, requestedAt time.Time, before, checkpoint *kubeletCheckpoint,
) bool {
	isFirst := epoch != t.epoch
	if isFirst {
		t.epoch, t.restartOver, t.ownListedAt = epoch, false, time.Time{}
	}
	t.own = l.own
	t.restartOver = t.restartOver || t.isRestartOver(l.pods, isFirst, requestedAt)
	t.recordPods(l.pods, requestedAt)
	changed := !t.restartOver && t.addUnseen(checkpoint, requestedAt)
	t.before = before

	next, named := t.recordOwners(l.allocations, requestedAt)
	for _, a := range t.allocations {
		replaced := named[keyOf(a)] && !a.Claimed() // a claim may have several owners
		if !replaced && t.outlasts(a, requestedAt, checkpoint) {
			next = append(next, a)
		}
	}
	changed = t.commit(next, requestedAt) || changed
	t.mergeResources(l.resources)
	t.history.prune(requestedAt)
	if t.restartOver && !t.complete {
		t.complete, changed = true, true
	}
	return changed
}

// isRestartOver reports whether List has all pods. A kubelet that was running
// for long at the first List has had the time to admit its pods.
func (t *allocationTracker) isRestartOver(pods []podName, isFirst bool, requestedAt time.Time) bool {
	isOld := requestedAt.Sub(t.epoch.startedAt) >= restartTimeout
	if t.ownPod == "" {
		return isOld
	}
	if !slices.ContainsFunc(pods, func(p podName) bool { return p.pod == t.ownPod }) {
		return false
	}
	if t.ownListedAt.IsZero() {
		t.ownListedAt = requestedAt
	}
	return isFirst && isOld || requestedAt.Sub(t.ownListedAt) >= ownPodDelay
}

func (t *allocationTracker) recordPods(pods []podName, requestedAt time.Time) {
	listed := make(map[podName]podPresence, len(pods))
	if !t.restartOver {
		maps.Copy(listed, t.pods)
	}
	for _, p := range pods {
		since := requestedAt
		if presence, known := t.pods[p]; known {
			since = presence.since
		}
		listed[p] = podPresence{since, t.epoch}
	}
	t.pods = listed
}

// recordOwners returns the allocations of a List, and their ids. Allocations
// that are younger than the request are left out.
func (t *allocationTracker) recordOwners(
	rows []allocation.Allocation, requestedAt time.Time,
) (allocations []allocation.Allocation, named map[allocationKey]bool) {
	named = map[allocationKey]bool{}
	for _, a := range rows {
		allocatedAt, isPending := t.pending[keyOf(a)]
		if isPending && allocatedAt.After(requestedAt) {
			continue
		}
		named[keyOf(a)] = true
		allocations = append(allocations, a)
		if !t.own.has(a.DeviceID.Device()) {
			continue
		}
		if !isPending {
			allocatedAt = requestedAt
		}
		t.history.recordOwner(a, allocatedAt, requestedAt)
	}
	return allocations, named
}

// outlasts reports whether an earlier allocation goes on although List does not
// name its owner.
func (t *allocationTracker) outlasts(a allocation.Allocation, now time.Time, checkpoint *kubeletCheckpoint) bool {
	if allocatedAt, isPending := t.pending[keyOf(a)]; isPending {
		// Otherwise the pod was rejected after Allocate, or ended before a
		// List; or an init container alone uses the device, which List never
		// names.
		return !t.restartOver || now.Sub(allocatedAt) < ownerLookupTimeout ||
			checkpoint.has(keyOf(a)) && t.mayHaveOwner(allocatedAt)
	}
	return !t.restartOver && t.isUnlisted(a.Owner) && (a.Claimed() || checkpoint.has(keyOf(a)))
}

// isUnlisted reports whether no List over this connection has the owner's pod.
func (t *allocationTracker) isUnlisted(o allocation.Owner) bool {
	return t.pods[podOf(o)].epoch != t.epoch
}

// mayHaveOwner reports whether a listed pod can be the owner of an allocation:
// the pod is listed from before the admission until the end, and then its
// devices are free, while the checkpoint keeps the entries until the next
// write.
func (t *allocationTracker) mayHaveOwner(allocatedAt time.Time) bool {
	for _, presence := range t.pods {
		if presence.since.After(allocatedAt.Add(-maxAdmissionDelay)) {
			return true
		}
	}
	return false
}

// commit replaces the allocations, and reports whether the allocations changed.
func (t *allocationTracker) commit(next []allocation.Allocation, now time.Time) bool {
	slices.SortFunc(next, allocation.Compare)
	next = slices.Compact(next)
	if slices.Equal(next, t.allocations) {
		return false
	}
	t.allocations = next
	t.history.markEnded(next, now)
	unnamed, allocated := map[allocationKey]bool{}, map[allocationKey]bool{}
	for _, a := range next {
		allocated[keyOf(a)] = true
		unnamed[keyOf(a)] = a.Owner == allocation.Owner{}
	}
	maps.DeleteFunc(t.pending, func(key allocationKey, _ time.Time) bool { return !unnamed[key] })
	maps.DeleteFunc(t.numaNodes, func(key allocationKey, _ []int) bool { return !allocated[key] })
	return true
}

// mergeResources replaces the resources. Until the restart is over, unlisted
// pods keep theirs.
func (t *allocationTracker) mergeResources(latest allocation.ResourceSet) {
	for _, d := range latest.Devices {
		t.numaNodes[allocationKey{d.Resource, device.AdvertisedID(d.ID)}] = d.NUMANodes
	}
	if !t.restartOver {
		old := t.resources
		latest.CPUs = appendUnlisted(t, latest.CPUs, old.CPUs,
			func(c allocation.ExclusiveCPUs) allocation.Owner { return c.Owner })
		latest.Memory = appendUnlisted(t, latest.Memory, old.Memory,
			func(m allocation.ReservedMemory) allocation.Owner { return m.Owner })
		latest.Claims = appendUnlisted(t, latest.Claims, old.Claims,
			func(c allocation.Claim) allocation.Owner { return c.Owner })
		slices.SortFunc(latest.CPUs, allocation.ExclusiveCPUs.Compare)
		slices.SortFunc(latest.Memory, allocation.ReservedMemory.Compare)
		slices.SortFunc(latest.Claims, allocation.Claim.Compare)
	}
	t.resources = latest
}

// appendUnlisted appends the rows of owners whose pods no List over this
// connection has.
func appendUnlisted[T any](t *allocationTracker, to, from []T, owner func(T) allocation.Owner) []T {
	for _, row := range from {
		if t.isUnlisted(owner(row)) {
			to = append(to, row)
		}
	}
	return to
}

// allocatedResources returns the resources, with the devices of the allocations
// that have an owner. Claims have rows of their own.
func (t *allocationTracker) allocatedResources() allocation.ResourceSet {
	rows := t.resources
	rows.Devices = nil
	for _, a := range t.allocations {
		if a.Owner != (allocation.Owner{}) && !a.Claimed() {
			rows.Devices = append(rows.Devices, allocation.ResourceDevice{
				Owner: a.Owner, Resource: a.Resource, ID: string(a.DeviceID), NUMANodes: t.numaNodes[keyOf(a)],
			})
		}
	}
	slices.SortFunc(rows.Devices, allocation.ResourceDevice.Compare)
	return rows
}

// recordAllocate records the return of Allocate for the ids, and ends earlier
// allocations of the ids. The result reports whether allocations changed.
func (t *allocationTracker) recordAllocate(resource string, ids []device.AdvertisedID, now time.Time) bool {
	next := slices.DeleteFunc(slices.Clone(t.allocations), func(a allocation.Allocation) bool {
		return a.Resource == resource && slices.Contains(ids, a.DeviceID)
	})
	for _, id := range ids {
		t.pending[allocationKey{resource, id}] = now
		next = append(next, allocation.Allocation{Resource: resource, DeviceID: id})
	}
	return t.commit(next, now)
}

// addUnseen adds allocations that only the checkpoint has: the kubelet made
// them after the newest List, and stopped. They end earlier allocations of the
// devices. Entries from before that List do not count, since a kubelet frees
// devices without a write. The result reports whether allocations changed.
func (t *allocationTracker) addUnseen(checkpoint *kubeletCheckpoint, now time.Time) bool {
	if t.before == nil || checkpoint == nil {
		return false
	}
	unseen := map[allocationKey]bool{}
	for key, uid := range checkpoint.allocated {
		before, had := t.before.allocated[key]
		_, isPending := t.pending[key]
		if (!had || before != uid) && !isPending && t.own.has(key.id.Device()) {
			unseen[key] = true
		}
	}
	next := slices.DeleteFunc(slices.Clone(t.allocations), func(a allocation.Allocation) bool {
		return unseen[keyOf(a)]
	})
	for key := range unseen {
		t.pending[key] = now
		next = append(next, allocation.Allocation{Resource: key.resource, DeviceID: key.id})
	}
	return t.commit(next, now)
}

// mergeGet merges a Get, which only adds the owners of pending allocations, and
// reports whether there were any. The first response over a connection must be
// a List.
func (t *allocationTracker) mergeGet(l *listing, epoch *kubeletEpoch, requestedAt time.Time) bool {
	if epoch != t.epoch {
		return false
	}
	rows := slices.DeleteFunc(l.allocations, func(a allocation.Allocation) bool {
		_, isPending := t.pending[keyOf(a)]
		return !isPending
	})
	next, named := t.recordOwners(rows, requestedAt)
	for _, a := range t.allocations {
		if !named[keyOf(a)] {
			next = append(next, a)
		}
	}
	return t.commit(next, requestedAt)
}

// isLookingUp reports whether an allocation is pending for less than
// ownerLookupTimeout.
func (t *allocationTracker) isLookingUp(now time.Time) bool {
	return t.hasPending(func(at time.Time) bool { return now.Sub(at) < ownerLookupTimeout })
}

// needsCheckpoint reports whether an allocation depends on the checkpoint.
func (t *allocationTracker) needsCheckpoint(now time.Time) bool {
	return t.hasPending(func(at time.Time) bool { return now.Sub(at) >= ownerLookupTimeout })
}

func (t *allocationTracker) hasPending(matches func(allocatedAt time.Time) bool) bool {
	return slices.ContainsFunc(slices.Collect(maps.Values(t.pending)), matches)
}

// isOwnPodMissing reports whether List has never named the own pod although the
// kubelet has had the time to admit its pods.
func (t *allocationTracker) isOwnPodMissing(now time.Time) bool {
	return t.ownPod != "" && !t.complete && t.ownListedAt.IsZero() && now.Sub(t.epoch.startedAt) >= restartTimeout
}
