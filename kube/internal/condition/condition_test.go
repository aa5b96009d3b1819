package condition_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/web/api"
	"github.com/podgauge/podgauge/kube/internal/condition"
	"github.com/podgauge/podgauge/test/bubble"
	"github.com/podgauge/podgauge/test/helpers/expect"
	"github.com/podgauge/podgauge/test/helpers/require"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	gpu    = "GPU-0000"
	fallen = "GPU 3 (GPU-0000): Xid 79, GPU has fallen off the bus. Reboot the node."
)

// newClient returns an API server with node-a, whose patches are limited to nodes/status.
func newClient(t *testing.T, conditions ...corev1.NodeCondition) *fake.Clientset {
	c := fake.NewClientset(&corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "node-a"},
		Status: corev1.NodeStatus{
			Conditions: append([]corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}, conditions...),
		},
	})
	c.PrependReactor("*", "*", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if !a.Matches("patch", "nodes/status") {
			t.Errorf("got request %v", a)
		}
		return false, nil, nil
	})
	return c
}

// conditions returns the conditions of node-a by type.
func conditions(t *testing.T, c *fake.Clientset) map[corev1.NodeConditionType]corev1.NodeCondition {
	t.Helper()
	object, err := c.Tracker().Get(corev1.SchemeGroupVersion.WithResource("nodes"), "", "node-a")
	require.NoError(t, err)
	byType := map[corev1.NodeConditionType]corev1.NodeCondition{}
	for _, c := range object.(*corev1.Node).Status.Conditions {
		byType[c.Type] = c
	}
	if byType[corev1.NodeReady].Status != corev1.ConditionTrue {
		t.Error("the condition of the kubelet changed")
	}
	return byType
}

func kinds(t *testing.T, preset string) []condition.Kind {
	t.Helper()
	k, err := condition.Settings{Preset: preset}.Kinds()
	require.NoError(t, err)
	return k
}

func report(t *testing.T, r *condition.Reporter, response *api.NodeResponse) time.Duration {
	t.Helper()
	next, err := r.Report(t.Context(), "node-a", response)
	require.NoError(t, err)
	return next
}

func response(devices ...api.DeviceJSON) *api.NodeResponse {
	return &api.NodeResponse{Driver: api.DriverJSON{State: "up"}, Devices: devices}
}

func healthy() api.DeviceJSON { return api.DeviceJSON{ID: gpu, GPU: gpu, Index: 3, Healthy: true} }

func unhealthy(reason, action string) api.DeviceJSON {
	return api.DeviceJSON{ID: gpu, GPU: gpu, Index: 3, Reason: reason, Action: action}
}

func mig(id, reason string) api.DeviceJSON {
	return api.DeviceJSON{ID: device.ID(id), GPU: gpu, Index: 3, Profile: "1g.10gb", Reason: reason, Action: "reboot"}
}

