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
	mostPods  = 16384
	mostEnded = 512 // of these, those that are over; the oldest are let go
	mostOver  = 1024
)

// known is what the kubelet has said of its pods, and what follows from it. It
// belongs to Run's goroutine.
//
// The kubelet's events are not all in the order of what happened: they are sent
// after the lock is given back under which they were made, and those of the time in
// which a stream's first pods are listed come again after the list
// (pkg/kubelet/status/status_manager.go, sendNotification). But a phase that is
// terminal never changes (pkg/kubelet/kubelet_pods.go, generateAPIPodStatus), and
// DELETED is the last of a pod, unless it is a static one (updateStatusInternal).
type known struct {
	pods Pods // the newest, as published
	// syncing are the pods of a stream that has not said yet which there are; nil after
	// that.
	syncing map[string]*Pod
	// doubt is why something may be missing in what this stream has said.
	doubt error
	// over are the pods whose end was told. Those that the API server still has come
	// back with the next stream.
	over uids
	// arrived and ended are to be told when pods are published.
	arrived, ended []*Pod
}

// begin begins a new stream. What it lists takes the place of all that is known when
// it has said that this is all.
func (k *known) begin() {
	k.syncing, k.doubt = map[string]*Pod{}, nil
}

// take takes in one event, and tells whether the pods are others now.
func (k *known) take(e *event) (changed bool) {
	switch {
	case e.err != nil:
		return k.doubted(e.err)
	case e.kind == api.EventType_INITIAL_SYNC_COMPLETE:
		return k.complete()
	case !e.ofPod(): // of a kind that there will be one day
		return false
	case k.syncing != nil:
		return k.listed(e)
	case e.kind == api.EventType_DELETED:
		return k.deleted(e.pod.UID)
	default:
		return k.updated(&e.pod, e.kind == api.EventType_ADDED)
	}
}

// doubted notes that something could not be understood. All else goes on, but until
// the next stream nobody can say that nothing is missing.
func (k *known) doubted(err error) (changed bool) {
	changed = k.pods.Synced
	k.doubt = err
	k.pods.Synced, k.pods.Err = false, err
	return changed
}

// listed takes in a pod while the stream says which there are.
func (k *known) listed(e *event) (changed bool) {
	_, there := k.syncing[e.pod.UID]
	switch {
	case e.kind == api.EventType_DELETED:
		delete(k.syncing, e.pod.UID)
	case !there && len(k.syncing) == mostPods:
		return k.doubted(errTooMany)
	default:
		k.syncing[e.pod.UID] = e.pod.clone()
	}
	return false
}

var errTooMany = fmt.Errorf("follow pods: there are more than %d", mostPods)

// complete puts the pods that the stream has listed in the place of all others. Where
// it is in doubt, an absence proves nothing.
func (k *known) complete() (changed bool) {
	if k.syncing == nil {
		return false
	}
	for _, old := range k.pods.byUID {
		p, there := k.syncing[old.UID]
		switch {
		case there && p.equal(old):
			k.syncing[old.UID] = old
		case there:
		case k.doubt != nil:
			k.syncing[old.UID] = old
		default:
			k.left(old)
			k.pods.bury(old)
		}
	}
	all := slices.SortedFunc(maps.Values(k.syncing), compareNames)
	for _, p := range all {
		k.met(k.pods.find(p.UID), p)
	}
	k.pods.replace(all)
	k.pods.Synced, k.pods.Err = k.doubt == nil, k.doubt
	k.syncing = nil
	k.trim()
	return true
}

// updated takes in a pod's new version. Only a static pod comes back from its end, when
// it is made again of the same manifest: of any other a version that does is a late one.
func (k *known) updated(p *Pod, added bool) (changed bool) {
	old := k.pods.find(p.UID)
	mayBeLate := !added && !isStatic(p.UID)
	switch {
	case mayBeLate && old == nil && k.over.has(p.UID),
		mayBeLate && old != nil && old.Terminal() && !p.Terminal(),
		old != nil && old.equal(p):
		return false
	case old == nil && k.pods.Len() == mostPods:
		return k.doubted(errTooMany)
	}
	p = p.clone()
	k.pods.put(p)
	k.met(old, p)
	if p.Ended() {
		k.trim()
	}
	return true
}

// isStatic tells whether a uid is the hash of a manifest, and not the API server's.
func isStatic(uid string) bool { return !strings.Contains(uid, "-") }

func (k *known) deleted(uid string) (changed bool) {
	old := k.pods.find(uid)
	if old == nil {
		return false
	}
	k.left(old)
	k.pods.remove(old)
	k.pods.bury(old)
	return true
}

// met notes what is to be told of a pod, which was old before; that may be nil.
func (k *known) met(old, p *Pod) {
	switch {
	case p.Ended():
		k.left(p)
	case old == nil || old.Ended():
		k.over.remove(p.UID)
		k.arrived = append(k.arrived, p)
	}
}

// left notes that a pod's end is to be told, where it was not before.
func (k *known) left(p *Pod) {
	if k.over.add(p.UID) {
		k.ended = append(k.ended, p)
	}
}

// trim lets the oldest go of too many pods that are over.
func (k *known) trim() {
	var over []*Pod
	for _, p := range k.pods.byUID {
		if p.Ended() {
			over = append(over, p)
		}
	}
	if len(over) <= mostEnded {
		return
	}
	slices.SortStableFunc(over, func(a, b *Pod) int { return a.Created.Compare(b.Created) })
	for _, p := range over[:len(over)-mostEnded] {
		k.pods.remove(p)
		k.pods.bury(p)
	}
}

// uids are the latest of those that were added.
type uids struct {
	set   map[string]struct{}
	order []string
}

func (u *uids) has(uid string) bool {
	_, ok := u.set[uid]
	return ok
}

// add tells whether it was not there.
func (u *uids) add(uid string) bool {
	if u.has(uid) {
		return false
	}
	if u.set == nil {
		u.set = map[string]struct{}{}
	}
	if len(u.order) == mostOver {
		delete(u.set, u.order[0])
		u.order = slices.Delete(u.order, 0, 1)
	}
	u.set[uid] = struct{}{}
	u.order = append(u.order, uid)
	return true
}

func (u *uids) remove(uid string) {
	if u.has(uid) {
		delete(u.set, uid)
		u.order = slices.DeleteFunc(u.order, func(other string) bool { return other == uid })
	}
}
