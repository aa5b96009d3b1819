//go:build cluster

package cluster_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/incident"
	"github.com/podgauge/podgauge/internal/pubsub"
	"github.com/podgauge/podgauge/internal/web/api"
	"github.com/podgauge/podgauge/test/e2e/cluster"
	"github.com/podgauge/podgauge/test/e2e/node"
	"github.com/prometheus/procfs"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	fleetNodes     = 500
	fleetRack      = 50 // nodes that fail at once
	fleetNamespace = "fleet"
	fleetPort      = 19400 // of the nodes' API
	fleetMetrics   = "127.0.0.1:19401"
	// fleetIdle is the time of the measurement without a fault.
	fleetIdle = time.Minute
)

// fleetNode is the API of a simulated node, with a state of its own.
type fleetNode struct {
	state  pubsub.Value[api.Node]
	hung   atomic.Bool // accepts requests, and never answers
	served http.Handler
}

// fleet are the simulated nodes: objects at the API server, and podgauge's JSON API at an address of each.
type fleet struct {
	nodes  [fleetNodes]*fleetNode
	client kubernetes.Interface
	c      *cluster.Cluster
}

func nodeName(i int) string { return fmt.Sprintf("gpu-%03d", i) }

func nodeIP(i int) string { return fmt.Sprintf("127.1.%d.%d", i/200, 1+i%200) }

// newFleet starts the nodes.
func newFleet(t *testing.T, c *cluster.Cluster) *fleet {
	t.Helper()
	f := &fleet{c: c}
	config, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig)
	must(t, err)
	config.QPS = -1 // no limit
	f.client, err = kubernetes.NewForConfig(config)
	must(t, err)
	byAddress := map[string]*fleetNode{}
	for i := range f.nodes {
		n := &fleetNode{}
		n.state.Set(fleetState(i, false))
		n.served = api.Handler(func() (api.Node, []<-chan struct{}) {
			newest, changed := n.state.Get()
			return newest, []<-chan struct{}{changed}
		})
		f.nodes[i], byAddress[nodeIP(i)] = n, n
	}
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", fmt.Sprintf(":%d", fleetPort))
	must(t, err)
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(
		func(w http.ResponseWriter, r *http.Request) {
			host, _, _ := net.SplitHostPort(r.Context().Value(http.LocalAddrContextKey).(net.Addr).String())
			n := byAddress[strings.TrimPrefix(host, "::ffff:")]
			if n.hung.Load() {
				<-r.Context().Done()
			} else {
				n.served.ServeHTTP(w, r)
			}
		})}
	go server.Serve(l) //nolint:errcheck // until the end of the test
	t.Cleanup(func() { server.Close() })
	f.create(t)
	return f
}

// fleetState returns the state of a node with 8 GPUs, of which the first failed or not.
func fleetState(i int, failed bool) api.Node {
	now := time.Now()
	n := api.Node{Name: nodeName(i), Driver: device.Driver{State: device.DriverUp}}
	for g := range gpuCount {
		id := fmt.Sprintf("GPU-%08d-0000-4000-8000-%012d", i, g)
		n.Statuses = append(n.Statuses, device.Status{
			Device: device.Device{
				ID: device.ID(id), GPU: device.GPU(id), Index: g, MIGDeviceIndex: -1, GI: -1, CI: -1, NUMANode: -1,
			}, Healthy: true, Since: now,
		})
	}
	if failed {
		s := &n.Statuses[0]
		s.Healthy, s.Health, s.Reason, s.Action = false, device.Unhealthy, "xid_79", "reboot"
		n.Incidents = incident.Snapshot{Incidents: []incident.Incident{{
			ID: uint64(now.UnixMilli()), First: now, Last: now, Count: 1, Device: s.ID, GPU: s.GPU, Reason: "xid_79",
			Xid: 79, Action: "reboot", MarkedUnhealthy: true,
		}}}
	}
	return n
}

