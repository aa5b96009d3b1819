package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/allocation"
	"github.com/podgauge/podgauge/internal/config"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/incident"
	"github.com/podgauge/podgauge/internal/web/api"
	authv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/kubernetes/scheme"
)

var update = flag.Bool("update", false, "write the golden files")

const (
	gpu0 = "GPU-3b5c6c1e-0f6d-4c6a-9d4e-8a1f2b3c4d50"
	gpu1 = "GPU-3b5c6c1e-0f6d-4c6a-9d4e-8a1f2b3c4d51"
	mig0 = "MIG-6f1d7f52-5b0e-5f0c-8c39-5d1c0e8f7a20"
)

// fakeNode is a node of the fake cluster, with podgauge's responses.
type fakeNode struct {
	devices   *api.DevicesResponse
	incidents *api.IncidentsResponse
	phase     corev1.PodPhase
	serve     http.HandlerFunc // replaces the responses
	port      int32
	evicted   bool // the node also has an ended pod
	noList    bool // the pod mounts no ConfigMap of retired devices
}

// fakeCluster is an API server with podgauge's pods and a proxy to each.
type fakeCluster struct {
	t     *testing.T
	url   string
	nodes map[string]*fakeNode
	mux   *http.ServeMux
	done  chan struct{} // ends handlers that hang

	ctx       context.Context      // of the commands; nil: that of the test
	otherPods []corev1.Pod         // pods in other namespaces than podgauge
	created   map[string]time.Time // creation times of objects by path

	mu       sync.Mutex
	requests []string          // paths requested from podgauge
	retired  *corev1.ConfigMap // guarded by mu
	conflict func()            // before the first update, which then conflicts
}

func newFakeCluster(t *testing.T, nodes map[string]*fakeNode) *fakeCluster {
	c := &fakeCluster{t: t, nodes: nodes, done: make(chan struct{})}
	mux := http.NewServeMux()
	c.mux = mux
	mux.HandleFunc("GET /api/v1/pods", c.listPods)
	mux.HandleFunc("GET /api/v1/namespaces/{namespace}/pods", c.listPods)
	mux.HandleFunc("GET /api/v1/namespaces/podgauge/pods/{name}/proxy/{path...}", c.proxy)
	mux.HandleFunc("GET /apis/{path...}", func(w http.ResponseWriter, r *http.Request) {
		if at, ok := c.created[r.URL.Path]; ok {
			writeJSON(w, http.StatusOK, metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(at)}})
			return
		}
		http.NotFound(w, r)
	})
	mux.HandleFunc("/api/v1/namespaces/podgauge/configmaps/{name}", c.serveRetired)
	mux.HandleFunc("POST /api/v1/namespaces/podgauge/configmaps", c.serveRetired)
	mux.HandleFunc("POST /apis/authentication.k8s.io/v1/selfsubjectreviews", func(w http.ResponseWriter, _ *http.Request) {
		review := authv1.SelfSubjectReview{TypeMeta: metav1.TypeMeta{Kind: "SelfSubjectReview", APIVersion: "authentication.k8s.io/v1"}}
		review.Status.UserInfo.Username = "alice"
		writeJSON(w, http.StatusCreated, review)
	})
	server := httptest.NewServer(mux)
	c.url = server.URL
	t.Cleanup(func() {
		close(c.done)
		server.Close()
	})
	return c
}

