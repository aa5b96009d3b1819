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
	"github.com/podgauge/podgauge/test/bubble"
	"github.com/podgauge/podgauge/test/helpers/expect"
	"github.com/podgauge/podgauge/test/helpers/require"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	resource "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

const (
	onGPU0 = "gpu.nvidia.com/node-a.example.com/gpu-0 "
	xid79  = onGPU0 + "podgauge.io/unhealthy=xid_79:NoSchedule"
)

// twoGPUs is the slice of a node with two GPUs.
func twoGPUs() runtime.Object {
	return slice(nvidia, nodeA, published("gpu-0", "uuid=GPU-0"), published("gpu-1", "uuid=GPU-1"))
}

func TestTaints(t *testing.T) {
	suspect := gpu(0, "")
	suspect.Health = "suspect"
	recovering := gpu(0, "xid_79")
	recovering.Health = "recovering"
	fallen := gpu(0, "xid_79")
	fallen.Action = "reboot"
	for _, c := range []struct {
		what    string
		device  api.DeviceJSON
		effects map[string]string
		want    string // without onGPU0
	}{
		{"healthy", gpu(0, ""), nil, ""},
		{"unhealthy", gpu(0, "xid_79"), nil, "podgauge.io/unhealthy=xid_79:NoSchedule"},
		{"recovering", recovering, nil, "podgauge.io/unhealthy=xid_79:NoSchedule"},
		{"suspect", suspect, nil, "podgauge.io/suspect=:None"},
		{"retired", gpu(0, "retired"), nil, "podgauge.io/unhealthy=retired:NoSchedule"},
		{"reason that is no value of a label", gpu(0, "-a b/é."), nil, "podgauge.io/unhealthy=a_b:NoSchedule"},
		{"hardware evicts", gpu(0, "lost"), map[string]string{"hardware": "NoExecute"}, "podgauge.io/unhealthy=lost:NoExecute"},
		{"a failing driver is no hardware", gpu(0, "driver"), map[string]string{"hardware": "NoExecute"}, "podgauge.io/unhealthy=driver:NoSchedule"},
		{"software of its own", gpu(0, "xid_13"), map[string]string{"software": "None"}, "podgauge.io/unhealthy=xid_13:None"},
		{"an action comes before the class", fallen, map[string]string{"hardware": "None", "reboot": "NoExecute"}, "podgauge.io/unhealthy=xid_79:NoExecute"},
		{"no taint", suspect, map[string]string{"suspect": "off"}, ""},
	} {
		bubble.Test(t, func(t *testing.T) {
			cluster := newCluster("v1", twoGPUs())
			cluster.effects = c.effects
			reporter := cluster.start(t.Context(), t)
			expect.Equal(t, strings.TrimPrefix(cluster.report(t, reporter, gpu(1, ""), c.device), onGPU0), c.want,
				c.what)
		})
	}
}

func TestParseEffects(t *testing.T) {
	for text, want := range map[string]string{
		"hardwear=None":     `parse effects: unknown class "hardwear": expected driver, hardware, retired, software, suspect, `,
		"suspect=none":      "parse effects: none of suspect: expected NoSchedule, NoExecute, None or off",
		"replace=NoExecute": "",
	} {
		name, effect, _ := strings.Cut(text, "=")
		effects, err := taints.ParseEffects(map[string]string{name: effect})
		switch {
		case want != "" && (err == nil || !strings.HasPrefix(err.Error(), want)):
			t.Errorf("%s: got error %v, want %s", text, err, want)
		case want == "" && (err != nil || effects[name] != resource.DeviceTaintEffect(effect)):
			t.Errorf("%s: got %v, %v", text, effects, err)
		}
	}
}

