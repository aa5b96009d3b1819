package churn

import (
	"slices"
	"time"
)

// Answer is who holds what at one moment between Asked and Came, as the kubelet says.
type Answer struct {
	Span // from when it was asked to when it had answered
	// Held are the devices with their holders. A kubelet gives a device to two pods now and
	// then: one that is asked List while it allocates, and frees an ended pod's devices to
	// answer, forgets what it is about to allocate (UpdateAllocatedDevices in
	// pkg/kubelet/cm/devicemanager/manager.go).
	Held []Held
	// Whole says that what it does not name is not held. An answer that never came is not,
	// nor is one of a kubelet that was just started: that names nobody at first.
	Whole bool
}

// Record makes answers into holdings. They have to be taken in one after the other.
type Record struct {
	holdings []Holding
	open     map[Held]int        // those that last, by their place
	whole    time.Time           // when the newest whole answer was asked for
	outages  []Span              // from a whole answer to the next, with others between them
	away     bool                // the newest outage lasts
	placed   map[Owner]time.Time // by pod
	newest   []Held              // what was named last
}

// Held is a device and a container that has it.
type Held struct {
	Device string
	Owner  Owner
}

// NewRecord begins at a moment at which nobody holds anything.
func NewRecord(begin time.Time) *Record {
	return &Record{open: map[Held]int{}, whole: begin, placed: map[Owner]time.Time{}}
}

// Place notes that a pod is about to be given to the node.
func (r *Record) Place(namespace, pod string, at time.Time) {
	r.placed[Owner{Namespace: namespace, Pod: pod}] = at
}

// Heard takes an answer in.
func (r *Record) Heard(a Answer) {
	for _, h := range a.Held {
		at, known := r.open[h]
		if !known {
			at = len(r.holdings)
			r.open[h] = at
			r.holdings = append(r.holdings, Holding{
				Device: h.Device, Owner: h.Owner, Since: Span{r.whole, a.To}, Placed: r.placed[h.Owner.pod()],
			})
		}
		r.holdings[at].Until.From = a.From
	}
	for h, at := range r.open {
		if a.Whole && !slices.Contains(a.Held, h) {
			r.holdings[at].Until.To = a.To
			delete(r.open, h)
		}
	}
	r.newest = a.Held
	switch {
	case a.Whole && r.away:
		r.outages[len(r.outages)-1].To = a.To
	case !a.Whole && !r.away:
		r.outages = append(r.outages, Span{From: r.whole})
	}
	if r.away = !a.Whole; a.Whole {
		r.whole = a.From
	}
}

// Devices counts what a pod held by the newest answer.
func (r *Record) Devices(namespace, pod string) (n int) {
	for _, h := range r.newest {
		if h.Owner.pod() == (Owner{Namespace: namespace, Pod: pod}) {
			n++
		}
	}
	return n
}

// Whole is when the newest whole answer was asked for.
func (r *Record) Whole() time.Time { return r.whole }

// Holdings are all that were ever named. What lasts at the end has no end.
func (r *Record) Holdings(end time.Time) []Holding {
	for _, at := range r.open {
		r.holdings[at].Until.To = end
	}
	return r.holdings
}

// Outages are the times without a whole answer.
func (r *Record) Outages(end time.Time) []Span {
	if r.away {
		r.outages[len(r.outages)-1].To = end
	}
	return r.outages
}