// create creates the nodes and podgauge's pods at the API server.
func (f *fleet) create(t *testing.T) {
	t.Helper()
	g, ctx := errgroup.WithContext(t.Context())
	g.SetLimit(16)
	create := func(i int) error {
		_, err := f.client.CoreV1().Nodes().Create(ctx, &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: nodeName(i)},
			Spec:       corev1.NodeSpec{Taints: []corev1.Taint{{Key: "simulated", Effect: corev1.TaintEffectNoExecute}}},
		}, metav1.CreateOptions{})
		if err != nil {
			return err
		}
		pods := f.client.CoreV1().Pods(fleetNamespace)
		p, err := pods.Create(ctx, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Name: "podgauge-" + nodeName(i), Labels: map[string]string{"app.kubernetes.io/name": "podgauge"},
			},
			Spec: corev1.PodSpec{
				NodeName: nodeName(i), Containers: []corev1.Container{{Name: "podgauge", Image: "podgauge"}},
				Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			},
		}, metav1.CreateOptions{})
		if err != nil {
			return err
		}
		p.Status.Phase, p.Status.PodIP = corev1.PodRunning, nodeIP(i)
		p.Status.PodIPs = []corev1.PodIP{{IP: p.Status.PodIP}}
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		_, err = pods.UpdateStatus(ctx, p, metav1.UpdateOptions{})
		return err
	}
	for i := range f.nodes {
		g.Go(func() error { return create(i) })
	}
	must(t, g.Wait())
}

// startController starts podgauge-kube with a token of its service account's user.
func (f *fleet) startController(t *testing.T) *exec.Cmd {
	t.Helper()
	p := exec.Command(repoRoot+"/bin/podgauge-kube", "controller", "--kubeconfig="+f.c.Kubeconfig,
		"--namespace="+fleetNamespace, "--lease-namespace="+fleetNamespace, fmt.Sprintf("--port=%d", fleetPort),
		"--events", "--node-condition=podgauge", "--device-taints", "--web.listen-address="+fleetMetrics)
	log := &strings.Builder{}
	p.Stdout, p.Stderr = log, log
	must(t, p.Start())
	t.Cleanup(func() {
		p.Process.Kill() //nolint:errcheck // may have ended
		p.Wait()         //nolint:errcheck // killed
		if t.Failed() {
			t.Log(log)
		}
	})
	return p
}

// metric returns the sum of the controller's series with a prefix.
func (f *fleet) metric(ctx context.Context, prefix string) (sum float64, err error) {
	text, err := get(ctx, "http://"+fleetMetrics+"/metrics")
	for line := range strings.Lines(text) {
		var value float64
		if !strings.HasPrefix(line, prefix) {
			continue
		}
		if _, err := fmt.Sscan(line[strings.LastIndex(line, " ")+1:], &value); err != nil {
			return 0, err
		}
		sum += value
	}
	return sum, err
}

// follows returns an error unless the controller follows a number of nodes.
func (f *fleet) follows(want float64) func(context.Context) error {
	return func(ctx context.Context) error {
		got, err := f.metric(ctx, `podgauge_kube_nodes{state="followed"}`)
		if err == nil && got != want {
			err = fmt.Errorf("%v nodes are followed, want %v", got, want)
		}
		return err
	}
}

// conditions returns the conditions GPUUnhealthy by node.
func (f *fleet) conditions(ctx context.Context) (map[string]corev1.NodeCondition, error) {
	list, err := f.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return nil, err
	}
	all := map[string]corev1.NodeCondition{}
	for i := range list.Items {
		for _, c := range list.Items[i].Status.Conditions {
			if c.Type == "GPUUnhealthy" {
				all[list.Items[i].Name] = c
			}
		}
	}
	return all, nil
}

// hasConditions returns a check of the numbers of nodes with the condition, and of those with a fault.
func (f *fleet) hasConditions(known, failed int) func(context.Context) error {
	return func(ctx context.Context) error {
		all, err := f.conditions(ctx)
		if err != nil {
			return err
		}
		faults := 0
		for _, c := range all {
			if c.Status == corev1.ConditionTrue {
				faults++
			}
		}
		if len(all) != known || faults != failed {
			err = fmt.Errorf("%d nodes have the condition and %d a fault, want %d and %d", len(all), faults, known, failed)
		}
		return err
	}
}