// TestRuleFollowsHealth checks a rule from the fault to the recovery. Each step
// writes only a difference.
func TestRuleFollowsHealth(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := newCluster("v1", twoGPUs())
		c.effects = map[string]string{"retired": "NoExecute"}
		reporter := c.start(t.Context(), t)
		up := api.DriverJSON{State: "up"}
		for _, step := range []struct {
			what     string
			response *api.NodeResponse
			want     string
			writes   int
		}{
			{"healthy", &api.NodeResponse{Driver: up, Devices: []api.DeviceJSON{gpu(0, "")}}, "", 0},
			{"fault", &api.NodeResponse{Driver: up, Devices: []api.DeviceJSON{gpu(0, "xid_79")}}, xid79, 1},
			{"no change", &api.NodeResponse{Driver: up, Devices: []api.DeviceJSON{gpu(0, "xid_79")}}, xid79, 0},
			{"unreachable", nil, xid79, 0},
			{"driver reloads", &api.NodeResponse{Driver: api.DriverJSON{State: "absent"}}, xid79, 0},
			{"driver starts", &api.NodeResponse{Driver: api.DriverJSON{State: "starting"}, Devices: []api.DeviceJSON{gpu(0, "")}}, xid79, 0},
			{"other reason", &api.NodeResponse{Driver: up, Devices: []api.DeviceJSON{gpu(0, "lost")}}, onGPU0 + "podgauge.io/unhealthy=lost:NoSchedule", 1},
			{"other effect", &api.NodeResponse{Driver: up, Devices: []api.DeviceJSON{gpu(0, "retired")}}, onGPU0 + "podgauge.io/unhealthy=retired:NoExecute", 1},
			{"recovered", &api.NodeResponse{Driver: up, Devices: []api.DeviceJSON{gpu(0, "")}}, "", 1},
			{"fault again", &api.NodeResponse{Driver: up, Devices: []api.DeviceJSON{gpu(0, "xid_79")}}, xid79, 1},
			{"removed from the node", &api.NodeResponse{Driver: up}, "", 1},
		} {
			before := c.writes()
			if got := c.reportNode(t, reporter, step.response); got != step.want || c.writes()-before != step.writes {
				t.Errorf("%s: got %q with %d writes, want %q with %d", step.what, got, c.writes()-before, step.want, step.writes)
			}
			time.Sleep(time.Second)
		}
		if lists := len(c.client.Actions()); lists > 10 {
			t.Errorf("requests for nodes, API versions and slices: got %d", lists)
		}
	})
}

// TestRestart checks that a new process adopts the rules, with the times of the
// taints.
func TestRestart(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := newCluster("v1beta2", twoGPUs())
		ctx, stop := context.WithCancel(t.Context())
		reporter := c.start(ctx, t)
		c.report(t, reporter, gpu(0, "xid_79"))
		before := c.list(t, "v1beta2")[0]
		if before.Spec.Taint.TimeAdded == nil || before.Labels["podgauge.io/node"] != nodeA {
			t.Errorf("got %+v", before)
		}
		stop()
		time.Sleep(time.Minute)
		if next, err := reporter.Report(t.Context(), nodeA, &api.NodeResponse{}); next == 0 || err != nil {
			t.Errorf("report of a stopped process: got %v, %v", next, err)
		}
		writes := c.writes()
		reporter = c.start(t.Context(), t)
		if got := c.report(t, reporter, gpu(0, "xid_79")); got != xid79 || c.writes() != writes {
			t.Errorf("got %q with %d writes", got, c.writes()-writes)
		}
		expect.Equal(t, c.report(t, reporter, gpu(0, "lost")), onGPU0+"podgauge.io/unhealthy=lost:NoSchedule")
		if after := c.list(t, "v1beta2")[0]; !after.Spec.Taint.TimeAdded.Equal(before.Spec.Taint.TimeAdded) {
			t.Errorf("time of the taint: got %v, want %v", after.Spec.Taint.TimeAdded, before.Spec.Taint.TimeAdded)
		}
		expect.Equal(t, c.report(t, reporter, gpu(0, "")), "")
	})
}

func TestPublishedDevices(t *testing.T) {
	const taint = " podgauge.io/unhealthy=lost:NoSchedule"
	gone := gpu(0, "lost")
	gone.Gone = true
	for _, c := range []struct {
		what   string
		slice  runtime.Object
		device api.DeviceJSON
		want   string
	}{
		{"UUID, not the name", slice(nvidia, nodeA, published("gpu-1", "uuid=GPU-0"), published("gpu-0", "uuid=GPU-1")), gpu(0, "lost"), "gpu.nvidia.com/node-a.example.com/gpu-1" + taint},
		{"UUID in the driver's domain", slice("gpu.example.com", nodeA, published("a", "gpu.example.com/uuid=GPU-0")), gpu(0, "lost"), "gpu.example.com/node-a.example.com/a" + taint},
		{"name", slice(nvidia, nodeA, published("gpu-0"), published("gpu-1")), gpu(0, "lost"), "gpu.nvidia.com/node-a.example.com/gpu-0" + taint},
		{"name of a GPU that is gone", slice(nvidia, nodeA, published("gpu-0")), gone, "gpu.nvidia.com/node-a.example.com/gpu-0" + taint},
		{"name of another driver", slice("gpu.example.com", nodeA, published("gpu-0")), gpu(0, "lost"), ""},
		{"other node", slice(nvidia, "node-b", published("gpu-0", "uuid=GPU-0")), gpu(0, "lost"), ""},
		{"MIG device", slice(nvidia, nodeA, published("gpu-0-mig-1g10gb-19-0", "uuid=MIG-0", "parentUUID=GPU-0"), published("gpu-0-mig-1g10gb-19-1", "uuid=MIG-9", "parentUUID=GPU-0")), migDevice(0, "lost"), "gpu.nvidia.com/node-a.example.com/gpu-0-mig-1g10gb-19-0" + taint},
		{"possible MIG device", slice(nvidia, nodeA, published("gpu-0", "uuid=GPU-0"), published("gpu-0-mig-1g10gb-19-0", "parentUUID=GPU-0"), published("gpu-0-mig-1g10gb-19-1", "parentUUID=GPU-0")), migDevice(0, "lost"), "gpu.nvidia.com/node-a.example.com/gpu-0-mig-1g10gb-19-0" + taint},
		{"GPU with its MIG devices", slice(nvidia, nodeA, published("gpu-0", "uuid=GPU-0"), published("gpu-0-mig-1g10gb-19-0", "parentUUID=GPU-0")), gpu(0, "lost"), "gpu.nvidia.com/node-a.example.com/gpu-0" + taint + ", gpu.nvidia.com/node-a.example.com/gpu-0-mig-1g10gb-19-0" + taint},
	} {
		bubble.Test(t, func(t *testing.T) {
			cluster := newCluster("v1", c.slice)
			cluster.client.PrependReactor("list", "resourceslices", selectNode(c.slice))
			expect.Equal(t, cluster.report(t, cluster.start(t.Context(), t), c.device), c.want, c.what)
		})
	}
}

