package podsapi_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/pods"
	"github.com/podgauge/podgauge/internal/pubsub"
	"github.com/podgauge/podgauge/kube/internal/podsapi"
	"github.com/podgauge/podgauge/kube/internal/source"
	"github.com/podgauge/podgauge/test/helpers/background"
	"github.com/podgauge/podgauge/test/helpers/expect"
	"github.com/podgauge/podgauge/test/helpers/program"
	"github.com/podgauge/podgauge/test/helpers/require"
	"github.com/podgauge/podgauge/test/helpers/testlog"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
	api "k8s.io/kubelet/pkg/apis/pods/v1alpha1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testTimeout is the maximum wait for events that take milliseconds, or
// client-go's backoff of a second.
const testTimeout = 30 * time.Second

// cluster is an API server with a sidecar.
type cluster struct {
	*fake.Clientset

	t       *testing.T
	socket  string
	log     testlog.Buffer
	refused atomic.Pointer[error]           // of requests
	watch   atomic.Pointer[watch.Interface] // the newest
	stop    func()                          // of the sidecar
	lists   atomic.Pointer[chan struct{}]   // lists wait, unless nil
}

// newCluster returns a cluster without a sidecar.
func newCluster(t *testing.T, objects ...runtime.Object) *cluster {
	t.Helper()
	c := &cluster{Clientset: fake.NewClientset(objects...), t: t, socket: filepath.Join(background.Dir(t), podsapi.SocketName)}
	c.PrependReactor("list", "pods", func(action k8stesting.Action) (bool, runtime.Object, error) {
		expect.Equal(t, action.(k8stesting.ListActionImpl).ListOptions.FieldSelector, "spec.nodeName=a",
			"field selector")
		if hold := c.lists.Load(); hold != nil {
			<-*hold
		}
		if err := c.refused.Load(); err != nil {
			return true, nil, *err
		}
		return false, nil, nil
	})
	c.PrependWatchReactor("pods", func(action k8stesting.Action) (bool, watch.Interface, error) {
		if err := c.refused.Load(); err != nil {
			return true, nil, *err
		}
		w, err := c.Tracker().Watch(action.GetResource(), "", action.(k8stesting.WatchActionImpl).ListOptions)
		if err == nil {
			c.watch.Store(&w)
		}
		return true, w, err
	})
	return c
}

// startSidecar serves the pods.
func (c *cluster) startSidecar() {
	c.t.Helper()
	log := c.log.Logger()
	src := source.Pods(c, "a", log)
	server := podsapi.New(c.socket, src, log)
	stopServer := background.Run(c.t, server.Run)
	stopSource := background.Run(c.t, src.Run)
	c.stop = func() { stopServer(); stopSource() }
	program.WaitUntil(c.t, "the socket is served", func() bool {
		conn, err := net.Dial("unix", c.socket)
		return err == nil && conn.Close() == nil
	})
}

// outage ends the watch and fails requests.
func (c *cluster) outage(err error) {
	c.refused.Store(&err)
	if w := c.watch.Load(); w != nil {
		(*w).Stop()
	}
}

func (c *cluster) end() { c.refused.Store(nil) }

// apply creates or updates a pod.
func (c *cluster) apply(p *v1.Pod) {
	c.t.Helper()
	_, err := c.CoreV1().Pods(p.Namespace).Create(c.t.Context(), p, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		_, err = c.CoreV1().Pods(p.Namespace).Update(c.t.Context(), p, metav1.UpdateOptions{})
	}
	require.NoError(c.t, err)
}

func (c *cluster) remove(name string) {
	c.t.Helper()
	require.NoError(c.t, c.CoreV1().Pods("team").Delete(c.t.Context(), name, metav1.DeleteOptions{}))
}

