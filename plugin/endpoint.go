package plugin

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/podgauge/podgauge/internal/device"
)

// The pauses of a loop that must neither miss a new kubelet for long nor hammer
// one that refuses.
const (
	pollEvery = 100 * time.Millisecond // for sockets that come and go
	// againFirst also lets the kubelet notice the end of the old stream before it
	// meets the next registration: up to 1.36 it files both under the resource's
	// name, and takes the late end of one for the end of the other.
	againFirst   = 100 * time.Millisecond
	againMost    = 10 * time.Second
	steady       = time.Second      // a stream that stood for so long was not refused
	answeredBy   = 10 * time.Second // from the kubelet's start to its list of what is allocatable, if it has one, and to other plugins' registrations
	registerMost = 15 * time.Second // the kubelet itself takes 10 s to give up dialling us
	streamBy     = 5 * time.Second  // from Register's success to its ListAndWatch
	leaveAfter   = 10 * time.Second // of an offer without an id: then the kubelet may forget the resource
)

// endpoint offers one resource: it is a loop over lives, each on a socket of its
// own, and whatever ends one starts the next.
type endpoint struct {
	Options
	device.Pulse
	resource string
	served   *served

	lives  int         // how many have been begun; belongs to run's goroutine
	socket string      // the file name of the newest one's; belongs to run's goroutine
	said   string      // why the newest life failed, as logged; belongs to run's goroutine
	other  otherPlugin // belongs to run's goroutine
	tried  atomic.Bool // whether the first registration has had an outcome, or has been found impossible for now
	// told is what the kubelet was last sent in this life, or is being sent; nil
	// before that. Written by the stream and by run.
	told atomic.Pointer[offer]
	view atomic.Pointer[view] // the newest that was asked for

	refusals refusals

	mu sync.Mutex
	// All below are guarded by mu.
	offered *offer
	changed chan struct{} // closed when something else is offered
}

func newEndpoint(o Options, resource string) *endpoint {
	return &endpoint{Options: o, resource: resource, served: &served{}, offered: &offer{}, changed: make(chan struct{})}
}

// offer replaces what is offered, and returns when to do so again if nothing changes; never
// is zero.
func (e *endpoint) offer(o *offer, statuses []device.Status, holders device.Holders, now time.Time) (due time.Time) {
	older, _ := e.look()
	b := bonds{told: e.told.Load()}
	if !o.foreign {
		b.held = holders.Offered(e.resource)
	}
	due = older.leave(o, statuses, b, now)
	o.reserve(e.resource, holders)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.offered = o
	close(e.changed)
	e.changed = make(chan struct{})
	return due
}

// look returns what is offered, and a channel that is closed when something else
// is.
func (e *endpoint) look() (*offer, <-chan struct{}) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.offered, e.changed
}

// ready says so while the first registration is under way. An offer without an id
// is not registered.
func (e *endpoint) ready() error {
	if o, _ := e.look(); len(o.items) > 0 && !e.tried.Load() {
		return errors.New("not registered yet")
	}
	return nil
}

// run offers the resource until ctx is done.
func (e *endpoint) run(ctx context.Context) error {
	var again backoff
	released := false
	for {
		e.anyDevice(ctx)
		kubelet := e.kubelet(ctx)
		if ctx.Err() != nil {
			return nil
		}
		o, _ := e.look()
		if len(o.items) == 0 { // the last one went while the kubelet was away
			continue
		}
		if o.past && e.taken(kubelet) {
			e.tried.Store(true)
			pause(ctx, time.Second)
			continue
		}
		if released && e.Trace.Offers != nil {
			e.Trace.Offers(e.resource)
		}
		released = false
		e.served.add(e.resource)
		e.other.ours, e.other.registered = true, false
		stood, err := e.runOnce(ctx, kubelet)
		if ctx.Err() != nil {
			return nil
		}
		e.say(stood, err)
		if o, _ := e.look(); len(o.items) == 0 && e.Trace.Released != nil {
			released = true
			e.Trace.Released(e.resource)
		}
		e.rest(ctx, again.after(kubelet, stood), kubelet)
	}
}

// otherPlugin is what is known of another plugin of a resource that the rules do not offer.
type otherPlugin struct {
	registered bool // by the kubelet's newest answer
	ours       bool // this process has registered the resource, so that the kubelet may list it as ours
	kubelet    socketID
	since      time.Time // when that kubelet was first met
}

