package pods_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	api "k8s.io/kubelet/pkg/apis/pods/v1alpha1"

	"github.com/podgauge/podgauge/internal/pods"
	"github.com/podgauge/podgauge/internal/pods/podpb"
	"github.com/podgauge/podgauge/internal/pubsub"
	"github.com/podgauge/podgauge/test/bubble"
	"github.com/podgauge/podgauge/test/helpers/background"
	"github.com/podgauge/podgauge/test/helpers/bufserver"
	"github.com/podgauge/podgauge/test/helpers/expect"
	"github.com/podgauge/podgauge/test/helpers/require"
	"github.com/podgauge/podgauge/test/helpers/testlog"
)

const (
	added    = api.EventType_ADDED
	modified = api.EventType_MODIFIED
	deleted  = api.EventType_DELETED
	complete = api.EventType_INITIAL_SYNC_COMPLETE
)

var errBroken = errors.New("broken")

// scriptedPodsAPI is a kubelet with a scripted Pods API in a synctest bubble,
// so that hours take milliseconds. sim/kubelet behaves like a real kubelet.
type scriptedPodsAPI struct {
	api.UnimplementedPodsServer
	t *testing.T
	// socket and fallback are regular files. Nothing listens at one with text.
	socket, fallback string
	client           *pods.Client
	pods             pubsub.Value[pods.Pods] // of the client
	log              testlog.Buffer
	calls            []string // "+name" of OnPodAdded, "-name" of OnPodEnded
	server           bufserver.Server

	mu sync.Mutex
	// All below are guarded by mu.
	onWatch    func(stream grpc.ServerStream) error // implements WatchPods
	watchCalls int
	dialed     []string // sockets
}

// runScripted runs a test in a bubble, with a stopped kubelet and a running
// client of all labels.
func runScripted(t *testing.T, test func(t *testing.T, k *scriptedPodsAPI)) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
		k := &scriptedPodsAPI{t: t, socket: filepath.Join(t.TempDir(), "pods-api.sock")}
		k.fallback = k.socket + ".fallback"
		o := pods.Options{Pods: &k.pods, Labels: []string{"*"}, Log: k.log.Logger(), FallbackSocket: k.fallback}
		o.OnPodAdded = func(_, name string) { k.calls = append(k.calls, "+"+name) }
		o.OnPodEnded = func(_, name string) { k.calls = append(k.calls, "-"+name) }
		var err error
		k.client, err = pods.NewWithDial(k.socket, o, k.dial)
		require.NoError(t, err)
		defer k.stop()
		defer background.Run(t, k.client.Run)()
		synctest.Wait()
		test(t, k)
	})
}

// start starts the kubelet, or the next kubelet, with a new socket.
func (k *scriptedPodsAPI) start(watch func(stream grpc.ServerStream) error) {
	k.stop()
	k.mu.Lock()
	k.onWatch = watch
	k.mu.Unlock()
	_ = os.Remove(k.socket)
	require.NoError(k.t, os.WriteFile(k.socket, nil, 0o600))
	k.server.Start(func(s grpc.ServiceRegistrar) { api.RegisterPodsServer(s, k) }, grpc.WaitForHandlers(true))
}

// stop stops the kubelet. The socket file remains, like a real kubelet's.
func (k *scriptedPodsAPI) stop() { k.server.Stop(k.t) }

func (k *scriptedPodsAPI) WatchPods(_ *api.WatchPodsRequest, stream grpc.ServerStreamingServer[api.WatchPodsEvent]) error {
	k.mu.Lock()
	k.watchCalls++
	watch := k.onWatch
	k.mu.Unlock()
	return watch(stream)
}

func (k *scriptedPodsAPI) dial(ctx context.Context, socket string) (net.Conn, error) {
	if text, err := os.ReadFile(socket); err != nil || len(text) > 0 {
		return nil, cmp.Or(err, error(syscall.ECONNREFUSED))
	}
	k.mu.Lock()
	k.dialed = append(k.dialed, socket)
	k.mu.Unlock()
	return k.server.Dial(ctx)
}

// wantDialed checks the sockets of all connections.
func (k *scriptedPodsAPI) wantDialed(sockets ...string) {
	k.t.Helper()
	k.mu.Lock()
	defer k.mu.Unlock()
	expect.EqualSlices(k.t, k.dialed, sockets)
}

// watchCallCount returns the number of WatchPods calls.
func (k *scriptedPodsAPI) watchCallCount() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.watchCalls
}

// want checks the pods of the namespace "team": name, UID and phase of each.
func (k *scriptedPodsAPI) want(want string, synced bool) {
	k.t.Helper()
	synctest.Wait()
	ps, _ := k.pods.Get()
	if got := summary(ps); got != want || ps.Synced != synced {
		k.t.Fatalf("got pods %q, synced %t, error %v; want %q, %t", got, ps.Synced, ps.Err, want, synced)
	}
}

func summary(ps pods.Pods) string {
	var all []string
	for _, name := range []string{"a", "b", "c", "d"} {
		if p, ok := ps.ByName("team", name); ok {
			all = append(all, fmt.Sprintf("%s/%s %s", name, p.UID, p.Phase))
		}
	}
	if len(all) != ps.Len() {
		all = append(all, fmt.Sprintf("%d pods", ps.Len()))
	}
	return strings.Join(all, ", ")
}

// sendEvents returns a WatchPods that sends the events until the end of the
// stream or of the kubelet. Closing events breaks the stream.
func sendEvents(events <-chan *api.WatchPodsEvent) func(grpc.ServerStream) error {
	return func(stream grpc.ServerStream) error {
		for {
			select {
			case e, ok := <-events:
				if !ok {
					return errBroken
				}
				if err := stream.SendMsg(e); err != nil {
					return err
				}
			case <-stream.Context().Done():
				return stream.Context().Err()
			}
		}
	}
}

// listThenStream lists pods, then sends events.
func listThenStream(events <-chan *api.WatchPodsEvent, list ...*podpb.Pod) func(grpc.ServerStream) error {
	return func(stream grpc.ServerStream) error {
		for _, p := range list {
			if err := stream.SendMsg(newEvent(added, p)); err != nil {
				return err
			}
		}
		if err := stream.SendMsg(&api.WatchPodsEvent{Type: complete}); err != nil {
			return err
		}
		return sendEvents(events)(stream)
	}
}

func newEvent(kind api.EventType, p *podpb.Pod) *api.WatchPodsEvent {
	b, _ := proto.Marshal(p) // a valid message
	return &api.WatchPodsEvent{Type: kind, Pod: b}
}

// newPod returns the pod "team/name" with a container "main", whose id is
// "id-<uid>" and which runs while the pod does.
func newPod(name, uid, phase string) *podpb.Pod {
	state := &podpb.ContainerState{Running: &podpb.ContainerStateRunning{}}
	if phase != "Running" {
		state = &podpb.ContainerState{Terminated: &podpb.ContainerStateTerminated{ExitCode: new(int32(137))}}
	}
	main := &podpb.ContainerStatus{Name: new("main"), ContainerId: new("containerd://id-" + uid), State: state}
	return &podpb.Pod{
		Metadata: &podpb.ObjectMeta{Namespace: new("team"), Name: new(name), Uid: new(uid)},
		Status:   &podpb.PodStatus{Phase: new(phase), ContainerStatuses: []*podpb.ContainerStatus{main}},
	}
}

// evicted returns a failed pod with a running container.
func evicted(name, uid string) *podpb.Pod {
	p := newPod(name, uid, "Running")
	p.Status.Phase = new("Failed")
	return p
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