// connect returns a client of the socket.
func (c *cluster) connect(options ...grpc.DialOption) api.PodsClient {
	c.t.Helper()
	conn, err := grpc.NewClient("unix:"+c.socket, append(options, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))...)
	require.NoError(c.t, err)
	c.t.Cleanup(func() { conn.Close() })
	return api.NewPodsClient(conn)
}

// stream returns a stream that has been synced.
func (c *cluster) stream() *stream {
	c.t.Helper()
	client := c.connect()
	for end := time.Now().Add(testTimeout); ; {
		w, err := client.WatchPods(c.t.Context(), &api.WatchPodsRequest{})
		require.NoError(c.t, err)
		s := &stream{c.t, w}
		first, err := w.Recv()
		if status.Code(err) == codes.FailedPrecondition && time.Now().Before(end) {
			continue // not listed yet
		}
		require.NoError(c.t, err)
		for e := first; e.Type != api.EventType_INITIAL_SYNC_COMPLETE; {
			e, err = w.Recv()
			require.NoError(c.t, err)
		}
		return s
	}
}

type stream struct {
	t *testing.T
	grpc.ServerStreamingClient[api.WatchPodsEvent]
}

// next returns the next event and its pod.
func (s *stream) next() (api.EventType, v1.Pod) {
	s.t.Helper()
	e, err := s.Recv()
	require.NoError(s.t, err)
	var p v1.Pod
	require.NoError(s.t, p.Unmarshal(e.Pod))
	return e.Type, p
}

// want checks the next event.
func (s *stream) want(kind api.EventType, summary string) {
	s.t.Helper()
	got, p := s.next()
	if gotSummary := fmt.Sprintf("%s/%s %s", p.Name, p.UID, p.Status.Phase); got != kind || gotSummary != summary {
		s.t.Errorf("event: got %s %s, want %s %s", got, gotSummary, kind, summary)
	}
}

// daemon follows a socket as podgauge does, and counts pods that come and go.
type daemon struct {
	t         *testing.T
	published pubsub.Value[pods.Pods]
	calls     chan string
}

func startDaemon(t *testing.T, socket string) *daemon {
	t.Helper()
	d := &daemon{t: t, calls: make(chan string, 1000)}
	client, err := pods.New(socket, pods.Options{
		Labels: []string{"*"}, Pods: &d.published,
		OnPodAdded: func(_, name string) { d.calls <- "+" + name },
		OnPodEnded: func(_, name string) { d.calls <- "-" + name },
	})
	require.NoError(t, err)
	background.Run(t, client.Run)
	return d
}

// wait waits for pods of a kind.
func (d *daemon) wait(what string, wanted func(pods.Pods) bool) pods.Pods {
	d.t.Helper()
	timeout := time.After(testTimeout)
	for {
		ps, changed := d.published.Get()
		if wanted(ps) {
			return ps
		}
		select {
		case <-changed:
		case <-timeout:
			d.t.Fatalf("timeout: waiting for %s: synced %t, %v", what, ps.Synced, ps.Err)
		}
	}
}

// waitFor waits for a phase of pod a; empty: no such pod.
func (d *daemon) waitFor(uid, phase string) pods.Pod {
	d.t.Helper()
	ps := d.wait("phase "+phase+" of pod "+uid, func(ps pods.Pods) bool {
		p, _ := ps.ByName("team", "a")
		return ps.Synced && p.UID == uid && p.Phase == phase
	})
	p, _ := ps.ByName("team", "a")
	return p
}

func newPod(name, uid string, phase v1.PodPhase) *v1.Pod {
	p := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name, UID: types.UID(uid), Labels: map[string]string{"app": name}},
		Spec:       v1.PodSpec{NodeName: "a", Containers: []v1.Container{{Name: "main", Image: "image"}}},
		Status:     v1.PodStatus{Phase: phase},
	}
	state := v1.ContainerState{Running: &v1.ContainerStateRunning{}}
	if phase == v1.PodFailed {
		state = v1.ContainerState{Terminated: &v1.ContainerStateTerminated{ExitCode: 137, Reason: "Error", Message: "long"}}
	}
	if phase != v1.PodPending {
		p.Status.ContainerStatuses = []v1.ContainerStatus{{Name: "main", ContainerID: "containerd://id-" + uid, State: state}}
	}
	return p
}

