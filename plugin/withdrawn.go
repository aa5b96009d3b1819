package plugin

import (
	"cmp"
	"maps"
	"slices"
	"time"

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
func withdrawnResources(lists map[string]*deviceList, statuses []device.Status, allocations device.Allocations) []string {
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

// otherPlugin is what an endpoint knows about foreign plugins of its resource.
type otherPlugin struct {
	since          time.Time // when the endpoint was made, or the kubelet was last away
	seen           time.Time // newest list with the resource; zero: none
	registeredByUs bool      // by this process, and not released since
	waiting        bool      // the first registration waits for the foreign plugin
}

// hasOtherPlugin reports whether a foreign plugin serves the resource, before a
// first registration or if the resource is withdrawn. The kubelet's list of
// allocatable devices decides: only resources with a plugin are listed.
//
//	resource in the list   registered by this process   foreign plugin
//	yes                    no                           yes
//	yes                    yes                          yes, until the kubelet drops the old registration
//	no                     no                           as before for kubeletStartTimeout, then no: a plugin registers again
//	no, withdrawn          no                           yes for WithdrawnTimeout, then no: a plugin may be updated
//	list unknown           no                           as before; at first yes for the same timeout
//	no, or list unknown    yes                          no
//
// The timeouts begin when the kubelet listens.
func (e *endpoint) hasOtherPlugin() bool {
	allocations, _ := e.Allocations()
	known, withdrawn, now := allocations.Resources, e.list().withdrawn, time.Now()
	listed := slices.ContainsFunc(known.Allocatable.Devices, func(d device.ResourceDevice) bool {
		return d.Resource == e.resource
	})
	if listed || !known.AllocatableKnown && !e.other.seen.IsZero() {
		e.other.seen = now
	}
	last, timeout := e.other.seen, kubeletStartTimeout
	if last.IsZero() && (withdrawn || !known.AllocatableKnown) {
		last = e.other.since
	}
	if withdrawn {
		timeout = cmp.Or(e.WithdrawnTimeout, defaultWithdrawnTimeout)
	}
	return listed || !e.other.registeredByUs && now.Sub(last) < timeout
}

// onKubeletAway restarts the timeouts.
func (o *otherPlugin) onKubeletAway(now time.Time) {
	if o.since = now; !o.seen.IsZero() {
		o.seen = now
	}
}
