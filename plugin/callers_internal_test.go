package plugin

import (
	"context"
	"sync"
	"testing"

	"google.golang.org/grpc/peer"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// client calls a life on a connection of its own.
type client struct {
	ctx     context.Context
	leave   func()         // ends its streams
	streams sync.WaitGroup // their handlers
}

func newClient(t *testing.T) *client {
	ctx, leave := context.WithCancel(peer.NewContext(t.Context(), &peer.Peer{Addr: &connection{}}))
	return &client{ctx: ctx, leave: leave}
}

// asks is the kubelet's call from within Register.
func (c *client) asks(t *testing.T, l *life) {
	t.Helper()
	if _, err := l.GetDevicePluginOptions(c.ctx, &api.Empty{}); err != nil {
		t.Fatal(err)
	}
}

// watches opens a stream, and returns when it has its first list.
func (c *client) watches(l *life) {
	listed := make(chan struct{})
	c.streams.Go(func() {
		l.ListAndWatch(nil, &sending{ctx: c.ctx, send: func(*api.ListAndWatchResponse) error { //nolint:errcheck // the test ends it
			close(listed)
			return nil
		}})
	})
	<-listed
}

func (c *client) leaves() {
	c.leave()
	c.streams.Wait()
}

func is(done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	default:
		return false
	}
}

// TestOnlyTheKubeletsStreamIsTheRegistration has other programs call ListAndWatch too.
func TestOnlyTheKubeletsStreamIsTheRegistration(t *testing.T) {
	type clients struct{ kubelet, guest *client }
	for _, c := range []struct {
		name string
		play func(t *testing.T, l *life, c clients)
		want bool // the registration has ended
	}{
		{"a guest leaves", func(t *testing.T, l *life, c clients) {
			c.kubelet.asks(t, l)
			l.answered()
			c.kubelet.watches(l)
			c.guest.watches(l)
			c.guest.leaves()
		}, false},
		{"the kubelet's stream ends, and a guest stays", func(t *testing.T, l *life, c clients) {
			c.kubelet.asks(t, l)
			l.answered()
			c.kubelet.watches(l)
			c.guest.watches(l)
			c.kubelet.leaves()
		}, true},
		{"a guest who came before the kubelet leaves", func(t *testing.T, l *life, c clients) {
			c.guest.watches(l)
			c.kubelet.asks(t, l)
			c.kubelet.watches(l)
			l.answered()
			c.guest.leaves()
		}, false},
		{"the kubelet's stream ends, and a guest came before it", func(t *testing.T, l *life, c clients) {
			c.guest.watches(l)
			c.kubelet.asks(t, l)
			l.answered()
			c.kubelet.watches(l)
			c.kubelet.leaves()
		}, true},
		{"a guest asks for the options too, later", func(t *testing.T, l *life, c clients) {
			c.kubelet.asks(t, l)
			c.kubelet.watches(l)
			l.answered()
			c.guest.asks(t, l)
			c.guest.watches(l)
			c.guest.leaves()
		}, false},
		{"a kubelet that asks for no options", func(_ *testing.T, l *life, c clients) {
			l.answered()
			c.kubelet.watches(l)
			c.guest.watches(l)
			c.guest.leaves()
		}, false},
		{"its stream ends", func(_ *testing.T, l *life, c clients) {
			l.answered()
			c.kubelet.watches(l)
			c.guest.watches(l)
			c.kubelet.leaves()
		}, true},
		{"a guest leaves before the kubelet's stream opens", func(t *testing.T, l *life, c clients) {
			c.guest.watches(l)
			c.guest.leaves()
			c.kubelet.asks(t, l)
			c.kubelet.watches(l)
			c.kubelet.leaves() // and ends once
		}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			var streams []int
			e := on("", Rules{}, board("0 1")...)
			e.Trace.Streaming = func(_ string, n int) { streams = append(streams, n) }
			l := &life{endpoint: e, done: make(chan struct{}), streaming: make(chan struct{}), broken: make(chan struct{})}
			kubelet, guest := newClient(t), newClient(t)
			c.play(t, l, clients{kubelet, guest})
			if got := is(l.broken); got != c.want {
				t.Errorf("the registration has ended: %t", got)
			}
			if !is(l.streaming) || streams[0] != 1 || (streams[len(streams)-1] == 0) != c.want {
				t.Errorf("told of streams: %v", streams)
			}
			kubelet.leaves()
			guest.leaves()
		})
	}
}
