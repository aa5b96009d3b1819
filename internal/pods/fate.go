package pods

import (
	"cmp"
	"slices"
	"time"

	"github.com/podgauge/podgauge/internal/device"
)

const (
	// goneFor is how long it is known how a pod ended that is gone: who is asked how a
	// container fared may hear late of what hit it.
	goneFor = 10 * time.Minute
	// mostGone bounds how many of those there are.
	mostGone = 256
	// clocksApart is how much the API server's clock, by which pods are created, may be
	// ahead of this node's.
	clocksApart = 10 * time.Second
	// crashedBefore is how long before what hit it a container may be said to have ended:
	// what a check finds is found some seconds later, and the kubelet's times have whole
	// seconds.
	crashedBefore = 6 * time.Second
)

// departed is a pod that is gone, as it was last known.
type departed struct {
	pod *Pod
	at  time.Time
}

// bury notes that a pod is gone.
func (ps *Pods) bury(p *Pod) {
	gone := slices.DeleteFunc(slices.Clone(ps.gone), func(d departed) bool { return ps.At.Sub(d.at) > goneFor })
	if len(gone) == mostGone {
		gone = slices.Delete(gone, 0, 1)
	}
	gone = append(gone, departed{p, ps.At})
	ps.gone = gone // the old one was published
}

// Fates returns what tells how pods fared, and a channel that is closed when it would tell
// otherwise. It is nil while the pods are not followed: then a name may be another pod's.
func (c *Client) Fates() (func(device.Stay) (device.Fate, bool), <-chan struct{}) {
	ps, changed := c.Look()
	if !ps.Synced {
		return nil, changed
	}
	return ps.Fate, changed
}

// Fate tells how a container's stay with a device went on, where its pod is known, or was
// until some minutes ago.
func (ps *Pods) Fate(stay device.Stay) (device.Fate, bool) {
	d, ok := ps.whose(stay)
	if !ok {
		return device.Fate{}, false
	}
	p, gone := d.pod, !d.at.IsZero()
	fate := device.Fate{UID: p.UID, Phase: p.Phase, Over: gone || p.Ended()}
	var c Container
	if i := slices.IndexFunc(p.Containers, func(c Container) bool { return c.Name == stay.Owner.Container }); i >= 0 {
		c = p.Containers[i]
	}
	fate.Restarts = c.Restarts
	switch end, ended := c.endOf(stay.At, fate.Over); {
	case ended:
		fate.Ended, fate.At, fate.Reason, fate.ExitCode = true, end.Finished, cmp.Or(p.Reason, end.Reason), &end.ExitCode
	case fate.Over: // nobody has seen how
		fate.Ended, fate.At, fate.Reason = true, d.at, p.Reason
	}
	return fate, true
}

// endOf is how the container's run ended that was under way at a time. Of a pod that is
// over it is the last one's end.
func (c *Container) endOf(at time.Time, over bool) (end State, ended bool) {
	switch {
	case c.State.Status == Terminated:
		return c.State, over || !c.State.Finished.Before(at.Add(-crashedBefore))
	case c.Last.Status != Terminated:
		return State{}, false
	case c.State.Status == Running:
		return c.Last, !over && !c.Last.Finished.Before(at.Truncate(time.Second))
	default: // it waits to be started again
		return c.Last, over || !c.Last.Finished.Before(at.Add(-crashedBefore))
	}
}

// whose finds the pod that had a stay. Of those of its name it is the youngest of the ones
// that were created before, and not gone by then.
func (ps *Pods) whose(stay device.Stay) (d departed, ok bool) {
	if stay.UID != "" {
		if p := ps.find(stay.UID); p != nil {
			return departed{pod: p}, true
		}
		i := slices.IndexFunc(ps.gone, func(d departed) bool { return d.pod.UID == stay.UID })
		if i < 0 {
			return departed{}, false
		}
		return ps.gone[i], true
	}
	var late departed // the first of those that were created a little after, by another clock
	consider := func(other departed) {
		switch created := other.pod.Created; {
		case created.After(stay.Since.Add(clocksApart)):
		case created.After(stay.Since):
			if late.pod == nil || created.Before(late.pod.Created) {
				late = other
			}
		case !ok || created.After(d.pod.Created):
			d, ok = other, true
		}
	}
	for _, other := range ps.gone {
		if other.pod.Namespace == stay.Owner.Namespace && other.pod.Name == stay.Owner.Pod && !other.at.Before(stay.Since) {
			consider(other)
		}
	}
	for p := range ps.named(stay.Owner.Namespace, stay.Owner.Pod) {
		consider(departed{pod: p})
	}
	if !ok && late.pod != nil {
		return late, true
	}
	return d, ok
}
