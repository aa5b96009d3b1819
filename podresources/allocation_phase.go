package podresources

// allocationPhase is the state of knowledge about an allocation. An absence in a List proves little after a restart: a kubelet first
// lists no pods, then static pods, then the API server's pods (docs/contributing/adr/0004-unknown-owners.md). The rules are the table nextPhases.
type allocationPhase uint8

const (
	absent    allocationPhase = iota // not allocated, as far as is known
	pending                          // allocated; no response named the owner yet
	confirmed                        // a response over this connection named the owner; later responses repeat the owner until the end
	retained                         // responses named the owner over an earlier connection, not yet over this connection
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