const (
	added, modified, deleted = api.EventType_ADDED, api.EventType_MODIFIED, api.EventType_DELETED
)

// TestLifecycle follows a pod with podgauge's client and with a plain client.
func TestLifecycle(t *testing.T) {
	c := newCluster(t)
	c.startSidecar()
	s, d := c.stream(), startDaemon(t, c.socket)
	d.waitFor("", "")
	c.apply(newPod("a", "1", v1.PodPending))
	s.want(added, "a/1 Pending")
	d.waitFor("1", "Pending")
	running := newPod("a", "1", v1.PodRunning)
	c.apply(running)
	s.want(modified, "a/1 Running")
	if p := d.waitFor("1", "Running"); len(p.Containers) != 1 || p.Containers[0].ID != "id-1" || p.Labels[0].Value != "a" {
		t.Errorf("running pod: got %+v", p)
	}
	running.Spec.Containers[0].Image = "other" // not read by podgauge
	running.Status.Conditions = []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionTrue}}
	c.apply(running)
	c.apply(newPod("a", "1", v1.PodFailed))
	s.want(modified, "a/1 Failed")
	if p := d.waitFor("1", "Failed"); p.Containers[0].State.ExitCode != 137 {
		t.Errorf("failed pod: got %+v", p)
	}
	c.remove("a")
	kind, gone := s.next()
	want := v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "a", UID: "1"}}
	if kind != deleted || !reflect.DeepEqual(gone, want) {
		t.Errorf("deleted pod: got %s %+v, want name and UID only", kind, gone)
	}
	d.waitFor("", "")
	expect.Equal(t, <-d.calls+<-d.calls, "+a-a", "calls")
}

// TestStaticPod checks that the mirror pod has the UID of the kubelet.
func TestStaticPod(t *testing.T) {
	const hash = "0123456789abcdef0123456789abcdef"
	mirror := newPod("a", "mirror-1", v1.PodRunning)
	mirror.CreationTimestamp = metav1.Now()
	mirror.Annotations = map[string]string{
		v1.MirrorPodAnnotationKey: hash, "kubernetes.io/config.hash": hash, "kubernetes.io/config.source": "file",
		"doc": strings.Repeat("x", 1000),
	}
	c := newCluster(t, mirror)
	c.startSidecar()
	d := startDaemon(t, c.socket)
	if p := d.waitFor(hash, "Running"); !p.Created.IsZero() {
		t.Errorf("creation: got %s, want that of the static pod, which is unknown", p.Created)
	}
	r, err := c.connect().GetPod(t.Context(), &api.GetPodRequest{PodUID: hash})
	require.NoError(t, err)
	var p v1.Pod
	require.NoError(t, p.Unmarshal(r.Pod))
	if p.UID != hash || len(p.Annotations) != 2 || p.Annotations["kubernetes.io/config.hash"] != hash {
		t.Errorf("got UID %s, annotations %v", p.UID, p.Annotations)
	}
	c.remove("a")
	d.waitFor("", "")
}

