package incident

import (
	"slices"
	"time"

	"github.com/podgauge/podgauge/internal/allocation"
)

// TerminationLookup returns the termination of an assignment's container, and
// whether its pod is known.
type TerminationLookup = func(allocation.Assignment) (allocation.Termination, bool)

// terminationTimeout bounds the search for an unknown pod: the kubelet reports
// a pod before its allocation, and for some minutes after its deletion.
const terminationTimeout = 10 * time.Minute

// awaitsTermination reports whether the termination of some affected container
// is not final.
func (e *trackedIncident) awaitsTermination() bool {
	return slices.ContainsFunc(e.Affected, func(c AffectedContainer) bool { return !c.terminationFinal })
}

// updateTerminations updates the terminations that are not final.
func (e *trackedIncident) updateTerminations(lookup TerminationLookup, now time.Time) {
	for i, before := range e.Affected {
		if before.terminationFinal {
			continue
		}
		after := before
		termination, known := lookup(allocation.Assignment{
			Owner: before.Owner, PodUID: before.UID, Since: before.Since, ObservedAt: e.startedAt,
		})
		// The kubelet may send any time, and JSON has four digits.
		if year := termination.EndedAt.Year(); year < 0 || year > 9999 {
			termination.EndedAt = time.Time{}
		}
		if known {
			after.UID = termination.PodUID
			if termination.Workload != nil && !termination.Workload.Equal(before.Workload) {
				after.Workload = termination.Workload
			}
			after.Termination = before.Termination.merge(termination)
			after.terminationFinal = termination.PodEnded
		} else {
			after.terminationFinal = now.Sub(e.Last) > terminationTimeout
		}
		if after != before {
			e.setAffected(i, after)
		}
	}
}

// merge returns p with the newest termination. The end of the affected run of
// the container does not change; restarts and phase do.
func (p *PodTermination) merge(termination allocation.Termination) *PodTermination {
	if p == nil && !termination.Ended {
		return nil
	}
	merged := PodTermination{At: termination.EndedAt, Reason: termination.Reason, ExitCode: termination.ExitCode}
	if p != nil {
		merged = *p
	}
	// The kubelet may report the end of the pod before the container's.
	if merged.ExitCode == nil && termination.ExitCode != nil {
		merged.At = termination.EndedAt
		merged.Reason = termination.Reason
		merged.ExitCode = termination.ExitCode
	}
	merged.Phase = termination.PodPhase
	merged.Restarts = termination.Restarts
	if p != nil && merged == *p {
		return p
	}
	return &merged
}
