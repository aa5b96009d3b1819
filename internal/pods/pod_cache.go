package pods

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	api "k8s.io/kubelet/pkg/apis/pods/v1alpha1"
)

// Limits of the cache. A node has a few hundred pods, but rejected pods stay in
// the API server by the thousand, and each new stream begins with them.
const (
	maxPods      = 16384
	maxPodsBytes = 8 << 20
	maxEndedPods = 512 // among them; the oldest are dropped
)

var errTooManyPods = fmt.Errorf("more than %d pods", maxPods)

// podCache applies the kubelet's events to the pods. Run's goroutine owns the
// cache.
//
// The kubelet may send events out of order: sending follows the release of the
// lock that the change was made under, and events during the initial list
// arrive again after the list (sendNotification in
// pkg/kubelet/status/status_manager.go). But a terminal phase never changes
// (generateAPIPodStatus in pkg/kubelet/kubelet_pods.go), and DELETED is the
// last event of a pod, except for a static pod (updateStatusInternal).
//
//	                 while the stream lists pods      after INITIAL_SYNC_COMPLETE
//	ADDED, MODIFIED  add to the new list              replace the pod, unless the event is late
//	DELETED          remove from the new list         end the pod, move it to the deleted pods
//	SYNC_COMPLETE    replace all pods by the list     –
type podCache struct {
	pods    Pods            // the newest, as published
	syncing map[string]*Pod // the new stream's list by UID; nil after INITIAL_SYNC_COMPLETE
	bytes   int             // added to the list
	// added and ended are new by the event; the client reports them.
	added, ended []*Pod
}

// startSync begins a new stream. All known pods stay until the stream has
// listed its pods.
func (c *podCache) startSync() { c.syncing, c.bytes = map[string]*Pod{}, 0 }

// apply applies one event and reports whether pods changed. An error ends the
// stream.
func (c *podCache) apply(e *watchEvent) (changed bool, err error) {
	switch {
	case e.kind == api.EventType_INITIAL_SYNC_COMPLETE:
		return c.completeSync(), nil
	case !e.hasPod(): // a later kubelet's kind
		return false, nil
	case e.kind == api.EventType_DELETED && c.syncing != nil:
		delete(c.syncing, e.pod.UID)
		return false, nil
	case e.kind == api.EventType_DELETED:
		return c.applyDelete(e.pod.UID), nil
	}
	if c.bytes += e.pod.bytes(); c.bytes > maxPodsBytes && c.syncing == nil { // with replaced and deleted pods
		c.bytes = e.pod.bytes()
		for _, p := range c.pods.list {
			if p.UID != e.pod.UID {
				c.bytes += p.bytes()
			}
		}
	}
	if c.bytes > maxPodsBytes { // the end of the stream would stop all pods
		c.bytes -= e.pod.bytes()
		e.pod.Containers, e.pod.Labels, e.cut = nil, nil, true
		c.bytes += e.pod.bytes()
	}
	switch {
	case len(c.syncing) == maxPods, c.syncing == nil && c.pods.Len() == maxPods:
		return false, errTooManyPods
	case c.syncing != nil:
		c.syncing[e.pod.UID] = new(e.pod)
		return false, nil
	}
	return c.applyUpdate(&e.pod, e.kind == api.EventType_ADDED), nil
}

// setErr marks the pods as not synced and reports whether that is new.
func (c *podCache) setErr(err error) (changed bool) {
	changed = c.pods.Synced || c.pods.Err == nil || c.pods.Err.Error() != err.Error()
	c.pods.Synced, c.pods.Err = false, err
	return changed
}

// completeSync replaces all pods by the stream's list.
func (c *podCache) completeSync() (changed bool) {
	if c.syncing == nil {
		return false
	}
	before := make(map[string]*Pod, c.pods.Len())
	for _, old := range c.pods.list {
		before[old.UID] = old
		if p, listed := c.syncing[old.UID]; listed && p.equal(old) {
			c.syncing[old.UID] = old
		} else if !listed {
			c.end(old)
		}
	}
	c.pods.list = slices.SortedFunc(maps.Values(c.syncing), compareNames)
	for _, p := range c.pods.list {
		c.recordSeen(before[p.UID], p)
	}
	c.pods.Synced, c.pods.Err, c.syncing = true, nil, nil
	c.trimEnded(before)
	return true
}

// applyUpdate applies a pod's new version. Only a static pod can return from
// Terminal, as a new pod of the same manifest: any other such event is late.
func (c *podCache) applyUpdate(p *Pod, added bool) (changed bool) {
	old := c.pods.find(p.UID)
	mayBeLate := !added && strings.Contains(p.UID, "-") // a static pod's UID has no dash
	switch {
	case mayBeLate && old == nil && c.pods.findDeleted(p.UID) >= 0,
		mayBeLate && old != nil && old.Terminal() && !p.Terminal(),
		old != nil && old.equal(p):
		return false
	}
	p = new(*p)
	c.pods.upsert(p)
	c.recordSeen(old, p)
	if p.Ended() {
		c.trimEnded(nil)
	}
	return true
}

func (c *podCache) applyDelete(uid string) (changed bool) {
	old := c.pods.find(uid)
	if old == nil {
		return false
	}
	c.pods.remove(uid)
	c.end(old)
	return true
}

// end records a deleted pod.
func (c *podCache) end(p *Pod) {
	c.pods.recordDeleted(p)
	if !p.Ended() { // not notified yet
		c.ended = append(c.ended, p)
	}
}

// recordSeen records p, or the end of p, if it is new. old is the previous
// version, or nil.
func (c *podCache) recordSeen(old, p *Pod) {
	switch wasEnded := old != nil && old.Ended(); {
	case p.Ended() && !wasEnded:
		c.ended = append(c.ended, p)
	case !p.Ended() && (old == nil || wasEnded):
		c.added = append(c.added, p)
	}
}

// trimEnded moves the oldest ended pods above maxEndedPods to the deleted pods:
// the end of an old pod may be new. At a sync after the first, before has the
// known pods by UID; other ended pods are dropped, since each stream lists the
// pods trimmed earlier again, and these would push newer ends out of the deleted
// pods.
func (c *podCache) trimEnded(before map[string]*Pod) {
	ended := slices.DeleteFunc(slices.Clone(c.pods.list), func(p *Pod) bool { return !p.Ended() })
	if len(ended) <= maxEndedPods {
		return
	}
	slices.SortFunc(ended, func(a, b *Pod) int { return a.Created.Compare(b.Created) })
	dropped := map[*Pod]bool{}
	for _, p := range ended[:len(ended)-maxEndedPods] {
		dropped[p] = true
		if len(before) == 0 || before[p.UID] != nil {
			c.pods.recordDeleted(p)
		}
	}
	c.pods.list = slices.DeleteFunc(slices.Clone(c.pods.list), func(p *Pod) bool { return dropped[p] })
}
