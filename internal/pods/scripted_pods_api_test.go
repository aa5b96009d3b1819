package pods

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"
	api "k8s.io/kubelet/pkg/apis/pods/v1alpha1"

	"github.com/podgauge/podgauge/test/bubble"
)

// scriptedPodsAPI is a kubelet with a scripted Pods API in a synctest bubble, so that hours take milliseconds. sim/kubelet behaves like a
// real kubelet.
type scriptedPodsAPI struct {
	api.UnimplementedPodsServer
	t      *testing.T
	socket string // a regular file

	mu sync.Mutex
	// All below are guarded by mu.
	onWatch    func(stream grpc.ServerStream) error // implements WatchPods
	watchCalls int
	listener   *bufconn.Listener // nil if stopped
	server     *grpc.Server
	serveErr   chan error
}

// runScripted runs a test in a bubble, with a stopped kubelet and a running client.
func runScripted(t *testing.T, o Options, test func(t *testing.T, k *scriptedPodsAPI, c *Client)) {
	t.Helper()
	runScriptedBy(t, kubeletSource, o, test)
}

func runScriptedBy(t *testing.T, source string, o Options, test func(t *testing.T, k *scriptedPodsAPI, c *Client)) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
		k := &scriptedPodsAPI{t: t, socket: filepath.Join(t.TempDir(), "pods-api.sock")}
		socket := k.socket
		if source == apiServerSource {
			socket, o.APIServer = socket+".none", k
		}
		c, err := newClient(socket, o, k.dial)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- c.Run(ctx) }()
		defer k.stop()
		defer func() {
			cancel()
			if err := <-ended; err != nil {
				t.Errorf("Run: %v", err)
			}
		}()
		synctest.Wait()
		test(t, k, c)
	})
}

// observerFuncs is an Observer of two functions. Nil functions are not called.
type observerFuncs struct {
	added func(namespace, name string)
	ended func(Pod)
}

func (o observerFuncs) OnPodAdded(namespace, name string) {
	if o.added != nil {
		o.added(namespace, name)
	}
}

func (o observerFuncs) OnPodEnded(p Pod) { o.ended(p) }

// start starts the kubelet with a new socket. A nil function makes WatchPods unimplemented.
func (k *scriptedPodsAPI) start(watch func(stream grpc.ServerStream) error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	_ = os.Remove(k.socket)
	if err := os.WriteFile(k.socket, nil, 0o600); err != nil {
		k.t.Fatal(err)
	}
	listener, server, served := bufconn.Listen(1<<16), grpc.NewServer(grpc.WaitForHandlers(true)), make(chan error, 1)
	if watch == nil {
		api.RegisterPodsServer(server, api.UnimplementedPodsServer{})
	} else {
		api.RegisterPodsServer(server, k)
	}
	go func() { served <- server.Serve(listener) }()
	k.onWatch, k.listener, k.server, k.serveErr = watch, listener, server, served
}

// stop stops the kubelet. The socket file remains, like a real kubelet's.
func (k *scriptedPodsAPI) stop() {
	k.mu.Lock()
	server, served := k.server, k.serveErr
	k.listener, k.server = nil, nil
	k.mu.Unlock()
	if server == nil {
		return
	}
	server.Stop()
	if err := <-served; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		k.t.Errorf("Serve: %v", err)
	}
}

func (k *scriptedPodsAPI) dial(ctx context.Context) (net.Conn, error) {
	k.mu.Lock()
	listener := k.listener
	k.mu.Unlock()
	if listener == nil {
		return nil, errors.New("connection refused")
	}
	return listener.DialContext(ctx)
}

func (k *scriptedPodsAPI) WatchPods(_ *api.WatchPodsRequest, stream grpc.ServerStreamingServer[api.WatchPodsEvent]) error {
	k.mu.Lock()
	k.watchCalls++
	watch := k.onWatch
	k.mu.Unlock()
	return watch(stream)
}

// watchCallCount returns the number of WatchPods calls.
func (k *scriptedPodsAPI) watchCallCount() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.watchCalls
}

func sendEvents(t *testing.T, stream grpc.ServerStream, events ...*api.WatchPodsEvent) error {
	t.Helper()
	for _, e := range events {
		if err := stream.SendMsg(e); err != nil {
			return err
		}
	}
	return nil
}

// listThenStream lists pods, then sends events until the end of the stream or of the kubelet. Closing events breaks the stream.
func listThenStream(t *testing.T, events <-chan *api.WatchPodsEvent, pods ...Pod) func(stream grpc.ServerStream) error {
	return func(stream grpc.ServerStream) error {
		for _, p := range pods {
			if err := sendEvents(t, stream, newWatchEvent(added, p)); err != nil {
				return err
			}
		}
		if err := sendEvents(t, stream, &api.WatchPodsEvent{Type: complete}); err != nil {
			return err
		}
		for {
			select {
			case e, ok := <-events:
				if !ok {
					return errBroken
				}
				if err := sendEvents(t, stream, e); err != nil {
					return err
				}
			case <-stream.Context().Done():
				return stream.Context().Err()
			}
		}
	}
}

// newWatchEvent returns the event of a pod.
func newWatchEvent(kind api.EventType, p Pod) *api.WatchPodsEvent {
	metadata := message(1, text(1, p.Name), text(3, p.Namespace), text(5, p.UID))
	status := []encodedFields{text(1, p.Phase)}
	for _, c := range p.Containers {
		state := message(2)
		if c.State.Type == Terminated {
			state = message(3, number(1, uint64(int64(c.State.ExitCode))))
		}
		status = append(status, message(8, text(1, c.Name), message(2, state), text(8, "containerd://"+c.ID)))
	}
	return &api.WatchPodsEvent{Type: kind, Pod: append(metadata, message(3, status...)...)}
}

func wantPods(t *testing.T, c *Client, want string, wantSynced bool) {
	t.Helper()
	synctest.Wait()
	if ps, _ := c.Snapshot(); ps.summary() != want || ps.Synced != wantSynced {
		t.Fatalf("got pods %q, synced %t, error %v; want %q, %t", ps.summary(), ps.Synced, ps.Err, want, wantSynced)
	}
}

// podsLogBuffer is a log buffer that is safe for concurrent use.
type podsLogBuffer struct {
	mu     sync.Mutex
	buffer bytes.Buffer
}

func (l *podsLogBuffer) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buffer.Write(b)
}

func (l *podsLogBuffer) count(what string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return bytes.Count(l.buffer.Bytes(), []byte(what))
}

func (l *podsLogBuffer) log() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }
