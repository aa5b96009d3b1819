package podresources

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
)

// allocationEvent is a report about an allocation by a call, a response or the checkpoint.
type allocationEvent uint8

const (
	unaffected           allocationEvent = iota
	allocated                            // Allocate returned for the id
	named                                // List names the owner, or Get names the owner of a pending allocation
	reconnected                          // the first List over a new connection: the kubelet may have been restarted
	listedWithout                        // List names a different owner of the id, or lists the pod without the id
	omitted                              // List omits the pod, and the absence counts
	omittedUnproven                      // List omits the pod within settleTimeout of the connection, or along with all pods of the API server
	podEnded                             // the pod has ended by the Pods API, and List omits the pod or fails
	noOwnerLeft                          // ownerLookupTimeout after Allocate, no listed pod can be the owner
	checkpointDropped                    // the checkpoint lacks the id: ownerLookupTimeout after Allocate, or since this kubelet started
	checkpointUnreadable                 // the checkpoint could not be read for maxPendingAge
	checkpointAdded                      // the checkpoint has the id, the last List before did not
)

// nextPhases is the table of docs/explanation/attribution.md.
var nextPhases = [...][4]allocationPhase{
	// phase before:       absent, pending, confirmed, retained
	unaffected:           {absent, pending, confirmed, retained},
	allocated:            {pending, pending, pending, pending},
	named:                {confirmed, confirmed, confirmed, confirmed},
	reconnected:          {absent, pending, retained, retained},
	listedWithout:        {absent, pending, absent, absent},
	omitted:              {absent, pending, absent, absent},
	omittedUnproven:      {absent, pending, absent, retained},
	podEnded:             {absent, pending, absent, absent},
	noOwnerLeft:          {absent, absent, confirmed, retained},
	checkpointDropped:    {absent, absent, confirmed, absent},
	checkpointUnreadable: {absent, absent, confirmed, retained},
	checkpointAdded:      {pending, pending, confirmed, retained},
}

// after returns the phase after an event.
func (p allocationPhase) after(e allocationEvent) allocationPhase { return nextPhases[e][p] }

func (p allocationPhase) String() string {
	return [...]string{"absent", "pending", "confirmed", "retained"}[p]
}

func (p apiPodsPhase) String() string { return [...]string{"listed", "missing", "returned"}[p] }

// phaseFixture is a tracker of the device "a" with the owner "one".
type phaseFixture struct {
	allocationTracker
	now      time.Time
	epoch    kubeletEpoch
	isListed bool // List contains the allocation
}

func (f *phaseFixture) wait(d time.Duration) { f.now = f.now.Add(d) }

// reconnect connects to a kubelet of the given age.
func (f *phaseFixture) reconnect(age time.Duration) {
	f.wait(time.Second)
	f.epoch = kubeletEpoch{connectedAt: f.now, kubeletStartedAt: f.now.Add(-age)}
}

// list merges a List of pods, with the allocation if isListed is set.
func (f *phaseFixture) list(pods ...string) {
	f.wait(time.Second)
	response := newListResponse()
	for _, p := range pods {
		response.pods = append(response.pods, podName{"team", p})
	}
	if f.isListed {
		response.pods = append(response.pods, podName{"team", "one"})
		response.allocations = []device.Allocation{newAllocation("a", "one")}
	}
	f.merge(&response, f.epoch, f.now)
}

func (f *phaseFixture) phase() allocationPhase {
	for _, a := range f.allocations {
		if phase := f.phaseOf(a); phase != absent {
			return phase
		}
	}
	return absent
}

// newPhaseFixture returns a tracker with the device in a phase. The pod "late" is first listed afterwards: it may own a pending allocation.
func newPhaseFixture(t *testing.T, phase allocationPhase) *phaseFixture {
	t.Helper()
	f := &phaseFixture{allocationTracker: newAllocationTracker(), now: time.Unix(1<<30, 0)}
	f.apiPods.nodeName = "n"
	f.reconnect(time.Hour)
	f.list("other")
	switch phase {
	case pending:
		f.wait(maxAdmissionDelay) // "other" cannot be the owner
		f.recordAllocate(gpu, []device.AdvertisedID{"a"}, f.now)
	case confirmed, retained:
		f.isListed = true
		f.list("other")
	}
	if phase == retained {
		f.isListed = false
		f.reconnect(0)
		f.list("other")
	}
	if got := f.phase(); got != phase {
		t.Fatalf("fixture: got phase %v, want %v", got, phase)
	}
	return f
}

