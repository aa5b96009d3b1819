package taints_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/web/api"
	"github.com/podgauge/podgauge/kube/internal/taints"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	resource "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	nodeA     = "node-a.example.com"
	nvidia    = "gpu.nvidia.com"
	apiGroup  = "resource.k8s.io"
	rulesName = "devicetaintrules"
)

func rulesIn(version string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: apiGroup, Version: version, Resource: rulesName}
}

// cluster is an API server with two nodes.
type cluster struct {
	client  *fake.Clientset
	dynamic *dynamicfake.FakeDynamicClient
	effects map[string]string
	log     bytes.Buffer
}

// newCluster returns a cluster whose API server has DeviceTaintRule in a version, empty: none, and objects.
func newCluster(version string, objects ...runtime.Object) *cluster {
	nodes := []runtime.Object{
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeA}}, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-b"}},
	}
	kinds := map[schema.GroupVersionResource]string{}
	for _, v := range []string{"v1", "v1beta2", "v1alpha3"} {
		kinds[rulesIn(v)] = "DeviceTaintRuleList"
	}
	c := &cluster{
		client:  fake.NewClientset(append(nodes, objects...)...),
		dynamic: dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), kinds),
	}
	c.serve(version)
	c.dynamic.PrependReactor("*", rulesName, setTimeAdded)
	return c
}

// serve changes the version of DeviceTaintRule. The lock is the fake discovery's.
func (c *cluster) serve(version string) {
	synctest.Wait()
	c.client.Lock()
	defer c.client.Unlock()
	c.client.Resources = nil
	if version != "" {
		c.client.Resources = []*metav1.APIResourceList{{
			GroupVersion: apiGroup + "/" + version, APIResources: []metav1.APIResource{{Name: rulesName}},
		}}
	}
}

// setTimeAdded sets the UID and the time of a taint, as the API server does.
func setTimeAdded(action clienttesting.Action) (bool, runtime.Object, error) {
	if create, ok := action.(clienttesting.CreateAction); ok && action.GetVerb() == "create" {
		rule := create.GetObject().(*unstructured.Unstructured)
		rule.SetUID(types.UID(rule.GetName()))
		_ = unstructured.SetNestedField(rule.Object, time.Now().UTC().Format(time.RFC3339), "spec", "taint", "timeAdded")
	}
	return false, nil, nil
}

// start runs Taints until the test or the context ends.
func (c *cluster) start(ctx context.Context, t *testing.T) *taints.Taints {
	t.Helper()
	effects, err := taints.ParseEffects(c.effects)
	if err != nil {
		t.Fatal(err)
	}
	reporter := taints.New(taints.Options{
		Client: c.client, Dynamic: c.dynamic, Effects: effects, Log: slog.New(slog.NewTextHandler(&c.log, nil)),
	})
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error)
	go func() { done <- reporter.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	time.Sleep(time.Second)
	synctest.Wait()
	return reporter
}

// report reports devices with a driver that is up, waits until the rules are known, and returns the rules.
func (c *cluster) report(t *testing.T, reporter *taints.Taints, devices ...api.DeviceJSON) string {
	t.Helper()
	return c.reportNode(t, reporter, &api.NodeResponse{Driver: api.DriverJSON{State: "up"}, Devices: devices})
}

func (c *cluster) reportNode(t *testing.T, reporter *taints.Taints, r *api.NodeResponse) string {
	t.Helper()
	if _, err := reporter.Report(t.Context(), nodeA, r); err != nil {
		t.Error(err)
	}
	synctest.Wait()
	return c.rules(t)
}

// rules returns the rules of the newest version that has any: "driver/pool/device key=value:effect".
func (c *cluster) rules(t *testing.T) string {
	t.Helper()
	rules := []string{}
	for _, version := range []string{"v1alpha3", "v1beta2", "v1"} {
		for _, rule := range c.list(t, version) {
			s, taint := rule.Spec.DeviceSelector, rule.Spec.Taint
			rules = append(rules, fmt.Sprintf("%s/%s/%s %s=%s:%s", *s.Driver, *s.Pool, *s.Device, taint.Key, taint.Value, taint.Effect))
		}
	}
	slices.Sort(rules)
	return strings.Join(rules, ", ")
}

func (c *cluster) list(t *testing.T, version string) (rules []resource.DeviceTaintRule) {
	t.Helper()
	list, err := c.dynamic.Resource(rulesIn(version)).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, item := range list.Items {
		var rule resource.DeviceTaintRule
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(item.Object, &rule); err != nil {
			t.Fatal(err)
		}
		rules = append(rules, rule)
	}
	return rules
}

// writes returns the number of requests that write rules.
func (c *cluster) writes() (n int) {
	for _, action := range c.dynamic.Actions() {
		if slices.Contains([]string{"create", "update", "patch", "delete"}, action.GetVerb()) {
			n++
		}
	}
	return n
}

// slice returns the ResourceSlice of a node's pool.
func slice(driver, node string, devices ...resource.Device) *resource.ResourceSlice {
	return &resource.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{Name: driver + node},
		Spec: resource.ResourceSliceSpec{
			Driver: driver, NodeName: &node, Pool: resource.ResourcePool{Name: node, ResourceSliceCount: 1}, Devices: devices,
		},
	}
}

// published returns a device in a ResourceSlice with attributes: "uuid=GPU-1".
func published(name string, attributes ...string) resource.Device {
	d := resource.Device{Name: name, Attributes: map[resource.QualifiedName]resource.DeviceAttribute{
		"index": {IntValue: new(int64(0))},
	}}
	for _, a := range attributes {
		key, value, _ := strings.Cut(a, "=")
		d.Attributes[resource.QualifiedName(key)] = resource.DeviceAttribute{StringValue: &value}
	}
	return d
}

// gpu returns a GPU of the daemon's response: minor number n, healthy without a reason.
func gpu(n int, reason string) api.DeviceJSON {
	id := fmt.Sprintf("GPU-%d", n)
	d := api.DeviceJSON{
		ID: device.ID(id), GPU: device.GPU(id), Minor: &n, Healthy: reason == "", Health: "healthy", Reason: reason,
	}
	if reason != "" {
		d.Health = "unhealthy"
	}
	return d
}

// migDevice returns a MIG device of GPU n in the first memory slice.
func migDevice(n int, reason string) api.DeviceJSON {
	d := gpu(n, reason)
	d.ID, d.Profile = device.ID(fmt.Sprintf("MIG-%d", n)), "1g.10gb"
	d.Placement = device.Placement{Profile: 19, Start: 0, Size: 1}
	return d
}
