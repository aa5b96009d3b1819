package pods

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	api "k8s.io/kubelet/pkg/apis/pods/v1alpha1"
)

// Limits of the cache. A node has a few hundred pods, but rejected pods stay in the API server by the thousand, and each new stream
// begins with them.
const (
	maxPods      = 16384
	maxEndedPods = 512 // among them; the oldest are dropped
	maxEndedUIDs = 1024
)

var errTooManyPods = fmt.Errorf("follow pods: more than %d pods", maxPods)

// podCache applies the kubelet's events to the pods. Run's goroutine owns the cache.
//
// The kubelet may send events out of order: sending follows the release of the lock that the change was made under, and events during
// the initial list arrive again after the list (sendNotification in pkg/kubelet/status/status_manager.go). But a terminal phase never
// changes (generateAPIPodStatus in pkg/kubelet/kubelet_pods.go), and DELETED is the last event of a pod, except for a static pod
// (updateStatusInternal).
//
//	                 while the stream lists pods      after INITIAL_SYNC_COMPLETE
//	ADDED, MODIFIED  add to the new list              replace the pod, unless the event is late
//	DELETED          remove from the new list         end the pod, move it to the deleted pods
//	SYNC_COMPLETE    replace all pods by the list     –
//	decode error     pods are incomplete: not Synced, and an absence ends no pod, until the next stream
type podCache struct {
	pods          Pods            // the newest, as published
	syncing       map[string]*Pod // the new stream's list by UID; nil after INITIAL_SYNC_COMPLETE
	incompleteErr error           // the reason why this stream may lack a pod
	endedUIDs     []string        // the newest reported ends, oldest first: the next stream may list an ended pod again
	// added and ended wait for the publication of pods, then go to the Observer.
	added, ended []*Pod
}

// startSync begins a new stream. All known pods stay until the stream has listed its pods.
func (c *podCache) startSync() {
	c.syncing, c.incompleteErr = map[string]*Pod{}, nil
}

// apply applies one event and reports whether pods changed.
func (c *podCache) apply(e *watchEvent) (changed bool) {
	switch {
	case e.err != nil:
		return c.markIncomplete(e.err)
	case e.kind == api.EventType_INITIAL_SYNC_COMPLETE:
		return c.completeSync()
	case !e.hasPod(): // a later kubelet's kind
		return false
	case c.syncing != nil:
		return c.applyListed(e)
	case e.kind == api.EventType_DELETED:
		return c.applyDelete(e.pod.UID)
	default:
		return c.applyUpdate(&e.pod, e.kind == api.EventType_ADDED)
	}
}

// markIncomplete records that the stream may lack a pod.
func (c *podCache) markIncomplete(err error) (changed bool) {
	c.incompleteErr = err
	return c.setErr(err)
}

// setErr marks the pods as not synced and reports whether that is new.
func (c *podCache) setErr(err error) (changed bool) {
	changed = c.pods.Synced || c.pods.Err == nil || c.pods.Err.Error() != err.Error()
	c.pods.Synced, c.pods.Err = false, err
	return changed
}

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

// completeSync replaces all pods by the stream's list. An incomplete list removes no pod.
func (c *podCache) completeSync() (changed bool) {
	if c.syncing == nil {
		return false
	}
	before := make(map[string]*Pod, c.pods.Len())
	for _, old := range c.pods.list {
		before[old.UID] = old
		p, listed := c.syncing[old.UID]
		switch {
		case listed && p.equal(old), !listed && c.incompleteErr != nil:
			c.syncing[old.UID] = old
		case !listed:
			c.queueEnded(old)
			c.pods.recordDeleted(old)
		}
	}
	c.pods.list = slices.SortedFunc(maps.Values(c.syncing), compareNames)
	for _, p := range c.pods.list {
		c.queueSeen(before[p.UID], p)
	}
	c.pods.Synced, c.pods.Err = c.incompleteErr == nil, c.incompleteErr
	c.syncing = nil
	c.trimEnded()
	return true
}

// applyUpdate applies a pod's new version. Only a static pod can return from Terminal, as a new pod of the same manifest: any other
// such event is late.
func (c *podCache) applyUpdate(p *Pod, added bool) (changed bool) {
	old := c.pods.find(p.UID)
	mayBeLate := !added && strings.Contains(p.UID, "-") // a static pod's UID has no dash
	switch {
	case mayBeLate && old == nil && slices.Contains(c.endedUIDs, p.UID),
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

func (c *podCache) applyDelete(uid string) (changed bool) {
	old := c.pods.find(uid)
	if old == nil {
		return false
	}
	c.queueEnded(old)
	c.pods.remove(uid)
	c.pods.recordDeleted(old)
	return true
}

// queueSeen queues the notification about p. old is the previous version, or nil.
func (c *podCache) queueSeen(old, p *Pod) {
	switch {
	case p.Ended():
		c.queueEnded(p)
	case old == nil || old.Ended():
		c.endedUIDs = slices.DeleteFunc(c.endedUIDs, func(uid string) bool { return uid == p.UID })
		c.added = append(c.added, p)
	}
}

// queueEnded queues the notification of a pod's end, once per pod.
func (c *podCache) queueEnded(p *Pod) {
	if slices.Contains(c.endedUIDs, p.UID) {
		return
	}
	if len(c.endedUIDs) == maxEndedUIDs {
		c.endedUIDs = slices.Delete(c.endedUIDs, 0, 1)
	}
	c.endedUIDs = append(c.endedUIDs, p.UID)
	c.ended = append(c.ended, p)
}

// trimEnded removes the oldest ended pods above maxEndedPods.
func (c *podCache) trimEnded() {
	var ended []*Pod
	for _, p := range c.pods.list {
		if p.Ended() {
			ended = append(ended, p)
		}
	}
	if len(ended) <= maxEndedPods {
		return
	}
	slices.SortStableFunc(ended, func(a, b *Pod) int { return a.Created.Compare(b.Created) })
	drop := map[*Pod]bool{}
	for _, p := range ended[:len(ended)-maxEndedPods] {
		drop[p] = true
		c.pods.recordDeleted(p)
	}
	c.pods.list = slices.DeleteFunc(slices.Clone(c.pods.list), func(p *Pod) bool { return drop[p] })
}
