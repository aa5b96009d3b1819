package nodes_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/web/api"
	"github.com/podgauge/podgauge/kube/internal/nodes"
	"github.com/podgauge/podgauge/test/helpers/background"
	"github.com/podgauge/podgauge/test/helpers/require"
	"github.com/podgauge/podgauge/test/helpers/testlog"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fixture runs Nodes in a bubble, with an API server and a network in memory.
type fixture struct {
	*recorder
	t       *testing.T
	client  *fake.Clientset
	log     testlog.Buffer
	nodes   *nodes.Nodes
	network network
}

func start(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{t: t, client: fake.NewClientset(), recorder: &recorder{}}
	f.nodes = nodes.New(nodes.Options{
		Kubernetes: f.client, Namespace: "podgauge", Selector: "app=podgauge", Scheme: "http",
		HTTP:      &http.Client{Transport: &http.Transport{DialContext: f.network.dial, DisableKeepAlives: true}},
		Reporters: []nodes.Reporter{f.recorder}, Log: f.log.Logger(),
	})
	t.Cleanup(func() { // after the end of Run
		f.network.close()
		synctest.Wait()
	})
	background.Run(t, f.nodes.Run)
	synctest.Wait() // the watch is established
	return f
}

// pod creates a ready pod on a node, whose podgauge has the same address.
func (f *fixture) pod(node, address string, change ...func(*corev1.Pod)) *corev1.Pod {
	f.t.Helper()
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "podgauge", Name: "podgauge-" + strings.ReplaceAll(address, ".", "-"), UID: types.UID(address),
			Labels: map[string]string{"app": "podgauge"}, CreationTimestamp: metav1.NewTime(time.Now()),
		},
		Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{
			{Name: "podgauge", Ports: []corev1.ContainerPort{{Name: "metrics", ContainerPort: 80}}},
		}},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, PodIP: address,
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
		},
	}
	for _, c := range change {
		c(p)
	}
	p, err := f.client.CoreV1().Pods(p.Namespace).Create(f.t.Context(), p, metav1.CreateOptions{})
	require.NoError(f.t, err)
	return p
}

func (f *fixture) deletePod(p *corev1.Pod) {
	f.t.Helper()
	require.NoError(f.t, f.client.CoreV1().Pods(p.Namespace).Delete(f.t.Context(), p.Name, metav1.DeleteOptions{}))
}

// wantReports waits and compares the reports since the last call.
func (f *fixture) wantReports(wait time.Duration, want ...string) {
	f.t.Helper()
	time.Sleep(wait)
	synctest.Wait()
	got := f.take()
	slices.Sort(got)
	if !slices.Equal(got, want) {
		f.t.Errorf("got reports %q, want %q; log:\n%s", got, want, f.log.String())
	}
}

func (f *fixture) wantCount(followed, unreachable int) {
	f.t.Helper()
	if a, b := f.nodes.Count(); a != followed || b != unreachable {
		f.t.Errorf("got %d nodes followed and %d unreachable, want %d and %d", a, b, followed, unreachable)
	}
}

// recorder is a Reporter that records "node: devices" and "node forgotten".
type recorder struct {
	mu      sync.Mutex
	reports []string
	next    time.Duration
	err     error
}

func (r *recorder) Report(_ context.Context, node string, response *api.NodeResponse) (time.Duration, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var devices []string
	for _, d := range response.Devices {
		devices = append(devices, string(d.ID))
	}
	r.reports = append(r.reports, node+": "+strings.Join(devices, " "))
	return r.next, r.err
}

func (r *recorder) Forget(_ context.Context, node string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reports = append(r.reports, node+" forgotten")
	return r.err
}

func (r *recorder) set(next time.Duration, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.next, r.err = next, err
}

func (r *recorder) take() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	taken := r.reports
	r.reports = nil
	return taken
}

// network connects to servers by address.
type network struct {
	mu        sync.Mutex
	listeners map[string]*listener
}

func (n *network) dial(_ context.Context, _, address string) (net.Conn, error) {
	n.mu.Lock()
	l := n.listeners[address]
	n.mu.Unlock()
	if l == nil {
		return nil, errors.New("connection refused")
	}
	client, server := net.Pipe()
	select {
	case l.connections <- server:
		return client, nil
	case <-l.closed:
		return nil, errors.New("connection refused")
	}
}

// serve starts a server at port 80 of an address.
func (n *network) serve(address string, h http.HandlerFunc) {
	l := &listener{connections: make(chan net.Conn), closed: make(chan struct{})}
	l.server = &http.Server{Handler: h}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.listeners == nil {
		n.listeners = map[string]*listener{}
	}
	if old := n.listeners[address+":80"]; old != nil {
		old.server.Close()
	}
	n.listeners[address+":80"] = l
	go l.server.Serve(l)
}

func (n *network) close() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, l := range n.listeners {
		l.server.Close()
	}
}

type listener struct {
	server      *http.Server
	connections chan net.Conn
	closed      chan struct{}
	once        sync.Once
}

func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.connections:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *listener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *listener) Addr() net.Addr { return &net.IPAddr{} }

// podgauge is podgauge's API on a node, with states that the test sends.
type podgauge struct {
	mu       sync.Mutex
	requests []string
	lines    chan string // "": end of the stream
}

// serve returns a podgauge at an address.
func (f *fixture) serve(address string) *podgauge {
	p := &podgauge{lines: make(chan string)}
	f.network.serve(address, p.ServeHTTP)
	return p
}

func (p *podgauge) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	p.requests = append(p.requests, r.URL.String())
	p.mu.Unlock()
	w.(http.Flusher).Flush()
	for {
		select {
		case <-r.Context().Done():
			return
		case line := <-p.lines:
			if line == "" {
				return
			}
			io.WriteString(w, line+"\n")
			w.(http.Flusher).Flush()
		}
	}
}

func (p *podgauge) connections() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.requests)
}

// state returns a line of podgauge with devices.
func state(devices ...string) string {
	r := api.NodeResponse{At: time.Now(), Driver: api.DriverJSON{State: "up"}}
	for _, id := range devices {
		r.Devices = append(r.Devices, api.DeviceJSON{ID: device.ID(id)})
	}
	line, err := json.Marshal(r)
	if err != nil {
		panic(err)
	}
	return string(line)
}
