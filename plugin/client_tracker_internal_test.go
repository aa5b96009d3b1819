package plugin

import (
	"context"
	"sync"
	"testing"

	"google.golang.org/grpc/peer"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// client calls a server on a separate connection.
type client struct {
	ctx     context.Context
	cancel  func()         // ends the streams
	streams sync.WaitGroup // of the streams' handlers
}

func newClient(t *testing.T) *client {
	ctx, cancel := context.WithCancel(peer.NewContext(t.Context(), &peer.Peer{Addr: &addressedConn{}}))
	return &client{ctx: ctx, cancel: cancel}
}

// getOptions asks for the options, as the kubelet does from within Register.
func (c *client) getOptions(t *testing.T, s *server) {
	t.Helper()
	if _, err := s.GetDevicePluginOptions(c.ctx, &api.Empty{}); err != nil {
		t.Fatal(err)
	}
}

// listAndWatch opens a stream and waits for the first list.
func (c *client) listAndWatch(s *server) {
	listed := make(chan struct{})
	c.streams.Go(func() {
		s.ListAndWatch(nil, &fakeStream{ctx: c.ctx, send: func(*api.ListAndWatchResponse) error { //nolint:errcheck // the test ends it
			close(listed)
			return nil
		}})
	})
	<-listed
}

func (c *client) close() {
	c.cancel()
	c.streams.Wait()
}

func isClosed(done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	default:
		return false
	}
}

// TestClientsBesideTheKubelet: only the kubelet's stream matters for the registration.
func TestClientsBesideTheKubelet(t *testing.T) {
	type clients struct{ kubelet, guest *client }
	for _, c := range []struct {
		name string
		play func(t *testing.T, s *server, c clients)
		want bool // the registration has ended
	}{
		{"a guest disconnects", func(t *testing.T, s *server, c clients) {
			c.kubelet.getOptions(t, s)
			s.recordRegisterReturn()
			c.kubelet.listAndWatch(s)
			c.guest.listAndWatch(s)
			c.guest.close()
		}, false},
		{"the kubelet's stream ends, a guest stays", func(t *testing.T, s *server, c clients) {
			c.kubelet.getOptions(t, s)
			s.recordRegisterReturn()
			c.kubelet.listAndWatch(s)
			c.guest.listAndWatch(s)
			c.kubelet.close()
		}, true},
		{"a guest from before the kubelet disconnects", func(t *testing.T, s *server, c clients) {
			c.guest.listAndWatch(s)
			c.kubelet.getOptions(t, s)
			c.kubelet.listAndWatch(s)
			s.recordRegisterReturn()
			c.guest.close()
		}, false},
		{"the kubelet's stream ends, a guest was first", func(t *testing.T, s *server, c clients) {
			c.guest.listAndWatch(s)
			c.kubelet.getOptions(t, s)
			s.recordRegisterReturn()
			c.kubelet.listAndWatch(s)
			c.kubelet.close()
		}, true},
		{"a guest asks for the options later", func(t *testing.T, s *server, c clients) {
			c.kubelet.getOptions(t, s)
			c.kubelet.listAndWatch(s)
			s.recordRegisterReturn()
			c.guest.getOptions(t, s)
			c.guest.listAndWatch(s)
			c.guest.close()
		}, false},
		{"the kubelet asks for no options, a guest disconnects", func(_ *testing.T, s *server, c clients) {
			s.recordRegisterReturn()
			c.kubelet.listAndWatch(s)
			c.guest.listAndWatch(s)
			c.guest.close()
		}, false},
		{"the kubelet asks for no options, the stream ends", func(_ *testing.T, s *server, c clients) {
			s.recordRegisterReturn()
			c.kubelet.listAndWatch(s)
			c.guest.listAndWatch(s)
			c.kubelet.close()
		}, true},
		{"a guest disconnects before the kubelet's stream opens", func(t *testing.T, s *server, c clients) {
			c.guest.listAndWatch(s)
			c.guest.close()
			c.kubelet.getOptions(t, s)
			c.kubelet.listAndWatch(s)
			c.kubelet.close() // ends the server once
		}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := endpointFor("", Rules{}, parseStatuses("0 1")...)
			s := &server{endpoint: e, stopping: make(chan struct{}), kubeletStreamOpened: make(chan struct{}), kubeletStreamEnded: make(chan struct{})}
			kubelet, guest := newClient(t), newClient(t)
			c.play(t, s, clients{kubelet, guest})
			if got := isClosed(s.kubeletStreamEnded); got != c.want {
				t.Errorf("registration ended: %t, want %t", got, c.want)
			}
			streams := e.testHooks().streams
			if !isClosed(s.kubeletStreamOpened) || streams[0] != 1 || (streams[len(streams)-1] == 0) != c.want {
				t.Errorf("stream counts: %v", streams)
			}
			kubelet.close()
			guest.close()
		})
	}
}
