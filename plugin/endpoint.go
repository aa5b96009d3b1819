package plugin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/podgauge/podgauge/internal/retry"
)

const (
	// minBackoff also lets the kubelet process the end of the old stream before
	// the next registration: kubelets up to 1.36 file both under the resource's
	// name, and a late end of the old stream ends the new registration.
	minBackoff        = 100 * time.Millisecond
	maxBackoff        = 10 * time.Second
	minListenDelay    = time.Millisecond // after a refused connection, since the socket's creation
	backoffResetAfter = time.Second      // a longer stream was not rejected
)

// endpoint serves a resource by a sequence of servers: the end of a server
// starts the next server.
type endpoint struct {
	*resourceState

	// All below belong to run.
	other      otherPlugin
	socketName string // file name of the newest server's socket
	loggedErr  string // why the newest server failed, as logged
	published  bool   // in Options.Resources
}

func newEndpoint(o Options, resource string, sockets *folderWatch) *endpoint {
	r := newResourceState(o, resource, sockets)
	return &endpoint{resourceState: r, other: otherPlugin{resourceState: r, since: time.Now()}}
}

// run serves the resource until ctx is done.
func (e *endpoint) run(ctx context.Context) error {
	pause := backoff{Backoff: retry.Backoff{Min: minBackoff, Max: maxBackoff}}
	for {
		kubelet := e.waitForKubelet(ctx, pause)
		if ctx.Err() != nil {
			return nil
		}
		e.other.registeredByUs = true
		uptime, err := e.serveOnce(ctx, kubelet)
		if ctx.Err() != nil {
			return nil
		}
		e.logEnd(uptime, err)
		if len(e.list().items) == 0 {
			e.other.registeredByUs = !e.list().withdrawn // from now on, a foreign plugin may serve the resource
		}
		pause.until = time.Now().Add(pause.next(kubelet, uptime))
	}
}

// waitForKubelet waits for a device and a listening kubelet, and returns the
// kubelet's socket. The pause holds for the kubelet of the server before.
func (e *endpoint) waitForKubelet(ctx context.Context, pause backoff) socketID {
	search := kubeletSearch{endpoint: e, refusals: retry.Backoff{Min: minListenDelay, Max: folderPollInterval}}
	for ctx.Err() == nil {
		e.Beat()
		list, listChanged := e.devices.Get()
		_, socketsChanged := e.sockets.Get()
		wait, left := heartbeatInterval, time.Until(pause.until)
		e.setPublished(len(list.items) > 0)
		switch {
		case len(list.items) == 0:
			e.other.setWaiting(false)
		case left > 0 && statSocket(e.kubeletSocket()) == pause.kubelet:
			wait = min(wait, left)
		default:
			var found socketID
			if found, wait = search.try(); found != (socketID{}) {
				return found
			}
		}
		select {
		case <-ctx.Done():
		case <-listChanged:
		case <-socketsChanged:
			search.refusals.Reset()
		case <-time.After(wait):
		}
	}
	return socketID{}
}

// setPublished publishes the resource, or removes its published state.
func (e *endpoint) setPublished(published bool) {
	switch {
	case published == e.published:
		return
	case published:
		e.Hooks.OnResourceAdded(e.resource)
		e.publish(func(*Resource) {})
	default:
		e.Resources.Update(func(all []Resource) []Resource {
			return slices.DeleteFunc(slices.Clone(all), func(r Resource) bool { return r.Name == e.resource })
		})
	}
	e.published = published
}

// kubeletSearch is the state of a search for a listening kubelet.
type kubeletSearch struct {
	*endpoint
	refusals retry.Backoff // since the newest change of the folder
	away     bool
	logged   string
}

// try returns the socket of a listening kubelet, or the delay of the next try
// if the folder does not change before.
//
// A socket file is not enough: an ended kubelet leaves a socket, and a starting
// kubelet deletes all sockets in the folder, then listens. The socket is
// identified after a successful connection, so the result is the connected
// socket or a newer socket.
func (k *kubeletSearch) try() (found socketID, wait time.Duration) {
	err := checkListening(k.kubeletSocket())
	if err != nil || k.away {
		k.other.onKubeletAway(time.Now())
	}
	k.away = err != nil
	id := statSocket(k.kubeletSocket())
	switch {
	case err == nil && id == (socketID{}):
		return socketID{}, heartbeatInterval
	case err == nil && k.other.blocks(): // the list may have changed during the connection
		return socketID{}, time.Second
	case err == nil:
		return id, 0
	}
	if err.Error() != k.logged {
		k.logged = err.Error()
		k.unregistered.Set(fmt.Errorf("waiting for the kubelet: %w", err))
		k.Log.Info("waiting for the kubelet", "resource", k.resource, "err", err)
	}
	if errors.Is(err, syscall.ECONNREFUSED) { // a starting kubelet listens without a change of the folder
		return socketID{}, k.refusals.Next()
	}
	return socketID{}, heartbeatInterval
}

// serveOnce runs a server. The results are the lifetime of the kubelet's stream
// and the reason of the end: nil if ctx is done.
func (e *endpoint) serveOnce(ctx context.Context, kubelet socketID) (uptime time.Duration, err error) {
	e.Log.Debug("registering", "resource", e.resource)
	if e.unregistered.Newest() == nil { // a foreign plugin is gone
		e.unregistered.Set(errNotRegistered)
	}
	removeStaleSockets(e.Dir, e.resource)
	e.socketName = newSocketName(e.resource)
	s, err := startServer(ctx, e.resourceState, e.socketName)
	if err != nil {
		return 0, err
	}
	defer s.stop()
	err = s.register(ctx)
	if ctx.Err() != nil {
		return 0, nil
	}
	e.Hooks.OnRegistered(e.resource, err)
	if err != nil {
		e.publish(func(r *Resource) { r.Err = err.Error() })
		return 0, err
	}
	e.publish(func(r *Resource) { r.Err = "" })
	return s.watch(ctx, kubelet)
}

// logEnd logs and publishes the end of a server. A repeated reason is logged
// once.
func (e *endpoint) logEnd(uptime time.Duration, err error) {
	text := strings.ReplaceAll(err.Error(), e.socketName, "the socket") // in errors of the kubelet, and new each time
	e.unregistered.Set(errors.New(text))
	if uptime > 0 {
		e.Log.Info("registration ended", "resource", e.resource, "uptime", uptime, "reason", err)
		e.loggedErr = ""
		return
	}
	if text != e.loggedErr {
		e.Log.Warn("registration failed", "resource", e.resource, "err", text)
		e.loggedErr = text
	}
}

// backoff is the pause between servers. The pause grows while the same kubelet
// rejects servers or ends streams at once.
type backoff struct {
	retry.Backoff
	kubelet socketID
	until   time.Time
}

func (b *backoff) next(kubelet socketID, uptime time.Duration) time.Duration {
	if kubelet != b.kubelet || uptime >= backoffResetAfter {
		b.kubelet = kubelet
		b.Reset()
	}
	return b.Next()
}