func (c *fakeCluster) listPods(w http.ResponseWriter, r *http.Request) {
	list := corev1.PodList{TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}}
	namespace := r.PathValue("namespace")
	for _, p := range c.otherPods {
		if selector, err := labels.Parse(r.FormValue("labelSelector")); err == nil && p.Namespace == namespace && selector.Matches(labels.Set(p.Labels)) {
			list.Items = append(list.Items, p)
		}
	}
	for name, n := range c.nodes {
		if r.FormValue("labelSelector") != "app.kubernetes.io/name=podgauge" || namespace != "" && namespace != "podgauge" {
			continue
		}
		p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "podgauge-" + name, Namespace: "podgauge"}}
		p.Spec.NodeName, p.Status.Phase = name, corev1.PodRunning
		p.Spec.Containers = []corev1.Container{{Name: "sidecar"}, {Name: "podgauge", Args: []string{"--web.config.file=/etc/podgauge/web/web.yml", "--web.listen-address=:9410"}}}
		if !n.noList {
			list := &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "podgauge-retired"}}
			p.Spec.Volumes = []corev1.Volume{{Name: "dev"}, {Name: retiredVolume, VolumeSource: corev1.VolumeSource{ConfigMap: list}}}
		}
		if n.phase != "" {
			p.Status.Phase = n.phase
		}
		if n.port > 0 {
			p.Spec.Containers[1].Ports = []corev1.ContainerPort{{Name: "metrics", ContainerPort: n.port}}
		}
		list.Items = append(list.Items, p)
		if n.evicted {
			p.Name, p.Status.Phase = p.Name+"-old", corev1.PodFailed
			list.Items = append(list.Items, p)
		}
	}
	writeJSON(w, http.StatusOK, list)
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(v)
}

func (c *fakeCluster) proxy(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	c.requests = append(c.requests, r.PathValue("name")+" /"+r.PathValue("path")+"?"+r.URL.RawQuery)
	c.mu.Unlock()
	name := strings.TrimPrefix(strings.TrimPrefix(r.PathValue("name"), "https:"), "podgauge-")
	n := c.nodes[strings.TrimSuffix(strings.Split(name, ":")[0], "-old")]
	switch {
	case n.serve != nil:
		n.serve(w, r)
	case "/"+r.PathValue("path") == api.DevicesPath:
		writeJSON(w, http.StatusOK, n.devices)
	default:
		writeJSON(w, http.StatusOK, n.incidents)
	}
}

// serveRetired serves the ConfigMap of retired devices, as the API server does.
func (c *fakeCluster) serveRetired(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodPut && c.conflict != nil {
		c.conflict()
		c.conflict = nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	var sent corev1.ConfigMap
	if r.Method != http.MethodGet {
		body, _ := io.ReadAll(r.Body)
		if _, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, &sent); err != nil { // client-go sends protobuf
			c.t.Error(err)
		}
	}
	fail := func(code int32, reason metav1.StatusReason) {
		writeJSON(w, int(code), metav1.Status{
			TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Code: code, Reason: reason, Message: string(reason),
		})
	}
	switch {
	case r.Method == http.MethodPost && c.retired != nil:
		fail(http.StatusConflict, metav1.StatusReasonAlreadyExists)
		return
	case r.Method != http.MethodPost && c.retired == nil:
		fail(http.StatusNotFound, metav1.StatusReasonNotFound)
		return
	case r.Method == http.MethodPut && sent.ResourceVersion != c.retired.ResourceVersion:
		fail(http.StatusConflict, metav1.StatusReasonConflict)
		return
	case r.Method != http.MethodGet:
		c.setRetired(&sent)
	}
	writeJSON(w, http.StatusOK, c.retired)
}

// setRetired replaces the ConfigMap. mu is held.
func (c *fakeCluster) setRetired(list *corev1.ConfigMap) {
	version := 1
	if c.retired != nil {
		fmt.Sscan(c.retired.ResourceVersion, &version)
		version++
	}
	list.TypeMeta = metav1.TypeMeta{Kind: "ConfigMap", APIVersion: "v1"}
	list.Name, list.Namespace, list.ResourceVersion = "podgauge-retired", "podgauge", fmt.Sprint(version)
	c.retired = list
}

// retiredFile returns the file in the ConfigMap.
func (c *fakeCluster) retiredFile() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.retired == nil {
		return ""
	}
	return c.retired.Data[config.RetiredFile]
}

// hang never responds.
func (c *fakeCluster) hang(_ http.ResponseWriter, r *http.Request) {
	select {
	case <-r.Context().Done():
	case <-c.done:
	}
}

// unreachable is the API server's response for a pod that rejects connections.
func unreachable(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusServiceUnavailable, metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Code: http.StatusServiceUnavailable,
		Message: "error trying to reach service: dial tcp 10.0.0.3:9400: connect: connection refused", Reason: metav1.StatusReasonServiceUnavailable,
	})
}