// TestOutage takes the API server away while pods end and begin.
func TestOutage(t *testing.T) {
	c := newCluster(t, newPod("a", "1", v1.PodRunning), newPod("b", "2", v1.PodRunning))
	c.startSidecar()
	d := startDaemon(t, c.socket)
	d.waitFor("1", "Running")
	s := c.stream()
	c.outage(errors.New("connection refused"))
	ps := d.wait("the outage", func(ps pods.Pods) bool { return !ps.Synced })
	if ps.Len() != 2 || !strings.Contains(ps.Err.Error(), "connection refused") {
		t.Errorf("outage: got %d pods, %v, want the last known pods", ps.Len(), ps.Err)
	}
	if _, err := s.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("stream in the outage: got %v", err)
	}
	if _, err := c.connect().ListPods(t.Context(), &api.ListPodsRequest{}); status.Code(err) != codes.Unavailable {
		t.Errorf("list in the outage: got %v", err)
	}
	c.remove("a")
	c.remove("b")
	c.apply(newPod("a", "3", v1.PodRunning)) // a StatefulSet's
	c.end()
	d.waitFor("3", "Running")
	d.wait("the end of b", func(ps pods.Pods) bool { return ps.Len() == 1 })
	if c.log.Count("level=WARN") != 1 || c.log.Count("again") != 1 {
		t.Errorf("log: got %s", c.log.String())
	}
}

// TestRecreatedPod replaces a pod between two lists, within a stream.
func TestRecreatedPod(t *testing.T) {
	c := newCluster(t, newPod("a", "1", v1.PodRunning))
	c.startSidecar()
	s := c.stream()
	recreated := newPod("a", "2", v1.PodPending) // an informer reports an update
	c.apply(recreated)
	s.want(deleted, "a/1 ")
	s.want(added, "a/2 Pending")
}

// TestNotListed checks that podgauge's readiness does not wait for the API
// server.
func TestNotListed(t *testing.T) {
	c := newCluster(t, newPod("a", "1", v1.PodRunning))
	hold := make(chan struct{})
	c.lists.Store(&hold)
	c.startSidecar()
	d := startDaemon(t, c.socket)
	ps := d.wait("an error", func(ps pods.Pods) bool { return ps.Err != nil })
	if status.Code(errors.Unwrap(ps.Err)) != codes.FailedPrecondition || !strings.Contains(ps.Err.Error(), "not listed the pods yet") {
		t.Errorf("hung API server: got %v", ps.Err)
	}
	forbidden := error(apierrors.NewForbidden(v1.Resource("pods"), "", errors.New("no role")))
	c.refused.Store(&forbidden)
	close(hold)
	d.wait("a refused request", func(ps pods.Pods) bool { return strings.Contains(ps.Err.Error(), "no role") })
	c.end()
	d.waitFor("1", "Running")
}

// TestListAndGet compares with the order and the errors of the kubelet.
func TestListAndGet(t *testing.T) {
	c := newCluster(t, newPod("z", "1", v1.PodRunning), newPod("a", "2", v1.PodFailed))
	c.startSidecar()
	c.stream()
	list, err := c.connect().ListPods(t.Context(), &api.ListPodsRequest{})
	require.NoError(t, err)
	var names []string
	for _, wire := range list.Pods {
		var p v1.Pod
		require.NoError(t, p.Unmarshal(wire))
		names = append(names, p.Name)
	}
	if strings.Join(names, " ") != "z a" {
		t.Errorf("list: got %v, want the order of UIDs", names)
	}
	_, err = c.connect().GetPod(t.Context(), &api.GetPodRequest{PodUID: "3"})
	if status.Code(err) != codes.NotFound || !strings.Contains(err.Error(), "pod with UID 3 not found") {
		t.Errorf("missing pod: got %v", err)
	}
}

// TestSlowWatcher checks that a client that does not read loses its stream, and
// not the others theirs.
func TestSlowWatcher(t *testing.T) {
	c := newCluster(t)
	c.startSidecar()
	fast := c.stream()
	slow := c.stream()
	const changes = 200
	p := newPod("a", "1", v1.PodRunning)
	p.Labels["padding"] = strings.Repeat("x", 1<<14) // the transport holds 64 KiB
	for i := range changes {
		p.Labels["i"] = fmt.Sprint(i)
		c.apply(p)
		if _, got := fast.next(); got.Labels["i"] != p.Labels["i"] {
			t.Fatalf("fast client: got change %s, want %d", got.Labels["i"], i)
		}
	}
	read := 0
	_, err := slow.Recv()
	for ; err == nil; read++ {
		_, err = slow.Recv()
	}
	if status.Code(err) != codes.ResourceExhausted || read == 0 || read >= changes {
		t.Errorf("slow client: got %d events and %v", read, err)
	}
}

