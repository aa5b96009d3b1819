package incident

import (
	"slices"
	"time"

	"github.com/podgauge/podgauge/internal/device"
)

// Fates finds out how a container's stay with a device went on, and tells whether its pod
// is known.
type Fates = func(device.Stay) (device.Fate, bool)

// tracedFor is how long after a report a pod is looked for that is not known: the kubelet
// tells of a pod before it is given anything, and what is gone is known for some minutes
// more.
const tracedFor = 10 * time.Minute

// awaits tells whether more will be known of some holder's end.
func (b *book) awaits() bool {
	return slices.ContainsFunc(b.entries, func(e *entry) bool { return slices.Contains(e.over, false) })
}

// learn takes in how the holders fared.
func (b *book) learn(fates Fates, now time.Time) {
	for _, e := range b.entries {
		for i := range e.over {
			if !e.over[i] {
				b.learnOf(e, i, fates, now)
			}
		}
	}
}

func (b *book) learnOf(e *entry, i int, fates Fates, now time.Time) {
	was := e.Holders[i]
	fate, known := fates(device.Stay{Owner: was.owner(), UID: was.UID, Since: was.Since, At: e.First})
	if year := fate.At.Year(); year < 0 || year > 9999 { // it is the kubelet's word, and JSON has no such time
		fate.At = time.Time{}
	}
	if !known {
		e.over[i] = now.Sub(e.Last) > tracedFor
		return
	}
	is := was
	is.UID, is.Ended = fate.UID, was.Ended.and(fate)
	e.over[i] = fate.Over
	if is == was {
		return
	}
	e.Holders = slices.Clone(e.Holders)
	e.Holders[i] = is
	b.changed()
}

// and is the ending with what is known by now. How the container's run ended that was hit
// does not change; its later runs, and the pod, may end in other ways.
func (n *Ending) and(fate device.Fate) *Ending {
	if n == nil && !fate.Ended {
		return nil
	}
	is := Ending{At: fate.At, Reason: fate.Reason, ExitCode: fate.ExitCode}
	if n != nil {
		is = *n
	}
	if is.ExitCode == nil && fate.ExitCode != nil { // the pod's end was told before its container's
		is.At, is.Reason, is.ExitCode = fate.At, fate.Reason, fate.ExitCode
	}
	is.Phase, is.Restarts = fate.Phase, fate.Restarts
	if n != nil && is == *n {
		return n
	}
	return &is
}
