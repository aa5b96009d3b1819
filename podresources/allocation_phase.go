package podresources

// allocationPhase is what is known of one allocation. What an absence in a List proves depends on the kubelet: after a restart it lists
// no pods, then the static ones, then those of the API server (docs/adr/0004-unknown-holders.md). The rules are a table:
//
//	event                | absent    | pending   | confirmed | retained
//	---------------------|-----------|-----------|-----------|----------
//	allocated            | pending   | pending   | pending   | pending
//	named                | confirmed | confirmed | confirmed | confirmed
//	reconnected          | absent    | pending   | retained  | retained
//	listedWithout        | absent    | pending   | absent    | absent
//	omitted              | absent    | pending   | absent    | absent
//	omittedUnproven      | absent    | pending   | absent    | retained
//	podEnded             | absent    | pending   | absent    | absent
//	noOwnerLeft          | absent    | absent    | confirmed | retained
//	checkpointDropped    | absent    | absent    | confirmed | absent
//	checkpointUnreadable | absent    | absent    | confirmed | retained
//	checkpointAdded      | pending   | pending   | confirmed | retained
type allocationPhase uint8

const (
	absent    allocationPhase = iota // not allocated, as far as is known
	pending                          // allocated; no response named the owner yet
	confirmed                        // a response over this connection named the owner: it names more over time, never less
	retained                         // responses over earlier connections named the owner, those over this one did not yet
)

// allocationEvent is what a call, a response or the checkpoint reports of one allocation.
type allocationEvent uint8

const (
	unaffected           allocationEvent = iota
	allocated                            // Allocate returned for the id
	named                                // List names the owner, or Get names the owner of a pending allocation
	reconnected                          // the first List over a new connection: the kubelet may have been restarted
	listedWithout                        // List names another owner for the id, or lists the pod without it
	omitted                              // List omits the pod, and the absence counts
	omittedUnproven                      // List omits the pod within settleTimeout of the connection, or while it lacks the API server's pods
	podEnded                             // List omits a pod that has ended by the Pods API, or the kubelet does not answer any more
	noOwnerLeft                          // ownerLookupTimeout after Allocate, no listed pod can be the owner
	checkpointDropped                    // the checkpoint lacks the id: ownerLookupTimeout after Allocate, or since this kubelet started
	checkpointUnreadable                 // the checkpoint could not be read for maxPendingAge
	checkpointAdded                      // the checkpoint has the id, and the last List before did not name it
)

var nextPhases = [...][4]allocationPhase{
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

// after returns the phase that follows when an event occurs.
func (p allocationPhase) after(e allocationEvent) allocationPhase { return nextPhases[e][p] }
