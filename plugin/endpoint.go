package plugin

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/pubsub"
	"github.com/podgauge/podgauge/internal/retry"
)

// The pauses of a loop that must neither miss a new kubelet for long nor hammer
// one that refuses.
const (
	socketPollInterval = 100 * time.Millisecond // for sockets that come and go
	// minBackoff also lets the kubelet notice the end of the old stream before it
	// meets the next registration: up to 1.36 it files both under the resource's
	// name, and takes the late end of one for the end of the other.
	minBackoff          = 100 * time.Millisecond
	maxBackoff          = 10 * time.Second
	backoffResetAfter   = time.Second      // a stream that stood for so long was not refused
	kubeletStartTimeout = 10 * time.Second // from the kubelet's start to its list of what is allocatable, if it has one, and to other plugins' registrations
	registerTimeout     = 15 * time.Second // the kubelet itself takes 10 s to give up dialling us
	streamTimeout       = 5 * time.Second  // from Register's success to its ListAndWatch
	emptyListTimeout    = 10 * time.Second // of an offer without an id: then the kubelet may forget the resource
)

// endpoint offers one resource: it is a loop over lives, each on a socket of its
// own, and whatever ends one starts the next.
type endpoint struct {
	Options
	device.Heartbeat
	resource   string
	registered *registeredResources

	serverCount       int         // how many have been begun; belongs to run's goroutine
	socketName        string      // the file name of the newest one's; belongs to run's goroutine
	loggedErr         string      // why the newest life failed, as logged; belongs to run's goroutine
	other             otherPlugin // belongs to run's goroutine
	registrationTried atomic.Bool // whether the first registration has had an outcome, or has been found impossible for now
	// sentList is what the kubelet was last sent in this life, or is being sent; nil
	// before that. Written by the stream and by run.
	sentList      atomic.Pointer[deviceList]
	topologyCache atomic.Pointer[cachedTopology] // the newest that was asked for

	rejections *rejectionLog

	devices pubsub.Value[*deviceList] // what is offered; set by Plugin.Run
}

func newEndpoint(o Options, resource string) *endpoint {
	e := &endpoint{Options: o, resource: resource, registered: &registeredResources{}, rejections: newRejectionLog()}
	e.devices.Set(&deviceList{})
	return e
}

// setDevices replaces what is offered, and returns when to do so again if nothing changes; never
// is zero.
func (e *endpoint) setDevices(list *deviceList, statuses []device.Status, allocations device.Allocations, now time.Time) (due time.Time) {
	retained := retainedIDs{sent: e.sentList.Load()}
	if !list.foreign {
		retained.allocated = allocations.DeviceIDs(e.resource)
	}
	due = e.list().carryOver(list, statuses, retained, now)
	list.markConflicts(e.resource, allocations)
	e.devices.Set(list)
	return due
}

// list returns what is offered.
func (e *endpoint) list() *deviceList {
	l, _ := e.devices.Get()
	return l
}

// ready says so while the first registration is under way. An offer without an id
// is not registered.
func (e *endpoint) ready() error {
	if len(e.list().items) > 0 && !e.registrationTried.Load() {
		return errors.New("not registered yet")
	}
	return nil
}

// run offers the resource until ctx is done.
func (e *endpoint) run(ctx context.Context) error {
	pauses := backoff{Backoff: retry.Backoff{Min: minBackoff, Max: maxBackoff}}
	released := false
	for {
		e.waitForDevice(ctx)
		kubelet := e.waitForKubelet(ctx)
		if ctx.Err() != nil {
			return nil
		}
		list := e.list()
		if len(list.items) == 0 { // the last one went while the kubelet was away
			continue
		}
		if list.withdrawn && e.hasOtherPlugin(kubelet) {
			e.registrationTried.Store(true)
			_ = retry.Sleep(ctx, time.Second)
			continue
		}
		if released && e.Hooks.OnResourceAdded != nil {
			e.Hooks.OnResourceAdded(e.resource)
		}
		released = false
		e.registered.add(e.resource)
		e.other.registeredByUs, e.other.registered = true, false
		uptime, err := e.serveOnce(ctx, kubelet)
		if ctx.Err() != nil {
			return nil
		}
		e.logEnd(uptime, err)
		if len(e.list().items) == 0 && e.Hooks.OnResourceReleased != nil {
			released = true
			e.Hooks.OnResourceReleased(e.resource)
		}
		e.waitBackoff(ctx, pauses.next(kubelet, uptime), kubelet)
	}
}

// otherPlugin is what is known of another plugin of a resource that the rules do not offer.
type otherPlugin struct {
	registered     bool // by the kubelet's newest answer
	registeredByUs bool // this process has registered the resource, so that the kubelet may list it as ours
	kubelet        socketID
	kubeletSince   time.Time // when that kubelet was first met
}

