package incident

import (
	"cmp"
	"regexp"
	"slices"
)

// mergeRepeats merges new incidents with earlier incidents of the same reason, device and workload within a day. The newest incident stays.
// Incidents that marked a device unhealthy are never merged, because each has a recovery.
func (t *tracker) mergeRepeats() {
	for i := 0; i < len(t.entries); i++ {
		e := t.entries[i]
		if e.merged || len(e.unnamedAllocations) > 0 {
			continue
		}
		e.merged = true
		for k := i - 1; k >= 0; k-- {
			if t.entries[k].isRepeatedBy(e) {
				e.absorb(t.entries[k])
				t.entries = slices.Delete(t.entries, k, k+1)
				t.changed = true
				i--
				break // the earlier incident was merged with its own repeats
			}
		}
	}
}

func (e *trackedIncident) isRepeatedBy(n *trackedIncident) bool {
	return e.Device == n.Device && e.Reason == n.Reason && !e.MarkedUnhealthy && !n.MarkedUnhealthy && !e.Historical && !n.Historical &&
		n.First.Sub(e.Last) <= repeatWindow && e.OwnersIncomplete == n.OwnersIncomplete && e.AffectedUnknown == n.AffectedUnknown &&
		slices.Equal(e.deviceIDs, n.deviceIDs) && slices.Equal(e.workloads(), n.workloads())
}

// absorb adds the events of an earlier incident. The newest of the earlier containers stay.
func (e *trackedIncident) absorb(earlier *trackedIncident) {
	e.First, e.Last, e.Count = earliest(e.First, earlier.First), latest(e.Last, earlier.Last), e.Count+earlier.Count
	e.Affected = slices.Clone(e.Affected)
	limit := maxEarlierContainers + len(e.Affected)
	if i := slices.IndexFunc(e.Affected, func(c AffectedContainer) bool { return !c.Last.IsZero() }); i >= 0 { // of another earlier incident
		limit = maxEarlierContainers + i
	}
	for _, c := range earlier.Affected {
		if len(e.Affected) < limit && !e.isAffected(c.Owner, earlier.DeviceOf(c)) {
			c.Last = earlier.LastOf(c)
			c.terminationFinal = true
			e.Affected = append(e.Affected, c)
		}
	}
}

// generatedSuffix matches the part of a pod's name that a Deployment, DaemonSet, Job or CronJob generates
// (k8s.io/apimachinery/pkg/util/rand).
var generatedSuffix = regexp.MustCompile(`(-([bcdfghjklmnpqrstvwxz2456789]{6,10}|[0-9]+))?-[bcdfghjklmnpqrstvwxz2456789]{5}$`)

// workloads returns the devices and containers of the affected pods, without the generated part of the pods' names.
func (e *trackedIncident) workloads() (all []AffectedContainer) {
	for _, c := range e.Affected {
		c.Pod = generatedSuffix.ReplaceAllLiteralString(c.Pod, "")
		all = append(all, AffectedContainer{Owner: c.Owner, Device: c.Device})
	}
	slices.SortFunc(all, func(a, b AffectedContainer) int { return cmp.Or(cmp.Compare(a.Device, b.Device), a.Compare(b.Owner)) })
	return slices.Compact(all)
}
