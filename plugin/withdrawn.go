package plugin

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/podgauge/podgauge/internal/allocation"
	"github.com/podgauge/podgauge/internal/device"
)

// This file owns withdrawn resources and the wait for foreign plugins. A
// withdrawn resource has no rule, and a container has one of the node's devices
// as this resource: an earlier process, or another plugin, served it. podgauge
// serves a withdrawn resource while no foreign plugin does
// (docs/contributing/adr/0015-renamed-resources.md).

// OtherPluginReason is why the first registration of a resource waits.
const OtherPluginReason = "waiting: another device plugin serves the resource"

// withdrawnResources returns the resources of allocations without a list by the
// rules, in order.
func withdrawnResources(
	lists map[string]*deviceList, statuses []device.Status, allocations allocation.Snapshot,
) []string {
	withdrawn := map[string]bool{}
	for _, a := range allocations.All {
		if _, known := findStatus(statuses, a.DeviceID.Device()); known && !a.Claimed() && lists[a.Resource] == nil {
			withdrawn[a.Resource] = true
		}
	}
	return slices.Sorted(maps.Keys(withdrawn))
}

// defaultWithdrawnTimeout is longer than the update of a plugin, and shorter
// than the five minutes for which a kubelet starts containers without one.
const defaultWithdrawnTimeout = time.Minute

// kubeletStartTimeout is the time from a kubelet's start to the list of
// allocatable devices and the registrations of all plugins.
const kubeletStartTimeout = 10 * time.Second

// otherPlugin is what an endpoint knows about foreign plugins of its resource.
type otherPlugin struct {
	*resourceState
	since          time.Time // when the endpoint was made, or the kubelet was last away
	seen           time.Time // newest list with the resource; zero: none
	registeredByUs bool      // by this process, and not released since
	waiting        bool      // the first registration waits for the foreign plugin
}

// blocks reports whether the resource is not registered because a foreign
// plugin serves it, or may serve it. An older podgauge process that serves it
// is about to end.
func (o *otherPlugin) blocks() bool {
	withdrawn := o.list().withdrawn
	ours := o.registeredByUs || o.TakeOver || slices.ContainsFunc(resourceSockets(o.Dir, o.resource), isServed)
	blocks := (withdrawn || !ours) && o.serves()
	listed := !o.seen.IsZero()
	switch {
	case blocks && (withdrawn || listed): // the node's devices are served
		o.unregistered.Set(nil)
	case blocks && !hasForeignSocket(o.Dir):
		return false
	}
	if blocks && listed && !withdrawn {
		o.setWaiting(true)
	} else if o.waiting {
		o.setWaiting(false)
		o.Log.Info("other device plugin is gone", "resource", o.resource)
	}
	return blocks
}

func (o *otherPlugin) setWaiting(waiting bool) {
	if waiting == o.waiting {
		return
	}
	o.waiting = waiting
	reason := ""
	if waiting {
		reason = OtherPluginReason
		o.Log.Warn(reason, "resource", o.resource, "hint", "remove the other plugin, or start with --take-over")
	}
	o.publish(func(r *Resource) {
		r.Waiting = waiting
		r.Err = reason
	})
}

// serves reports whether a foreign plugin serves the resource, before a
// first registration or if the resource is withdrawn. The kubelet's list of
// allocatable devices decides: only resources with a plugin are listed.
//
//	resource in the list   registered by this process   foreign plugin
//	yes                    no                           yes
//	yes                    yes                          yes, until the kubelet drops the old registration
//	no                     no                           as before for kubeletStartTimeout, then no
//	no, withdrawn          no                           yes for WithdrawnTimeout, then no: a plugin may be updated
//	list unknown           no                           as before; at first yes for the same timeout
//	no, or list unknown    yes                          no
//
// The timeouts begin when the kubelet listens.
func (o *otherPlugin) serves() bool {
	known, withdrawn, now := o.Allocations.Newest().Resources, o.list().withdrawn, time.Now()
	listed := slices.ContainsFunc(known.Allocatable.Devices, func(d allocation.ResourceDevice) bool {
		return d.Resource == o.resource
	})
	if listed || !known.AllocatableKnown && !o.seen.IsZero() {
		o.seen = now
	}
	last, timeout := o.seen, kubeletStartTimeout
	if last.IsZero() && (withdrawn || !known.AllocatableKnown) {
		last = o.since
	}
	if withdrawn {
		timeout = cmp.Or(o.WithdrawnTimeout, defaultWithdrawnTimeout)
	}
	return listed || !o.registeredByUs && now.Sub(last) < timeout
}

// onKubeletAway restarts the timeouts.
func (o *otherPlugin) onKubeletAway(now time.Time) {
	if o.since = now; !o.seen.IsZero() {
		o.seen = now
	}
}