// hasOtherPlugin reports whether a resource that the rules do not offer may have another plugin: the
// kubelet says of what is allocatable only what has one. It says so a moment after it has
// said what is allocated; while it does not, its last answer counts. A kubelet that was
// restarted does not have the other plugin until that has registered again.
func (e *endpoint) hasOtherPlugin(kubelet socketID) bool {
	other := &e.other
	if kubelet != other.kubelet {
		other.kubelet, other.kubeletSince = kubelet, time.Now()
	}
	starting := time.Since(other.kubeletSince) < kubeletStartTimeout
	allocations, _ := e.Allocations()
	if !allocations.Resources.AllocatableKnown {
		return other.registered || starting && !other.registeredByUs
	}
	allocatable := slices.ContainsFunc(allocations.Resources.AllocatableDevices, func(d device.ResourceDevice) bool { return d.Resource == e.resource })
	other.registered = !other.registeredByUs && (allocatable || other.registered && starting)
	return allocatable || other.registered
}

// waitForDevice waits until there is a device, with a verdict on it: were the first
// list to name all devices unhealthy because nobody had asked them yet, the
// kubelet would turn away the pods that it restores after a reboot.
func (e *endpoint) waitForDevice(ctx context.Context) {
	for ctx.Err() == nil {
		e.Beat()
		list, changed := e.devices.Get()
		if len(list.items) > 0 {
			return
		}
		select {
		case <-ctx.Done():
		case <-changed:
		case <-time.After(maxBackoff):
		}
	}
}

// waitForKubelet waits until one listens, and returns its socket. A socket that merely
// lies there is not enough: an ended kubelet leaves its own behind, and the next
// one deletes all sockets in the folder, ours too, before it listens. It is
// identified after it has listened: what is found then is what listened, or newer.
func (e *endpoint) waitForKubelet(ctx context.Context) socketID {
	loggedErr := ""
	for ctx.Err() == nil {
		e.Beat()
		err := checkListening(e.kubeletSocket())
		if id := statSocket(e.kubeletSocket()); err == nil && id != (socketID{}) {
			return id
		}
		if err != nil && err.Error() != loggedErr {
			loggedErr = err.Error()
			e.registrationTried.Store(true)
			e.Log.Info("wait for the kubelet", "why", err)
		}
		_ = retry.Sleep(ctx, socketPollInterval)
	}
	return socketID{}
}

// serveOnce is one life. It tells for how long the kubelet listened to it, and what
// ended it: nil only when ctx is done.
func (e *endpoint) serveOnce(ctx context.Context, kubelet socketID) (uptime time.Duration, err error) {
	e.Log.Debug("serve and register", "resource", e.resource)
	s, err := e.startServer(ctx)
	if err != nil {
		e.registrationTried.Store(true)
		return 0, err
	}
	defer e.sentList.Store(nil)
	defer s.stop()
	err = s.register(ctx)
	if ctx.Err() != nil {
		return 0, nil
	}
	e.registrationTried.Store(true)
	if e.Hooks.OnRegistered != nil {
		e.Hooks.OnRegistered(e.resource, err)
	}
	if err != nil {
		return 0, err
	}
	return s.watch(ctx, kubelet)
}

// logEnd logs why a life ended: a reason that stays the same once, however often it
// is met.
func (e *endpoint) logEnd(uptime time.Duration, err error) {
	if uptime > 0 {
		e.Log.Info("registration ended", "resource", e.resource, "after", uptime, "why", err)
		e.loggedErr = ""
		return
	}
	// The kubelet may name the socket, which is another one each time.
	text := strings.ReplaceAll(err.Error(), e.socketName, "our socket")
	if text != e.loggedErr {
		e.Log.Warn("register with the kubelet, will go on trying", "resource", e.resource, "err", text)
		e.loggedErr = text
	}
}

// waitBackoff waits before the next try at the same kubelet, but not for a new one.
func (e *endpoint) waitBackoff(ctx context.Context, d time.Duration, kubelet socketID) {
	for deadline := time.Now().Add(d); ctx.Err() == nil && time.Now().Before(deadline); {
		e.Beat()
		_ = retry.Sleep(ctx, min(socketPollInterval, time.Until(deadline)))
		if statSocket(e.kubeletSocket()) != kubelet {
			return
		}
	}
}

// backoff is the pause between lives. It grows while one and the same kubelet
// refuses, or takes what it ends at once.
type backoff struct {
	retry.Backoff
	kubelet socketID
}

// next returns the pause after a life at a kubelet that stood for so long.
func (b *backoff) next(kubelet socketID, uptime time.Duration) time.Duration {
	if kubelet != b.kubelet || uptime >= backoffResetAfter {
		b.kubelet = kubelet
		b.Reset()
	}
	return b.Next()
}