// taken reports whether a resource that the rules do not offer may have another plugin: the
// kubelet says of what is allocatable only what has one. It says so a moment after it has
// said what is allocated; while it does not, its last answer counts. A kubelet that was
// restarted does not have the other plugin until that has registered again.
func (e *endpoint) taken(kubelet socketID) bool {
	other := &e.other
	if kubelet != other.kubelet {
		other.kubelet, other.since = kubelet, time.Now()
	}
	young := time.Since(other.since) < answeredBy
	holders, _ := e.Holders()
	if !holders.Resources.Known {
		return other.registered || young && !other.ours
	}
	listed := slices.ContainsFunc(holders.Resources.Devices, func(d device.ResourceDevice) bool { return d.Resource == e.resource })
	other.registered = !other.ours && (listed || other.registered && young)
	return listed || other.registered
}

// anyDevice waits until there is a device, with a verdict on it: were the first
// list to name all devices unhealthy because nobody had asked them yet, the
// kubelet would turn away the pods that it restores after a reboot.
func (e *endpoint) anyDevice(ctx context.Context) {
	for ctx.Err() == nil {
		e.Beat()
		o, changed := e.look()
		if len(o.items) > 0 {
			return
		}
		select {
		case <-ctx.Done():
		case <-changed:
		case <-time.After(againMost):
		}
	}
}

// kubelet waits until one listens, and returns its socket. A socket that merely
// lies there is not enough: an ended kubelet leaves its own behind, and the next
// one deletes all sockets in the folder, ours too, before it listens. It is
// identified after it has listened: what is found then is what listened, or newer.
func (e *endpoint) kubelet(ctx context.Context) socketID {
	said := ""
	for ctx.Err() == nil {
		e.Beat()
		err := reach(e.kubeletSocket())
		if id := identify(e.kubeletSocket()); err == nil && id != (socketID{}) {
			return id
		}
		if err != nil && err.Error() != said {
			said = err.Error()
			e.tried.Store(true)
			e.Log.Info("wait for the kubelet", "why", err)
		}
		pause(ctx, pollEvery)
	}
	return socketID{}
}

// runOnce is one life. It tells for how long the kubelet listened to it, and what
// ended it: nil only when ctx is done.
func (e *endpoint) runOnce(ctx context.Context, kubelet socketID) (stood time.Duration, err error) {
	e.Log.Debug("serve and register", "resource", e.resource)
	l, err := e.begin(ctx)
	if err != nil {
		e.tried.Store(true)
		return 0, err
	}
	defer e.told.Store(nil)
	defer l.end()
	err = l.register(ctx)
	if ctx.Err() != nil {
		return 0, nil
	}
	e.tried.Store(true)
	if e.Trace.Registered != nil {
		e.Trace.Registered(e.resource, err)
	}
	if err != nil {
		return 0, err
	}
	return l.watch(ctx, kubelet)
}

// say logs why a life ended: a reason that stays the same once, however often it
// is met.
func (e *endpoint) say(stood time.Duration, err error) {
	if stood > 0 {
		e.Log.Info("registration ended", "resource", e.resource, "after", stood, "why", err)
		e.said = ""
		return
	}
	// The kubelet may name the socket, which is another one each time.
	text := strings.ReplaceAll(err.Error(), e.socket, "our socket")
	if text != e.said {
		e.Log.Warn("register with the kubelet, will go on trying", "resource", e.resource, "err", text)
		e.said = text
	}
}

// rest waits before the next try at the same kubelet, but not for a new one.
func (e *endpoint) rest(ctx context.Context, d time.Duration, kubelet socketID) {
	for end := time.Now().Add(d); ctx.Err() == nil && time.Now().Before(end); {
		e.Beat()
		pause(ctx, min(pollEvery, time.Until(end)))
		if identify(e.kubeletSocket()) != kubelet {
			return
		}
	}
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// backoff is the pause between lives. It grows while one and the same kubelet
// refuses, or takes what it ends at once.
type backoff struct {
	kubelet socketID
	wait    time.Duration
}

// after returns the pause after a life at a kubelet that stood for so long.
func (b *backoff) after(kubelet socketID, stood time.Duration) time.Duration {
	if kubelet != b.kubelet || stood >= steady {
		*b = backoff{kubelet: kubelet}
	}
	b.wait = max(againFirst, min(2*b.wait, againMost))
	return b.wait
}
