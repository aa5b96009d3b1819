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
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/podgauge/podgauge/device"
)

// The pauses of a loop that must neither miss a new kubelet for long nor hammer
// one that refuses.
const (
	pollEvery    = 100 * time.Millisecond // for sockets that come and go
	againFirst   = 100 * time.Millisecond // after a life that was refused
	againMost    = 10 * time.Second
	registerMost = 15 * time.Second // the kubelet itself takes 10 s to give up dialling us
	streamBy     = 5 * time.Second  // from Register's success to its ListAndWatch
	// settle lets the kubelet notice the end of the old stream before it meets
	// the next registration: up to 1.36 it files both under the resource's name,
	// and the late end of one is taken for the end of the other.
	settle = 100 * time.Millisecond
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
	tried atomic.Bool // whether the first registration has had an outcome, or has no kubelet to go to
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
	if !p.anyDevice(ctx) {
		return nil
	}
	again := againFirst
	var refusedBy socketID
	for {
		kubelet := p.kubelet(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if kubelet != refusedBy {
			again = againFirst
		}
		lived, err := p.runOnce(ctx, kubelet)
		if ctx.Err() != nil {
			return nil
		}
		if lived {
			p.Log.Info("registration ended", "resource", p.Resource, "why", err)
			again = againFirst
			refusedBy = socketID{}
			pause(ctx, settle)
			continue
		}
		p.Log.Warn("register with the kubelet", "resource", p.Resource, "err", err, "again_in", again)
		refusedBy = kubelet
		p.rest(ctx, again, kubelet)
		again = min(2*again, againMost)
	}
}

// anyDevice waits until there is a device, with a verdict on it: were the first
// list to name all devices unhealthy because nobody had asked them yet, the
// kubelet would turn away the pods that it restores after a reboot.
func (p *Plugin) anyDevice(ctx context.Context) bool {
	for {
		statuses, changed := p.Look()
		if len(statuses) > 0 {
			return true
		}
		p.Beat()
		select {
		case <-ctx.Done():
			return false
		case <-changed:
		case <-time.After(againMost):
		}
	}
}

// kubelet waits until one listens, and returns its socket. A socket that merely
// lies there is not enough: an ended kubelet leaves its own behind, and the next
// one deletes all sockets in the folder, ours too, before it listens.
func (p *Plugin) kubelet(ctx context.Context) socketID {
	for first := true; ctx.Err() == nil; first = false {
		p.Beat()
		id := identify(p.kubeletSocket())
		if id != (socketID{}) && listens(ctx, p.kubeletSocket()) {
			return id
		}
		if first {
			p.Log.Info("wait for the kubelet", "socket", p.kubeletSocket())
			p.tried.Store(true)
		}
		pause(ctx, pollEvery)
	}
	return socketID{}
}

// rest waits before the next try at a kubelet that refused, but not for a new one.
func (p *Plugin) rest(ctx context.Context, d time.Duration, refusedBy socketID) {
	for end := time.Now().Add(d); ctx.Err() == nil && time.Now().Before(end); {
		p.Beat()
		pause(ctx, min(pollEvery, time.Until(end)))
		if identify(p.kubeletSocket()) != refusedBy {
			return
		}
	}
}

// runOnce is one life. It tells whether the kubelet ever listened to this one,
// and what ended it.
func (p *Plugin) runOnce(ctx context.Context, kubelet socketID) (lived bool, err error) {
	p.lives++
	l, err := p.begin(ctx)
	if err != nil {
		return false, err
	}
	defer l.end()
	err = p.register(ctx, l)
	if p.Trace.Registered != nil {
		p.Trace.Registered(err)
	}
	p.tried.Store(true)
	if err != nil {
		return false, err
	}
	select {
	case <-ctx.Done():
		return false, nil
	case <-l.streaming:
	case <-time.After(streamBy):
		return false, fmt.Errorf("the kubelet took the registration and opened no stream within %s", streamBy)
	}
	p.Log.Info("registered", "resource", p.Resource, "socket", l.socket)
	return true, p.watch(ctx, l, kubelet)
}

// watch returns when the registration can no longer be trusted.
func (p *Plugin) watch(ctx context.Context, l *life, kubelet socketID) error {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-l.broken:
			return errors.New("the kubelet's stream ended")
		case err := <-l.served:
			return fmt.Errorf("serve: %w", err)
		case <-tick.C:
			p.Beat()
			if identify(l.socket) != l.id {
				return fmt.Errorf("our socket %s was deleted", l.socket)
			}
			if identify(p.kubeletSocket()) != kubelet {
				return errors.New("the kubelet's socket was replaced")
			}
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