// TestPresets checks status, reason and message of each preset's conditions.
func TestPresets(t *testing.T) {
	missing := response(healthy())
	missing.MissingGPUs, missing.ExpectedGPUs = 2, 3
	absent := response()
	absent.Driver.State, absent.MissingGPUs, absent.ExpectedGPUs = "absent", 3, 3
	retired := unhealthy("retired", "")
	retired.Note = "fan is loud"
	gone := unhealthy("gone", "")
	gone.Gone = true
	var many []api.DeviceJSON
	for range 10 {
		many = append(many, unhealthy("lost", ""))
	}
	const (
		noXid, noNVLink = "XIDErrors False NoXIDErrors No GPU is unhealthy because of an Xid.",
			"NVLinkStatusInactive False NoNVLinkStatusInactive No GPU is unhealthy because of NVLink."
		present = "GPUMissing False NoGPUMissing All GPUs are present"
		lost    = "GPU 3 (GPU-0000): The GPU is lost and all calls to it fail."
		fabric  = "GPU 3 (GPU-0000): The GPU failed to join the NVSwitch fabric."
	)
	for name, c := range map[string]struct {
		response       *api.NodeResponse
		podgauge, eks  string
		gpus, nvl, xid string // aks
	}{
		"healthy": {
			response(healthy()), "False GPUsHealthy 1 GPU healthy.", "True NvidiaGPUIsReady No GPU has a fault.", present, noNVLink, noXid,
		},
		"no GPU": {
			response(), "False GPUsHealthy 0 GPUs healthy.", "True NvidiaGPUIsReady No GPU has a fault.", present, noNVLink, noXid,
		},
		"xid": {
			response(unhealthy("xid_79", "reboot"), mig("MIG-1", "xid_79"), mig("MIG-2", "not_responding")),
			"True GPUsUnhealthy " + fallen + " MIG device 1g.10gb (MIG-2) of GPU 3: A call to the GPU hangs. Reboot the node.",
			"False NvidiaXID79Error " + fallen + " MIG device 1g.10gb (MIG-2) of GPU 3: A call to the GPU hangs. Reboot the node.",
			present, noNVLink, "XIDErrors True XIDErrors " + fallen,
		},
		"missing": {
			missing, "True GPUsUnhealthy 2 of 3 expected GPUs missing.",
			"False NvidiaDeviceCountMismatch 2 of 3 expected GPUs missing.",
			"GPUMissing True GPUMissing 2 of 3 expected GPUs missing.", noNVLink, noXid,
		},
		"many": {
			response(many...), "True GPUsUnhealthy " + strings.Repeat(lost+" ", 8) + "2 more.",
			"False NvidiaDeviceCountMismatch " + strings.Repeat(lost+" ", 8) + "2 more.",
			"GPUMissing True GPUMissing " + strings.Repeat(lost+" ", 8) + "2 more.", noNVLink, noXid,
		},
		"fabric": {
			response(unhealthy("fabric", "")), "True GPUsUnhealthy " + fabric, "False NvidiaFabricError " + fabric,
			present, "NVLinkStatusInactive True NVLinkStatusInactive " + fabric, noXid,
		},
		"NVLink": {
			response(unhealthy("xid_74", "")), "True GPUsUnhealthy GPU 3 (GPU-0000): Xid 74, NVLink error.",
			"False NvidiaXID74Error GPU 3 (GPU-0000): Xid 74, NVLink error.", present,
			"NVLinkStatusInactive True NVLinkStatusInactive GPU 3 (GPU-0000): Xid 74, NVLink error.",
			"XIDErrors True XIDErrors GPU 3 (GPU-0000): Xid 74, NVLink error.",
		},
		"gone": {
			response(gone), "True GPUsUnhealthy GPU 3 (GPU-0000): The device is gone.",
			"False NvidiaDeviceCountMismatch GPU 3 (GPU-0000): The device is gone.",
			"GPUMissing True GPUMissing GPU 3 (GPU-0000): The device is gone.", noNVLink, noXid,
		},
		"MIG device gone": {
			response(healthy(), mig("MIG-1", "gone")),
			"True GPUsUnhealthy MIG device 1g.10gb (MIG-1) of GPU 3: The device is gone. Reboot the node.",
			"False GPUsUnhealthy MIG device 1g.10gb (MIG-1) of GPU 3: The device is gone. Reboot the node.",
			present, noNVLink, noXid,
		},
		"retired": {
			response(retired), "True GPUsUnhealthy GPU 3 (GPU-0000): Retired by an operator. fan is loud",
			"True NvidiaGPUIsReady No GPU has a fault.", present, noNVLink, noXid,
		},
		"no driver": {
			absent, "Unknown DriverNotReady The driver is not ready.", "Unknown DriverNotReady The driver is not ready.",
			"GPUMissing Unknown DriverNotReady The driver is not ready.",
			"NVLinkStatusInactive Unknown DriverNotReady The driver is not ready.",
			"XIDErrors Unknown DriverNotReady The driver is not ready.",
		},
	} {
		want := map[string][]string{
			"podgauge": {"GPUUnhealthy " + c.podgauge}, "eks": {"AcceleratedHardwareReady " + c.eks}, "aks": {c.gpus, c.nvl, c.xid},
		}
		for preset, lines := range want {
			client := newClient(t)
			report(t, condition.New(client, kinds(t, preset)), c.response)
			got := conditions(t, client)
			if len(got) != 1+len(lines) {
				t.Errorf("%s, %s: got conditions %v", name, preset, got)
			}
			for _, want := range lines {
				typ, want, _ := strings.Cut(want, " ")
				k := got[corev1.NodeConditionType(typ)]
				expect.Equal(t, string(k.Status)+" "+k.Reason+" "+k.Message, want, name, typ)
				if k.LastTransitionTime.IsZero() || k.LastHeartbeatTime.IsZero() {
					t.Errorf("%s, %s: got no time: %v", name, typ, k)
				}
			}
		}
	}
}

