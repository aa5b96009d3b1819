package taints_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/podgauge/podgauge/internal/web/api"
	"github.com/podgauge/podgauge/kube/internal/taints"
	"github.com/podgauge/podgauge/test/bubble"
	resource "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
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
			if got := strings.TrimPrefix(cluster.report(t, reporter, gpu(1, ""), c.device), onGPU0); got != c.want {
				t.Errorf("%s: got %q, want %q", c.what, got, c.want)
			}
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
		if got := c.report(t, reporter, gpu(0, "lost")); got != onGPU0+"podgauge.io/unhealthy=lost:NoSchedule" {
			t.Errorf("got %q", got)
		}
		if after := c.list(t, "v1beta2")[0]; !after.Spec.Taint.TimeAdded.Equal(before.Spec.Taint.TimeAdded) {
			t.Errorf("time of the taint: got %v, want %v", after.Spec.Taint.TimeAdded, before.Spec.Taint.TimeAdded)
		}
		if got := c.report(t, reporter, gpu(0, "")); got != "" {
			t.Errorf("got %q", got)
		}
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
			if got := cluster.report(t, cluster.start(t.Context(), t), c.device); got != c.want {
				t.Errorf("%s: got %q, want %q", c.what, got, c.want)
			}
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
		if got := c.report(t, c.start(t.Context(), t), suspect, migDevice(0, "xid_94"), other); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
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
			if _, err := slices.Update(t.Context(), step.published.(*resource.ResourceSlice), metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			next, err := reporter.Report(t.Context(), nodeA, &api.NodeResponse{Driver: api.DriverJSON{State: "up"}, Devices: []api.DeviceJSON{gpu(0, "xid_79")}})
			if next == 0 || err != nil {
				t.Fatalf("got %v, %v", next, err)
			}
			time.Sleep(next)
			if got := c.report(t, reporter, gpu(0, "xid_79")); got != step.want {
				t.Errorf("got %q, want %q", got, step.want)
			}
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
		if _, err := c.dynamic.Resource(rulesIn("v1")).Create(t.Context(), foreign, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		const kept = onGPU0 + "example.com/a=:NoExecute"
		ctx, stop := context.WithCancel(t.Context())
		reporter := c.start(ctx, t)
		if got := c.report(t, reporter, gpu(0, "xid_79")); got != kept+", "+xid79 {
			t.Errorf("got %q", got)
		}
		if err := reporter.Forget(t.Context(), nodeA); err != nil || c.rules(t) != kept {
			t.Errorf("after Forget: got %q, %v", c.rules(t), err)
		}
		synctest.Wait()
		c.report(t, reporter, gpu(0, "xid_79"))
		stop()
		synctest.Wait()
		if err := reporter.Forget(t.Context(), nodeA); err != nil {
			t.Errorf("Forget of a stopped process: %v", err)
		}
		if err := c.client.CoreV1().Nodes().Delete(t.Context(), nodeA, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		c.start(t.Context(), t)
		if got := c.rules(t); got != kept {
			t.Errorf("after the start: got %q, want %q", got, kept)
		}
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
		if got := strings.Count(c.log.String(), "leaving out taints with the effect None"); got != 1 {
			t.Errorf("got %d warnings", got)
		}

		c.client.PrependReactor("list", "resourceslices", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, forbidden })
		time.Sleep(time.Minute)
		_, err = reporter.Report(t.Context(), nodeA, &api.NodeResponse{Driver: up, Devices: []api.DeviceJSON{gpu(0, "xid_79")}})
		if err == nil || !strings.HasPrefix(err.Error(), "list resource slices of "+nodeA) {
			t.Errorf("without slices: got %v", err)
		}
	})
}