// run runs a command line against the cluster.
func (c *fakeCluster) run(change func(*client), args ...string) (stdout, stderr string, status int) {
	c.t.Helper()
	var out, errs bytes.Buffer
	command := newClient(genericiooptions.IOStreams{In: strings.NewReader(""), Out: &out, ErrOut: &errs})
	if change != nil {
		change(command)
	}
	ctx := c.ctx
	if ctx == nil {
		ctx = c.t.Context()
	}
	status = run(ctx, command, append([]string{"--kubeconfig=" + os.DevNull, "--server=" + c.url, "--timeout=2s"}, args...))
	return out.String(), errs.String(), status
}

func newDevice(id, gpu string, index int) api.DeviceJSON {
	return api.DeviceJSON{
		ID: device.ID(id), GPU: device.GPU(gpu), Index: index, Model: "NVIDIA H100 80GB HBM3", PCI: "0000:19:00.0", MemoryBytes: 80 << 30,
		Healthy: true, Health: "healthy", AllocationState: "unallocated",
	}
}

func newOwner(namespace, pod string, current bool) api.OwnerJSON {
	return api.OwnerJSON{Owner: allocation.Owner{Namespace: namespace, Pod: pod, Container: "server"}, Current: current}
}

// newNode returns a node with two GPUs. The second GPU failed while serving/llm-0 had it.
func newNode(now time.Time) *fakeNode {
	exit := int32(139)
	fault := incident.Incident{
		ID: 2, First: now.Add(-3 * time.Minute), Last: now.Add(-3 * time.Minute), Count: 1, Device: gpu1, GPU: gpu1, Index: 1, Model: "NVIDIA H100 80GB HBM3",
		Reason: "xid_79", Xid: 79, Action: "reboot", MarkedUnhealthy: true,
		Affected: []incident.AffectedContainer{
			{
				Owner:       allocation.Owner{Namespace: "serving", Pod: "llm-0", Container: "server"},
				Termination: &incident.PodTermination{Phase: "Failed", Reason: "Error", ExitCode: &exit},
			},
			{Owner: allocation.Owner{Namespace: "serving", Pod: "llm-1", Container: "server"}},
		},
	}
	allocated, failed := newDevice(gpu0, gpu0, 0), newDevice(gpu1, gpu1, 1)
	allocated.AllocationState, allocated.Owners = "allocated", []api.OwnerJSON{newOwner("serving", "llm-1", true)}
	allocated.PastOwners = []api.OwnerJSON{newOwner("serving", "llm-0", false)}
	failed.Healthy, failed.Health, failed.Reason, failed.Action, failed.Since = false, "unhealthy", "xid_79", "reboot", fault.Last
	failed.PastOwners, failed.LastIncident = []api.OwnerJSON{newOwner("serving", "llm-0", false)}, &fault
	return &fakeNode{
		devices:   &api.DevicesResponse{At: now, Driver: api.DriverJSON{State: "up"}, Kubelet: api.KubeletJSON{Up: true}, Devices: []api.DeviceJSON{allocated, failed}},
		incidents: &api.IncidentsResponse{At: now, Persisted: true, Total: 1, Incidents: []incident.Incident{fault}},
	}
}

// healthyNode returns a node with a GPU without faults.
func healthyNode(now time.Time) *fakeNode {
	return &fakeNode{
		devices:   &api.DevicesResponse{At: now, Driver: api.DriverJSON{State: "up"}, Kubelet: api.KubeletJSON{Up: true}, Devices: []api.DeviceJSON{newDevice(mig0, mig0, 0)}},
		incidents: &api.IncidentsResponse{At: now, Persisted: true, Incidents: []incident.Incident{}},
	}
}

// newBrokenCluster returns a cluster with a fault on node-a, a healthy node-b, a hanging node-c, and a node-d without podgauge.
func newBrokenCluster(t *testing.T) *fakeCluster {
	now := time.Now()
	c := newFakeCluster(t, map[string]*fakeNode{"node-a": newNode(now), "node-b": healthyNode(now), "node-c": {}, "node-d": {serve: unreachable}})
	c.nodes["node-c"].serve = c.hang
	return c
}