// TestTransitions checks the times of a condition: over a restart, in silence, at a change and while it flaps.
func TestTransitions(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		begin := time.Now()
		before := metav1.NewTime(begin.Add(-time.Hour))
		client := newClient(t, corev1.NodeCondition{
			Type: "GPUUnhealthy", Status: corev1.ConditionFalse, Reason: "GPUsHealthy", Message: "1 GPU healthy.",
			LastHeartbeatTime: metav1.NewTime(begin.Add(-4 * time.Minute)), LastTransitionTime: before,
		})
		r := condition.New(client, kinds(t, "podgauge"))
		check := func(status corev1.ConditionStatus, heartbeat, transition time.Time, patches int) {
			t.Helper()
			c := conditions(t, client)["GPUUnhealthy"]
			if c.Status != status || !c.LastHeartbeatTime.Time.Equal(heartbeat) || !c.LastTransitionTime.Time.Equal(transition) {
				t.Errorf("got %v, want %s, heartbeat %s, transition %s", c, status, heartbeat, transition)
			}
			expect.Equal(t, len(client.Actions()), patches, "requests")
		}
		if next := report(t, r, response(healthy())); next != time.Minute {
			t.Errorf("got %s to the next heartbeat of an earlier process", next)
		}
		check("False", begin.Add(-4*time.Minute), before.Time, 1)
		time.Sleep(time.Minute)
		expect.Equal(t, report(t, r, response(healthy())), 5*time.Minute, "to the next heartbeat")
		check("False", begin.Add(time.Minute), before.Time, 2)

		time.Sleep(time.Minute)
		report(t, r, response(unhealthy("xid_79", "reboot")))
		failed := begin.Add(2 * time.Minute)
		check("True", failed, failed, 3)
		time.Sleep(time.Second)
		expect.Equal(t, report(t, r, response(healthy())), time.Second, "after a second change")
		check("True", failed, failed, 3)
		time.Sleep(time.Second)
		report(t, r, response(unhealthy("lost", ""))) // another reason is no transition
		check("True", failed.Add(2*time.Second), failed, 4)
		time.Sleep(2 * time.Second)

		r = condition.New(client, kinds(t, "podgauge"))
		starting := response()
		starting.Driver.State = "starting"
		report(t, r, starting)
		report(t, r, response(unhealthy("lost", "")))
		check("True", failed.Add(2*time.Second), failed, 5) // a restart changes nothing
	})
}

// TestFailedUpdate checks that a failed request is an error, and the next call sends the condition.
func TestFailedUpdate(t *testing.T) {
	client := newClient(t)
	var failures int
	client.PrependReactor("patch", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
		failures++
		return failures == 1 || failures == 3, nil, errors.New("connection reset")
	})
	r := condition.New(client, kinds(t, "eks"))
	for range 2 {
		if _, err := r.Report(t.Context(), "node-a", response(healthy())); err == nil {
			t.Error("got no error")
		}
	}
	report(t, r, response(healthy()))
	if c := conditions(t, client)["AcceleratedHardwareReady"]; c.Status != corev1.ConditionTrue {
		t.Errorf("got %v", c)
	}
	expect.NoError(t, r.Forget(context.Background(), "node-a"))
}

// TestSettings checks the flags that change a preset.
func TestSettings(t *testing.T) {
	s := condition.Settings{
		Preset: "podgauge", Type: "example.com/GPUReady", HealthyStatus: "True",
		Reasons: map[string]string{"ready": "OK", "unhealthy": "Bad", "unknown": "NoDriver"},
	}
	all, err := s.Kinds()
	require.NoError(t, err)
	absent := response()
	absent.Driver.State = "absent"
	for want, response := range map[string]*api.NodeResponse{
		"True OK": response(healthy()), "False Bad": response(unhealthy("xid_79", "")), "Unknown NoDriver": absent,
	} {
		client := newClient(t)
		report(t, condition.New(client, all), response)
		c := conditions(t, client)["example.com/GPUReady"]
		expect.Equal(t, string(c.Status)+" "+c.Reason, want)
	}
	for want, s := range map[string]condition.Settings{
		`--node-condition "gke": expected podgauge, eks or aks`:                                {Preset: "gke"},
		`--node-condition "": expected podgauge, eks or aks`:                                   {Type: "X"},
		`--node-condition "aks": type, status and reasons of several conditions cannot be set`: {Preset: "aks", Type: "X"},
		`--node-condition.healthy-status "Unknown": expected True or False`:                    {Preset: "eks", HealthyStatus: "Unknown"},
		`--node-condition.reasons "bad": expected ready, unhealthy or unknown`:                 {Preset: "eks", Reasons: map[string]string{"bad": "X"}},
	} {
		if _, err := s.Kinds(); err == nil || err.Error() != want {
			t.Errorf("%+v: got %v, want %s", s, err, want)
		}
	}
	if none, err := (condition.Settings{}).Kinds(); err != nil || none != nil {
		t.Errorf("without settings: got %v, %v", none, err)
	}
}