// usage returns the CPU time in seconds, the requests and the memory in MiB of the controller so far.
func (f *fleet) usage(t *testing.T, p *exec.Cmd) (cpu, requests, memory float64) {
	t.Helper()
	process, err := procfs.NewProc(p.Process.Pid)
	must(t, err)
	stat, err := process.Stat()
	must(t, err)
	requests, err = f.metric(t.Context(), "podgauge_kube_requests_total")
	must(t, err)
	return stat.CPUTime(), requests, float64(stat.ResidentMemory()) / (1 << 20)
}

// TestControllerFleet measures podgauge-kube with 500 simulated nodes: memory, CPU time and requests, a rack that fails at once beside a hung
// node, and a restart, after which no condition and no event has changed.
func TestControllerFleet(t *testing.T) {
	n := node.ForTest(t.Context(), t, cluster.Options())
	c, err := cluster.Up(t.Context(), n, "privileged")
	must(t, err)
	_, err = c.Kubectl(t.Context(), "create", "namespace", fleetNamespace)
	must(t, err)
	f := newFleet(t, c)
	hung := f.nodes[fleetNodes-1]
	hung.hung.Store(true)

	begin := time.Now()
	p := f.startController(t)
	await(t, "the controller follows all nodes but the hung one", f.follows(fleetNodes-1))
	await(t, "all nodes but the hung one have the condition", f.hasConditions(fleetNodes-1, 0))
	printMeasurement(t, fmt.Sprintf("start with %d nodes → each has the condition", fleetNodes), formatSeconds(time.Since(begin)))
	cpu, requests, _ := f.usage(t, p)
	printMeasurement(t, "start: CPU time, requests to the API server", fmt.Sprintf("%.2f s, %.0f", cpu, requests))

	time.Sleep(fleetIdle)
	cpuIdle, requestsIdle, memory := f.usage(t, p)
	printMeasurement(t, "a minute without a fault: CPU time, requests, memory",
		fmt.Sprintf("%.2f s, %.0f, %.0f MiB", cpuIdle-cpu, requestsIdle-requests, memory))

	begin = time.Now()
	for i := range fleetRack {
		f.nodes[i].state.Set(fleetState(i, true))
	}
	await(t, "the rack has the fault", f.hasConditions(fleetNodes-1, fleetRack))
	printMeasurement(t, fmt.Sprintf("%d nodes fail at once → conditions", fleetRack), formatSeconds(time.Since(begin)))
	await(t, "the rack has events", f.hasEvents(fleetRack))

	before, err := f.conditions(t.Context())
	must(t, err)
	must(t, p.Process.Kill())
	begin = time.Now()
	p.Wait() //nolint:errcheck // killed
	f.startController(t)
	await(t, "the next controller follows all nodes", f.follows(fleetNodes-1))
	printMeasurement(t, "kill and start (the lease lasts 15 s) → all nodes followed", formatSeconds(time.Since(begin)))
	time.Sleep(10 * time.Second) // for repeated reports
	after, err := f.conditions(t.Context())
	must(t, err)
	for name, c := range after {
		if b := before[name]; c.LastTransitionTime != b.LastTransitionTime || c.Status != b.Status || c.Message != b.Message {
			got, _ := json.Marshal(c)
			t.Errorf("condition of %s after a restart: got %s, want as before", name, got)
		}
	}
	must(t, f.hasEvents(fleetRack)(t.Context()))
}

// hasEvents returns a check of the number of events about failed GPUs, each with count 1.
func (f *fleet) hasEvents(want int) func(context.Context) error {
	return func(ctx context.Context) error {
		list, err := f.client.CoreV1().Events("").List(ctx, metav1.ListOptions{FieldSelector: "reason=GPUUnhealthy"})
		if err != nil {
			return err
		}
		for i := range list.Items {
			if list.Items[i].Count != 1 {
				return fmt.Errorf("event %s has count %d", list.Items[i].Name, list.Items[i].Count)
			}
		}
		if len(list.Items) != want {
			err = fmt.Errorf("%d events, want %d", len(list.Items), want)
		}
		return err
	}
}