// TestSocket checks the mode, a stale file, a path that is too long, and the end
// with open streams.
func TestSocket(t *testing.T) {
	c := newCluster(t)
	stale, err := net.Listen("unix", c.socket) // of a killed process
	require.NoError(t, err)
	stale.(*net.UnixListener).SetUnlinkOnClose(false)
	require.NoError(t, stale.Close())
	c.startSidecar()
	s := c.stream()
	if info, err := os.Stat(c.socket); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("socket: got %v, %v, want mode 0600", info, err)
	}
	c.stop()
	if _, err := s.Recv(); err == nil {
		t.Error("stream after the end: got no error")
	}
	if _, err := os.Stat(c.socket); !os.IsNotExist(err) {
		t.Errorf("socket after the end: got %v", err)
	}
	long := filepath.Join(t.TempDir(), strings.Repeat("x", 120))
	server := podsapi.New(long, source.Pods(c, "a", c.log.Logger()), c.log.Logger())
	expect.Error(t, server.Run(t.Context()), "serve the Pods API", "long path")
}

// kubelet serves pods as the kubelet does: whole.
type kubelet struct {
	api.UnimplementedPodsServer
	pods []*v1.Pod
}

func (k kubelet) WatchPods(_ *api.WatchPodsRequest, stream grpc.ServerStreamingServer[api.WatchPodsEvent]) error {
	for _, p := range k.pods {
		wire, err := p.Marshal()
		if err == nil {
			err = stream.Send(&api.WatchPodsEvent{Type: added, Pod: wire})
		}
		if err != nil {
			return err
		}
	}
	if err := stream.Send(&api.WatchPodsEvent{Type: api.EventType_INITIAL_SYNC_COMPLETE}); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}

// TestSameAsKubelet checks that podgauge sees the same pods by the sidecar as by
// the kubelet.
func TestSameAsKubelet(t *testing.T) {
	files, err := filepath.Glob("../../../internal/pods/testdata/*.pb")
	if err != nil || len(files) < 10 {
		t.Fatalf("fixtures: %v, %v", files, err)
	}
	var k kubelet
	var objects []runtime.Object
	for i, file := range files {
		wire, err := os.ReadFile(file)
		require.NoError(t, err)
		p := &v1.Pod{}
		require.NoError(t, p.Unmarshal(wire))
		p.Name, p.UID = fmt.Sprint("pod-", i), types.UID(fmt.Sprint("uid-", i)) // some are of one pod
		k.pods, objects = append(k.pods, p), append(objects, p.DeepCopy())
	}
	c := newCluster(t, objects...)
	c.startSidecar()
	socket := filepath.Join(background.Dir(t), "kubelet.sock")
	listener, err := net.Listen("unix", socket)
	require.NoError(t, err)
	server := grpc.NewServer(grpc.WaitForHandlers(true))
	api.RegisterPodsServer(server, k)
	background.Run(t, func(ctx context.Context) error {
		defer context.AfterFunc(ctx, server.Stop)()
		return server.Serve(listener)
	})
	synced := func(ps pods.Pods) bool { return ps.Synced }
	bySidecar := startDaemon(t, c.socket).wait("the sidecar", synced)
	byKubelet := startDaemon(t, socket).wait("the kubelet", synced)
	for _, p := range k.pods {
		got, _ := bySidecar.ByName(p.Namespace, p.Name)
		if want, _ := byKubelet.ByName(p.Namespace, p.Name); !reflect.DeepEqual(got, want) {
			t.Errorf("got by the sidecar\n%+v, by the kubelet\n%+v", got, want)
		}
	}
}
