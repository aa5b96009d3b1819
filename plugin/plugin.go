// Package plugin offers the devices to the kubelet and keeps the offer standing.
//
// It speaks the kubelet's device-plugin API v1beta1. A kubelet restarts, wipes
// the socket directory, refuses, or drops the stream without a word; none of
// that is handled case by case. Run is a loop over lives: each serves on a fresh
// socket, registers, and watches, and whatever goes wrong ends the life and
// starts another. What is offered lives on the device.Board and outlasts them all.
package plugin

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/podgauge/podgauge/device"
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
	registerMost = 15 * time.Second // the kubelet itself takes 10 s to give up dialling us
	streamBy     = 5 * time.Second  // from Register's success to its ListAndWatch
)

// Trace is told of what the plugin does. A nil func is not called. They are
// called on the goroutine at work and must be quick.
type Trace struct {
	Registered func(err error)                                          // Register has returned
	Streaming  func(streams int)                                        // how many ListAndWatch streams are live
	Sent       func(devices, healthy int)                               // a list went to the kubelet
	Answered   func(method string, took time.Duration, err error)       // a call of the kubelet was answered
	Allocated  func(resource string, ids []device.OfferedID)            // Allocate granted these
	Refused    func(resource string, ids []device.OfferedID, why error) // or did not
}

// Options say what is offered, and where.
type Options struct {
	Dir      string // the kubelet's device-plugins folder
	Resource string // "nvidia.com/gpu"
	// Look is the Board's. Nothing is registered before its first verdict, nor
	// while there is no device.
	Look func() ([]device.Status, <-chan struct{})
	// DeviceSpecs has Allocate answer the device nodes too, for nodes whose
	// runtime does not read NVIDIA_VISIBLE_DEVICES.
	DeviceSpecs bool
	Log         *slog.Logger
	Trace       Trace
}

// Plugin offers one resource.
type Plugin struct {
	Options
	device.Pulse

	lives int         // how many have been begun; belongs to Run's goroutine
	said  string      // why the newest life failed, as logged; belongs to Run's goroutine
	tried atomic.Bool // whether the first registration has had an outcome, or has been found impossible for now
}

// New makes a plugin. It does nothing before Run.
func New(o Options) *Plugin { return &Plugin{Options: o} }

// Ready says so while there is a device and its first registration is under way.
// One that failed, or has no kubelet to go to, was logged, and is tried again.
func (p *Plugin) Ready() error {
	if statuses, _ := p.Look(); len(statuses) > 0 && !p.tried.Load() {
		return errors.New("not registered yet")
	}
	return nil
}

// Run offers the devices until ctx is done.
func (p *Plugin) Run(ctx context.Context) error {
	var again backoff
	for {
		p.anyDevice(ctx)
		kubelet := p.kubelet(ctx)
		if ctx.Err() != nil {
			return nil
		}
		stood, err := p.runOnce(ctx, kubelet)
		if ctx.Err() != nil {
			return nil
		}
		p.say(stood, err)
		p.rest(ctx, again.after(kubelet, stood), kubelet)
	}
}

// anyDevice waits until there is a device, with a verdict on it: were the first
// list to name all devices unhealthy because nobody had asked them yet, the
// kubelet would turn away the pods that it restores after a reboot.
func (p *Plugin) anyDevice(ctx context.Context) {
	for ctx.Err() == nil {
		p.Beat()
		statuses, changed := p.Look()
		if len(statuses) > 0 {
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
func (p *Plugin) kubelet(ctx context.Context) socketID {
	said := ""
	for ctx.Err() == nil {
		p.Beat()
		err := reach(p.kubeletSocket())
		if id := identify(p.kubeletSocket()); err == nil && id != (socketID{}) {
			return id
		}
		if err != nil && err.Error() != said {
			said = err.Error()
			p.tried.Store(true)
			p.Log.Info("wait for the kubelet", "why", err)
		}
		pause(ctx, pollEvery)
	}
	return socketID{}
}

// runOnce is one life. It tells for how long the kubelet listened to it, and what
// ended it: nil only when ctx is done.
func (p *Plugin) runOnce(ctx context.Context, kubelet socketID) (stood time.Duration, err error) {
	l, err := p.begin(ctx)
	if err != nil {
		p.tried.Store(true)
		return 0, err
	}
	defer l.end()
	err = l.register(ctx)
	if ctx.Err() != nil {
		return 0, nil
	}
	p.tried.Store(true)
	if p.Trace.Registered != nil {
		p.Trace.Registered(err)
	}
	if err != nil {
		return 0, err
	}
	return l.watch(ctx, kubelet)
}

// say logs why a life ended: a reason that stays the same once, however often it
// is met.
func (p *Plugin) say(stood time.Duration, err error) {
	if stood > 0 {
		p.Log.Info("registration ended", "resource", p.Resource, "after", stood, "why", err)
		p.said = ""
		return
	}
	if err.Error() != p.said {
		p.Log.Warn("register with the kubelet, will go on trying", "resource", p.Resource, "err", err)
		p.said = err.Error()
	}
}

// rest waits before the next try at the same kubelet, but not for a new one.
func (p *Plugin) rest(ctx context.Context, d time.Duration, kubelet socketID) {
	for end := time.Now().Add(d); ctx.Err() == nil && time.Now().Before(end); {
		p.Beat()
		pause(ctx, min(pollEvery, time.Until(end)))
		if identify(p.kubeletSocket()) != kubelet {
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
