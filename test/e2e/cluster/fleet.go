package cluster

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/incident"
	"github.com/podgauge/podgauge/internal/pubsub"
	"github.com/podgauge/podgauge/internal/web/api"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	resource "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

// The namespace of the fleet's pods, and the port of their API.
const (
	FleetNamespace = "fleet"
	FleetPort      = 19400
)

// fleetGPUs is the number of GPUs of a node.
const fleetGPUs = 8

// Fleet are simulated nodes: objects at the API server, and podgauge's JSON API
// at an address of each, on the machine.
type Fleet struct {
	Client kubernetes.Interface // the administrator's

	nodes     []*fleetNode
	byAddress map[string]*fleetNode
	server    *http.Server
}

// fleetNode is the API of a node.
type fleetNode struct {
	state pubsub.Value[api.Node]
	hung  atomic.Bool
	api   http.Handler
}

// NewFleet creates the nodes at the API server, and serves their API until Close.
func (c *Cluster) NewFleet(ctx context.Context, size int) (*Fleet, error) {
	config, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig: %w", err)
	}
	config.QPS = -1 // no limit
	f := &Fleet{byAddress: map[string]*fleetNode{}}
	if f.Client, err = kubernetes.NewForConfig(config); err != nil {
		return nil, err
	}
	if _, err := c.Kubectl(ctx, "create", "namespace", FleetNamespace); err != nil {
		return nil, err
	}
	for i := range size {
		n := &fleetNode{}
		n.state.Set(fleetState(i, false))
		n.api = api.Handler(func() (api.Node, []<-chan struct{}) {
			newest, changed := n.state.Get()
			return newest, []<-chan struct{}{changed}
		})
		f.nodes = append(f.nodes, n)
		f.byAddress[fleetIP(i)] = n
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", fmt.Sprintf(":%d", FleetPort))
	if err != nil {
		return nil, err
	}
	f.server = &http.Server{Handler: f, ReadHeaderTimeout: time.Minute}
	go f.server.Serve(l) //nolint:errcheck // until Close
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(16)
	for i := range size {
		g.Go(func() error { return f.create(ctx, i) })
	}
	return f, g.Wait()
}

// Close ends the API of all nodes.
func (f *Fleet) Close() error { return f.server.Close() }

// Fail reports Xid 79 on the first GPU of a node.
func (f *Fleet) Fail(i int) { f.nodes[i].state.Set(fleetState(i, true)) }

// Hang makes a node accept requests, and never answer.
func (f *Fleet) Hang(i int) { f.nodes[i].hung.Store(true) }

// ServeHTTP serves the API of the node with the address of the connection.
func (f *Fleet) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	host, _, _ := net.SplitHostPort(r.Context().Value(http.LocalAddrContextKey).(net.Addr).String()) // of a TCP address
	n := f.byAddress[strings.TrimPrefix(host, "::ffff:")]
	if n.hung.Load() {
		<-r.Context().Done()
		return
	}
	n.api.ServeHTTP(w, r)
}

func fleetName(i int) string { return fmt.Sprintf("gpu-%03d", i) }

func fleetIP(i int) string { return fmt.Sprintf("127.1.%d.%d", i/200, 1+i%200) }

func fleetUUID(i, gpu int) string { return fmt.Sprintf("GPU-%08d-0000-4000-8000-%012d", i, gpu) }

// fleetSlice returns the devices that a DRA driver publishes for a node.
func fleetSlice(i int) *resource.ResourceSlice {
	name := fleetName(i)
	s := &resource.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: resource.ResourceSliceSpec{
			Driver: "gpu.nvidia.com", NodeName: &name, Pool: resource.ResourcePool{Name: name, ResourceSliceCount: 1},
		},
	}
	for g := range fleetGPUs {
		uuid := fleetUUID(i, g)
		s.Spec.Devices = append(s.Spec.Devices, resource.Device{
			Name:       fmt.Sprintf("gpu-%d", g),
			Attributes: map[resource.QualifiedName]resource.DeviceAttribute{"uuid": {StringValue: &uuid}},
		})
	}
	return s
}

// fleetState returns the state of a node, whose first GPU failed or not.
func fleetState(i int, failed bool) api.Node {
	now := time.Now()
	n := api.Node{Name: fleetName(i), Driver: device.Driver{State: device.DriverUp}}
	for g := range fleetGPUs {
		id := fleetUUID(i, g)
		n.Statuses = append(n.Statuses, device.Status{
			Device: device.Device{
				ID: device.ID(id), GPU: device.GPU(id), Index: g, MIGDeviceIndex: -1, GI: -1, CI: -1, NUMANode: -1,
			},
			Healthy: true, Since: now,
		})
	}
	if failed {
		s := &n.Statuses[0]
		s.Healthy, s.Health, s.Reason, s.Action = false, device.Unhealthy, "xid_79", "reboot"
		n.Incidents = incident.Snapshot{Incidents: []incident.Incident{{
			ID: uint64(now.UnixMilli()), First: now, Last: now, Count: 1, Device: s.ID, GPU: s.GPU, Reason: s.Reason,
			Xid: 79, Action: s.Action, MarkedUnhealthy: true,
		}}}
	}
	return n
}

// create creates a node, its ResourceSlice, and podgauge's pod on it, at the
// API server.
func (f *Fleet) create(ctx context.Context, i int) error {
	if _, err := f.Client.CoreV1().Nodes().Create(ctx, &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: fleetName(i)},
		Spec: corev1.NodeSpec{
			Taints: []corev1.Taint{{Key: "simulated", Effect: corev1.TaintEffectNoExecute}},
		},
	}, metav1.CreateOptions{}); err != nil {
		return err
	}
	if _, err := f.Client.ResourceV1().ResourceSlices().Create(ctx, fleetSlice(i), metav1.CreateOptions{}); err != nil {
		return err
	}
	pods := f.Client.CoreV1().Pods(FleetNamespace)
	p, err := pods.Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: "podgauge-" + fleetName(i), Labels: map[string]string{"app.kubernetes.io/name": "podgauge"},
		},
		Spec: corev1.PodSpec{
			NodeName: fleetName(i), Containers: []corev1.Container{{Name: "podgauge", Image: "podgauge"}},
			Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	p.Status.Phase, p.Status.PodIP = corev1.PodRunning, fleetIP(i)
	p.Status.PodIPs = []corev1.PodIP{{IP: p.Status.PodIP}}
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	_, err = pods.UpdateStatus(ctx, p, metav1.UpdateOptions{})
	return err
}
