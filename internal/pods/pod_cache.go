package pods

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	api "k8s.io/kubelet/pkg/apis/pods/v1alpha1"
)

// Limits of what is remembered. A node has a few hundred pods; but pods that were
// rejected stay in the API server by the thousand, and each new stream begins with
// them.
const (
	maxPods      = 16384
	maxEndedPods = 512 // of these, those that are over; the oldest are let go
	maxEndedUIDs = 1024
)

// podCache is what the kubelet has said of its pods, and what follows from it. It
// belongs to Run's goroutine.
//
// The kubelet's events are not all in the order of what happened: they are sent
// after the lock is given back under which they were made, and those of the time in
// which a stream's first pods are listed come again after the list
// (pkg/kubelet/status/status_manager.go, sendNotification). But a phase that is
// terminal never changes (pkg/kubelet/kubelet_pods.go, generateAPIPodStatus), and
// DELETED is the last of a pod, unless it is a static one (updateStatusInternal).
type podCache struct {
	pods Pods // the newest, as published
	// syncing are the pods of a stream that has not said yet which there are; nil after
	// that.
	syncing map[string]*Pod
	// incompleteErr is why something may be missing in what this stream has said.
	incompleteErr error
	// endedUIDs are the pods whose end was told. Those that the API server still has come
	// back with the next stream.
	endedUIDs recentUIDs
	// addedPods and ended are to be told when pods are published.
	addedPods, endedPods []*Pod
}

// startSync begins a new stream. What it lists takes the place of all that is known when
// it has said that this is all.
func (c *podCache) startSync() {
	c.syncing, c.incompleteErr = map[string]*Pod{}, nil
}

// apply takes in one event, and tells whether the pods are others now.
func (c *podCache) apply(e *watchEvent) (changed bool) {
	switch {
	case e.err != nil:
		return c.markIncomplete(e.err)
	case e.kind == api.EventType_INITIAL_SYNC_COMPLETE:
		return c.completeSync()
	case !e.hasPod(): // of a kind that there will be one day
		return false
	case c.syncing != nil:
		return c.applyListed(e)
	case e.kind == api.EventType_DELETED:
		return c.applyDelete(e.pod.UID)
	default:
		return c.applyUpdate(&e.pod, e.kind == api.EventType_ADDED)
	}
}

// markIncomplete notes that something could not be understood. All else goes on, but until
// the next stream nobody can say that nothing is missing.
func (c *podCache) markIncomplete(err error) (changed bool) {
	changed = c.pods.Synced
	c.incompleteErr = err
	c.pods.Synced, c.pods.Err = false, err
	return changed
}

// applyListed takes in a pod while the stream says which there are.
func (c *podCache) applyListed(e *watchEvent) (changed bool) {
	_, listed := c.syncing[e.pod.UID]
	switch {
	case e.kind == api.EventType_DELETED:
		delete(c.syncing, e.pod.UID)
	case !listed && len(c.syncing) == maxPods:
		return c.markIncomplete(errTooManyPods)
	default:
		c.syncing[e.pod.UID] = e.pod.clone()
	}
	return false
}

var errTooManyPods = fmt.Errorf("follow pods: there are more than %d", maxPods)

// completeSync puts the pods that the stream has listed in the place of all others. Where
// it is in doubt, an absence proves nothing.
func (c *podCache) completeSync() (changed bool) {
	if c.syncing == nil {
		return false
	}
	for _, old := range c.pods.byUID {
		p, listed := c.syncing[old.UID]
		switch {
		case listed && p.equal(old):
			c.syncing[old.UID] = old
		case listed:
		case c.incompleteErr != nil:
			c.syncing[old.UID] = old
		default:
			c.queueEnded(old)
			c.pods.recordDeleted(old)
		}
	}
	all := slices.SortedFunc(maps.Values(c.syncing), compareNames)
	for _, p := range all {
		c.queueSeen(c.pods.find(p.UID), p)
	}
	c.pods.setAll(all)
	c.pods.Synced, c.pods.Err = c.incompleteErr == nil, c.incompleteErr
	c.syncing = nil
	c.trimEnded()
	return true
}

// applyUpdate takes in a pod's new version. Only a static pod comes back from its end, when
// it is made again of the same manifest: of any other a version that does is a late one.
func (c *podCache) applyUpdate(p *Pod, added bool) (changed bool) {
	old := c.pods.find(p.UID)
	mayBeLate := !added && !isStatic(p.UID)
	switch {
	case mayBeLate && old == nil && c.endedUIDs.has(p.UID),
		mayBeLate && old != nil && old.Terminal() && !p.Terminal(),
		old != nil && old.equal(p):
		return false
	case old == nil && c.pods.Len() == maxPods:
		return c.markIncomplete(errTooManyPods)
	}
	p = p.clone()
	c.pods.upsert(p)
	c.queueSeen(old, p)
	if p.Ended() {
		c.trimEnded()
	}
	return true
}

// isStatic tells whether a uid is the hash of a manifest, and not the API server's.
func isStatic(uid string) bool { return !strings.Contains(uid, "-") }

func (c *podCache) applyDelete(uid string) (changed bool) {
	old := c.pods.find(uid)
	if old == nil {
		return false
	}
	c.queueEnded(old)
	c.pods.remove(old)
	c.pods.recordDeleted(old)
	return true
}

// queueSeen notes what is to be told of a pod, which was old before; that may be nil.
func (c *podCache) queueSeen(old, p *Pod) {
	switch {
	case p.Ended():
		c.queueEnded(p)
	case old == nil || old.Ended():
		c.endedUIDs.remove(p.UID)
		c.addedPods = append(c.addedPods, p)
	}
}

// queueEnded notes that a pod's end is to be told, where it was not before.
func (c *podCache) queueEnded(p *Pod) {
	if c.endedUIDs.add(p.UID) {
		c.endedPods = append(c.endedPods, p)
	}
}

// trimEnded lets the oldest go of too many pods that are over.
func (c *podCache) trimEnded() {
	var ended []*Pod
	for _, p := range c.pods.byUID {
		if p.Ended() {
			ended = append(ended, p)
		}
	}
	if len(ended) <= maxEndedPods {
		return
	}
	slices.SortStableFunc(ended, func(a, b *Pod) int { return a.Created.Compare(b.Created) })
	for _, p := range ended[:len(ended)-maxEndedPods] {
		c.pods.remove(p)
		c.pods.recordDeleted(p)
	}
}

// recentUIDs are the latest of those that were added.
type recentUIDs struct {
	set   map[string]struct{}
	order []string
}

func (u *recentUIDs) has(uid string) bool {
	_, ok := u.set[uid]
	return ok
}

// add tells whether it was not there.
func (u *recentUIDs) add(uid string) bool {
	if u.has(uid) {
		return false
	}
	if u.set == nil {
		u.set = map[string]struct{}{}
	}
	if len(u.order) == maxEndedUIDs {
		delete(u.set, u.order[0])
		u.order = slices.Delete(u.order, 0, 1)
	}
	u.set[uid] = struct{}{}
	u.order = append(u.order, uid)
	return true
}

func (u *recentUIDs) remove(uid string) {
	if u.has(uid) {
		delete(u.set, uid)
		u.order = slices.DeleteFunc(u.order, func(other string) bool { return other == uid })
	}
}