// TestAllocationPhases checks each event in each phase.
func TestAllocationPhases(t *testing.T) {
	entry := map[allocationKey]string{{gpu, "a"}: "uid"}
	for _, c := range []struct {
		event allocationEvent
		cause string
		play  func(f *phaseFixture)
	}{
		{allocated, "Allocate", func(f *phaseFixture) { f.recordAllocate(gpu, []device.AdvertisedID{"a"}, f.now) }},
		{named, "List", func(f *phaseFixture) { f.isListed = true; f.list("other") }},
		{reconnected, "first List", func(f *phaseFixture) { f.isListed = false; f.reconnect(0); f.list("other") }},
		{listedWithout, "List of the pod", func(f *phaseFixture) { f.isListed = false; f.list("one", "other", "late") }},
		{omitted, "List", func(f *phaseFixture) { f.isListed = false; f.list("late"); f.wait(settleTimeout); f.list("late") }},
		{omittedUnproven, "List", func(f *phaseFixture) { f.isListed = false; f.list("late") }},
		{omittedUnproven, "List without API pods", func(f *phaseFixture) {
			f.checkpoint, f.checkpointAsOf = kubeletCheckpoint{allocated: entry}, f.now
			f.isListed = false
			if f.phase() != confirmed {
				f.reconnect(0)
			}
			f.list("late-n")
			f.wait(2 * settleTimeout)
			f.checkpointAsOf = f.now
			f.list("late-n")
		}},
		{podEnded, "failed call", func(f *phaseFixture) { f.markPodEnded(podName{"team", "one"}, f.now); f.dropEndedPods(f.now) }},
		{noOwnerLeft, "List", func(f *phaseFixture) { f.wait(ownerLookupTimeout); f.list("other") }},
		{checkpointDropped, "checkpoint", func(f *phaseFixture) {
			f.checkpoint, f.checkpointAsOf = kubeletCheckpoint{allocated: entry}, f.now
			f.wait(ownerLookupTimeout)
			f.mergeCheckpoint(kubeletCheckpoint{writtenAt: f.now}, nil, f.now)
		}},
		{checkpointUnreadable, "checkpoint", func(f *phaseFixture) {
			f.wait(maxPendingAge)
			f.mergeCheckpoint(kubeletCheckpoint{}, errors.New("read the checkpoint: permission denied"), f.now)
		}},
		{checkpointAdded, "checkpoint, the kubelet is down", func(f *phaseFixture) {
			f.checkpointAsOf = f.now
			f.addAllocatedSince(kubeletCheckpoint{entry, f.now}, f.now)
		}},
		{checkpointAdded, "checkpoint after the first List", func(f *phaseFixture) {
			f.requestedAt = f.now.Add(2 * time.Second)
			f.mergeCheckpoint(kubeletCheckpoint{entry, f.now.Add(time.Second)}, nil, f.requestedAt)
		}},
	} {
		for _, phase := range []allocationPhase{absent, pending, confirmed, retained} {
			t.Run(fmt.Sprintf("%v: %d, %s", phase, c.event, c.cause), func(t *testing.T) {
				f := newPhaseFixture(t, phase)
				c.play(f)
				if got, want := f.phase(), phase.after(c.event); got != want {
					t.Errorf("next phase: got %v, want %v", got, want)
				}
			})
		}
	}
}

// apiPodsPhase is whether the kubelet lists the pods of the API server.
type apiPodsPhase uint8

const (
	apiPodsListed apiPodsPhase = iota // or never seen
	apiPodsMissing
	apiPodsReturned
)

const (
	firstWith    = iota // the first List over a connection has API pods
	firstLost           // the first has none, but the List before had
	firstWithout        // the first has none, and the List before had none
	laterWith           // a later List has API pods
	laterWithout
)

var nextAPIPodsPhases = [...][3]apiPodsPhase{
	// phase before: apiPodsListed, apiPodsMissing, apiPodsReturned
	firstWith:    {apiPodsListed, apiPodsListed, apiPodsListed},
	firstLost:    {apiPodsMissing, apiPodsMissing, apiPodsMissing},
	firstWithout: {apiPodsListed, apiPodsMissing, apiPodsListed},
	laterWith:    {apiPodsListed, apiPodsReturned, apiPodsReturned},
	laterWithout: {apiPodsListed, apiPodsMissing, apiPodsReturned},
}

func (t apiPodTracker) phase() apiPodsPhase {
	switch {
	case t.missing:
		return apiPodsMissing
	case !t.returnedAt.IsZero():
		return apiPodsReturned
	}
	return apiPodsListed
}

// TestAPIPodsPhases checks each kind of List in each phase.
func TestAPIPodsPhases(t *testing.T) {
	with, without := []podName{{"team", "one"}}, []podName{{"team", "static-n"}}
	earlier, now := time.Unix(1<<29, 0), time.Unix(1<<30, 0)
	for event, want := range nextAPIPodsPhases {
		for before, tracker := range []apiPodTracker{apiPodsListed: {}, apiPodsMissing: {missing: true}, apiPodsReturned: {returnedAt: earlier}} {
			tracker.nodeName, tracker.hasAPIPods = "n", event == firstLost
			pods := without
			if event == firstWith || event == laterWith {
				pods = with
			}
			tracker.update(pods, event <= firstWithout, now)
			if got := tracker.phase(); got != want[before] {
				t.Errorf("event %d in phase %v: got phase %v, want %v", event, apiPodsPhase(before), got, want[before])
			}
			if returned := tracker.phase() == apiPodsReturned && apiPodsPhase(before) == apiPodsMissing; returned != tracker.returnedAt.Equal(now) {
				t.Errorf("event %d in phase %v: got returnedAt %v", event, apiPodsPhase(before), tracker.returnedAt)
			}
		}
	}
}