// selectNode answers lists with the slice if the field selector matches, which the fake API server ignores.
func selectNode(s runtime.Object) clienttesting.ReactionFunc {
	return func(action clienttesting.Action) (bool, runtime.Object, error) {
		list := &resource.ResourceSliceList{}
		fields := action.(clienttesting.ListAction).GetListRestrictions().Fields
		if slice := s.(*resource.ResourceSlice); fields.String() == "spec.nodeName="+*slice.Spec.NodeName {
			list.Items = append(list.Items, *slice)
		}
		return true, list, nil
	}
}

// TestMIGDeviceOfGPU checks that a MIG device has its own taint, which includes
// the GPU's.
func TestMIGDeviceOfGPU(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := newCluster("v1", slice(nvidia, nodeA, published("mig", "uuid=MIG-0", "parentUUID=GPU-0"), published("other", "uuid=MIG-1", "parentUUID=GPU-0")))
		suspect := gpu(0, "")
		suspect.Health = "suspect"
		other := suspect
		other.ID = "MIG-1"
		want := "gpu.nvidia.com/node-a.example.com/mig podgauge.io/unhealthy=xid_94:NoSchedule, gpu.nvidia.com/node-a.example.com/other podgauge.io/suspect=:None"
		expect.Equal(t, c.report(t, c.start(t.Context(), t), suspect, migDevice(0, "xid_94"), other), want)
	})
}

// TestDriverPublishesAgain checks that a rule stays while a DRA driver has
// withdrawn its devices, and follows their names.
func TestDriverPublishesAgain(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := newCluster("v1", twoGPUs())
		reporter := c.start(t.Context(), t)
		c.report(t, reporter, gpu(0, "xid_79"))
		slices := c.client.ResourceV1().ResourceSlices()
		for _, step := range []struct {
			published runtime.Object
			want      string
		}{
			{slice(nvidia, nodeA), xid79},
			{slice(nvidia, nodeA, published("gpu-7", "uuid=GPU-0")), strings.Replace(xid79, "gpu-0", "gpu-7", 1)},
			{twoGPUs(), xid79},
		} {
			_, err := slices.Update(t.Context(), step.published.(*resource.ResourceSlice), metav1.UpdateOptions{})
			require.NoError(t, err)
			next, err := reporter.Report(t.Context(), nodeA, &api.NodeResponse{Driver: api.DriverJSON{State: "up"}, Devices: []api.DeviceJSON{gpu(0, "xid_79")}})
			if next == 0 || err != nil {
				t.Fatalf("got %v, %v", next, err)
			}
			time.Sleep(next)
			expect.Equal(t, c.report(t, reporter, gpu(0, "xid_79")), step.want)
		}
	})
}

