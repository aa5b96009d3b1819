package plugin

import (
	"context"
	"sync"
	"testing"

	"github.com/podgauge/podgauge/internal/pubsub"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// client is a client with a stream of a server.
type client struct {
	cancel func()         // ends the stream
	stream sync.WaitGroup // the stream's handler
}

// listAndWatch opens a stream and waits for the first list.
func listAndWatch(t *testing.T, s *server) *client {
	ctx, cancel := context.WithCancel(t.Context())
	c := &client{cancel: cancel}
	listed := make(chan struct{})
	c.stream.Go(func() {
		s.ListAndWatch(nil, &fakeStream{ctx: ctx, send: func(*api.ListAndWatchResponse) error { //nolint:errcheck // the test ends it
			close(listed)
			return nil
		}})
	})
	<-listed
	return c
}

func (c *client) close() {
	c.cancel()
	c.stream.Wait()
}

// TestSecondClient checks that only the kubelet's stream, the first, matters for the registration.
func TestSecondClient(t *testing.T) {
	e := endpointFor("", Rules{}, parseStatuses("0 1")...)
	s := &server{endpoint: e, stopping: make(chan struct{}), kubeletStreamOpened: make(chan struct{}), kubeletStreamEnded: make(chan struct{})}
	kubelet, second, third := listAndWatch(t, s), listAndWatch(t, s), listAndWatch(t, s)
	defer third.close()
	second.close()
	if !pubsub.IsClosed(s.kubeletStreamOpened) || pubsub.IsClosed(s.kubeletStreamEnded) {
		t.Error("the end of a second client's stream ends the registration")
	}
	kubelet.close()
	if !pubsub.IsClosed(s.kubeletStreamEnded) {
		t.Error("while a second client watches, the registration outlasts the kubelet's stream")
	}
	if streams := e.testHooks().streams; len(streams) != 2 || streams[0] != 1 || streams[1] != 0 {
		t.Errorf("stream counts: got %v, want 1 and 0", streams)
	}
}
