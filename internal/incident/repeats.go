package incident

import (
	"cmp"
	"regexp"
	"slices"
	"time"

	"github.com/podgauge/podgauge/internal/allocation"
	"github.com/podgauge/podgauge/internal/device"
)

const (
	// mergeWindow is the longest time between two events of one incident.
	mergeWindow = time.Minute
	// repeatWindow is the longest time between an incident and its repeat. A
	// crash loop takes minutes, a CronJob a day.
	repeatWindow = 24 * time.Hour
	// maxEarlierContainers bounds the containers that only earlier events of an
	// incident affected.
	maxEarlierContainers = 16
)

// matches reports whether an event repeats the incident. A later owner of the
// same name, as in a StatefulSet, has an incident of its own.
func (e *trackedIncident) matches(o *device.HealthEvent, h *allocation.Snapshot) bool {
	return !e.fromEarlierProcess && e.RecoveredAt == nil && o.At.Sub(e.Last) <= mergeWindow &&
		e.Historical == o.Historical && e.Note == o.Note &&
		slices.EqualFunc(e.deviceIDs, o.Affected, func(id device.ID, d device.Device) bool { return d.ID == id }) &&
		e.sameAllocations(o, h)
}

// sameAllocations reports whether the affected devices are allocated as before.
func (e *trackedIncident) sameAllocations(o *device.HealthEvent, h *allocation.Snapshot) bool {
	began := func(s allocation.Record) bool {
		return s.EndedAt.IsZero() && s.FirstSeen.After(e.Last) && !s.FirstSeen.After(o.At)
	}
	for _, id := range e.deviceIDs {
		if slices.ContainsFunc(h.RecentOf(id), began) {
			return false
		}
	}
	return slices.Equal(e.currentAllocations(h), e.allocations)
}

// isRepeatedBy reports whether an incident merges with a newer one. Incidents
// that marked a device unhealthy are never merged, because each has a recovery.
func (e *trackedIncident) isRepeatedBy(n *trackedIncident) bool {
	isMergeable := func(i *trackedIncident) bool { return !i.MarkedUnhealthy && !i.Historical }
	return isMergeable(e) && isMergeable(n) &&
		e.Device == n.Device && e.Reason == n.Reason && n.First.Sub(e.Last) <= repeatWindow &&
		e.OwnersIncomplete == n.OwnersIncomplete && e.AffectedUnknown == n.AffectedUnknown &&
		slices.Equal(e.HPCJobs, n.HPCJobs) && slices.Equal(e.deviceIDs, n.deviceIDs) &&
		slices.Equal(e.workloads(), n.workloads())
}

// absorb adds the events of an earlier incident. The newest of the earlier
// containers stay.
func (e *trackedIncident) absorb(earlier *trackedIncident) {
	e.First = earliest(e.First, earlier.First)
	e.Last = latest(e.Last, earlier.Last)
	e.Count += earlier.Count
	e.Affected = slices.Clone(e.Affected)
	own := slices.IndexFunc(e.Affected, func(c AffectedContainer) bool { return !c.Last.IsZero() })
	if own < 0 { // the others are of another earlier incident
		own = len(e.Affected)
	}
	limit := own + maxEarlierContainers
	for _, c := range earlier.Affected {
		if len(e.Affected) < limit && !e.isAffected(c.Owner, earlier.DeviceOf(c)) {
			c.Last = earlier.LastOf(c)
			c.terminationFinal = true
			e.Affected = append(e.Affected, c)
		}
	}
}

// generatedSuffix matches the part of a pod's name that a Deployment,
// DaemonSet, Job or CronJob generates (k8s.io/apimachinery/pkg/util/rand).
var generatedSuffix = regexp.MustCompile(
	`(-([bcdfghjklmnpqrstvwxz2456789]{6,10}|[0-9]+))?-[bcdfghjklmnpqrstvwxz2456789]{5}$`)

// workloads returns the devices and containers of the affected pods, without
// the generated part of the pods' names.
func (e *trackedIncident) workloads() (all []AffectedContainer) {
	for _, c := range e.Affected {
		c.Pod = generatedSuffix.ReplaceAllLiteralString(c.Pod, "")
		all = append(all, AffectedContainer{Owner: c.Owner, Device: c.Device})
	}
	slices.SortFunc(all, func(a, b AffectedContainer) int {
		return cmp.Or(cmp.Compare(a.Device, b.Device), a.Compare(b.Owner))
	})
	return slices.Compact(all)
}