// TestNodeIsGone checks that rules end with their node, also while no process
// ran, and that rules of others stay.
func TestNodeIsGone(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := newCluster("v1", twoGPUs())
		foreign := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": apiGroup + "/v1", "kind": "DeviceTaintRule",
			"metadata": map[string]any{"name": "foreign", "annotations": map[string]any{"podgauge.io/node": nodeA}},
			"spec": map[string]any{
				"deviceSelector": map[string]any{"driver": nvidia, "pool": nodeA, "device": "gpu-0"},
				"taint":          map[string]any{"key": "example.com/a", "effect": "NoExecute"},
			},
		}}
		_, err := c.dynamic.Resource(rulesIn("v1")).Create(t.Context(), foreign, metav1.CreateOptions{})
		require.NoError(t, err)
		const kept = onGPU0 + "example.com/a=:NoExecute"
		ctx, stop := context.WithCancel(t.Context())
		reporter := c.start(ctx, t)
		expect.Equal(t, c.report(t, reporter, gpu(0, "xid_79")), kept+", "+xid79)
		if err := reporter.Forget(t.Context(), nodeA); err != nil || c.rules(t) != kept {
			t.Errorf("after Forget: got %q, %v", c.rules(t), err)
		}
		synctest.Wait()
		c.report(t, reporter, gpu(0, "xid_79"))
		stop()
		synctest.Wait()
		expect.NoError(t, reporter.Forget(t.Context(), nodeA), "Forget of a stopped process")
		require.NoError(t, c.client.CoreV1().Nodes().Delete(t.Context(), nodeA, metav1.DeleteOptions{}))
		c.start(t.Context(), t)
		expect.Equal(t, c.rules(t), kept, "after the start")
	})
}

// TestVersions checks the version of the rules: the newest, and none until the
// API server has one.
func TestVersions(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := newCluster("", twoGPUs())
		reporter := c.start(t.Context(), t)
		if got := c.report(t, reporter, gpu(0, "xid_79")); got != "" || strings.Count(c.log.String(), "the API server has no DeviceTaintRule") != 1 {
			t.Errorf("without the API: got %q, %s", got, &c.log)
		}
		for _, version := range []string{"v1alpha3", "v1beta2", "v1"} {
			c.serve(version)
			time.Sleep(10 * time.Minute)
			if got := c.report(t, reporter, gpu(0, "xid_79")); !strings.HasSuffix(got, xid79) || len(c.list(t, version)) != 1 {
				t.Errorf("%s: got %q", version, got)
			}
		}
		if got := strings.Count(c.log.String(), "level=WARN"); got != 1 {
			t.Errorf("got %d warnings: %s", got, &c.log)
		}
	})
}

// TestRejected checks requests that the API server rejects.
func TestRejected(t *testing.T) {
	gvk := schema.GroupKind{Group: apiGroup, Kind: "DeviceTaintRule"}
	suspect := gpu(0, "")
	suspect.Health = "suspect"
	forbidden := apierrors.NewForbidden(schema.GroupResource{Group: apiGroup, Resource: rulesName}, "", nil)
	bubble.Test(t, func(t *testing.T) {
		c := newCluster("v1alpha3", twoGPUs())
		var reject error
		c.dynamic.PrependReactor("*", rulesName, func(action clienttesting.Action) (bool, runtime.Object, error) {
			create, ok := action.(clienttesting.CreateAction)
			if !ok || reject == nil {
				return false, nil, nil
			}
			effect, _, _ := unstructured.NestedString(create.GetObject().(*unstructured.Unstructured).Object, "spec", "taint", "effect")
			return apierrors.IsForbidden(reject) || effect == "None", nil, reject
		})
		reporter := c.start(t.Context(), t)
		up := api.DriverJSON{State: "up"}

		reject = forbidden
		_, err := reporter.Report(t.Context(), nodeA, &api.NodeResponse{Driver: up, Devices: []api.DeviceJSON{gpu(0, "xid_79")}})
		if !apierrors.IsForbidden(err) || !strings.HasPrefix(err.Error(), "write device taint rule podgauge-") {
			t.Errorf("without permission: got %v", err)
		}

		reject = apierrors.NewInvalid(gvk, "", nil)
		for range 3 {
			if got := c.report(t, reporter, suspect, gpu(1, "lost")); got != "gpu.nvidia.com/node-a.example.com/gpu-1 podgauge.io/unhealthy=lost:NoSchedule" {
				t.Errorf("without the effect None: got %q", got)
			}
		}
		expect.Equal(t, strings.Count(c.log.String(), "leaving out taints with the effect None"), 1, "warnings")

		c.client.PrependReactor("list", "resourceslices", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, forbidden })
		time.Sleep(time.Minute)
		_, err = reporter.Report(t.Context(), nodeA, &api.NodeResponse{Driver: up, Devices: []api.DeviceJSON{gpu(0, "xid_79")}})
		if err == nil || !strings.HasPrefix(err.Error(), "list resource slices of "+nodeA) {
			t.Errorf("without slices: got %v", err)
		}
	})
}

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
	require.NoError(t, err)
	reporter := taints.New(taints.Options{
		Client: c.client, Dynamic: c.dynamic, Effects: effects, Log: slog.New(slog.NewTextHandler(&c.log, nil)),
	})
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error)
	go func() { done <- reporter.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		expect.NoError(t, <-done)
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
	require.NoError(t, err)
	for _, item := range list.Items {
		var rule resource.DeviceTaintRule
		require.NoError(t, runtime.DefaultUnstructuredConverter.FromUnstructured(item.Object, &rule))
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
