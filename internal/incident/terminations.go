package incident

import (
	"slices"
	"time"

	"github.com/podgauge/podgauge/internal/device"
)

// TerminationLookup finds out how a container's stay with a device went on, and tells whether its pod
// is known.
type TerminationLookup = func(device.Assignment) (device.Termination, bool)

// terminationTimeout is how long after a report a pod is looked for that is not known: the kubelet
// tells of a pod before it is given anything, and what is gone is known for some minutes
// more.
const terminationTimeout = 10 * time.Minute

// awaitsTermination tells whether more will be known of some holder's end.
func (t *tracker) awaitsTermination() bool {
	return slices.ContainsFunc(t.entries, func(e *trackedIncident) bool { return slices.Contains(e.terminationFinal, false) })
}

// updateTerminations takes in how the holders fared.
func (t *tracker) updateTerminations(lookup TerminationLookup, now time.Time) {
	for _, e := range t.entries {
		for i := range e.terminationFinal {
			if !e.terminationFinal[i] {
				t.updateTermination(e, i, lookup, now)
			}
		}
	}
}

func (t *tracker) updateTermination(e *trackedIncident, i int, lookup TerminationLookup, now time.Time) {
	before := e.Affected[i]
	termination, known := lookup(device.Assignment{Owner: before.owner(), PodUID: before.UID, Since: before.Since, ObservedAt: e.First})
	if year := termination.EndedAt.Year(); year < 0 || year > 9999 { // it is the kubelet's word, and JSON has no such time
		termination.EndedAt = time.Time{}
	}
	if !known {
		e.terminationFinal[i] = now.Sub(e.Last) > terminationTimeout
		return
	}
	after := before
	after.UID, after.Termination = termination.PodUID, before.Termination.merge(termination)
	e.terminationFinal[i] = termination.PodEnded
	if after == before {
		return
	}
	e.Affected = slices.Clone(e.Affected)
	e.Affected[i] = after
	t.markChanged()
}

// merge is the ending with what is known by now. How the container's run ended that was hit
// does not change; its later runs, and the pod, may end in other ways.
func (p *PodTermination) merge(termination device.Termination) *PodTermination {
	if p == nil && !termination.Ended {
		return nil
	}
	merged := PodTermination{At: termination.EndedAt, Reason: termination.Reason, ExitCode: termination.ExitCode}
	if p != nil {
		merged = *p
	}
	if merged.ExitCode == nil && termination.ExitCode != nil { // the pod's end was told before its container's
		merged.At, merged.Reason, merged.ExitCode = termination.EndedAt, termination.Reason, termination.ExitCode
	}
	merged.Phase, merged.Restarts = termination.PodPhase, termination.Restarts
	if p != nil && merged == *p {
		return p
	}
	return &merged
}
