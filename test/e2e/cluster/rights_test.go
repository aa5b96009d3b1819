//go:build cluster

package cluster_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	core "k8s.io/api/core/v1"
	resource "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/podgauge/podgauge/test/e2e/node"
)

// onlySidecarToken checks the files of the containers of podgauge's pod: only the sidecar has a token, and no folder of the node.
func onlySidecarToken(t *testing.T, s *clusterFixture) {
	p, err := s.podgaugePod(t.Context())
	must(t, err)
	for _, c := range []struct {
		container string
		has       string // names in the folder of the token, and of the kubelet
	}{{"podgauge", "device-plugins pod-resources pods-api"}, {"podgauge-kube", "ca.crt namespace token"}} {
		one := p
		one.Status.ContainerStatuses = nil
		for _, status := range p.Status.ContainerStatuses {
			if status.Name == c.container {
				one.Status.ContainerStatuses = append(one.Status.ContainerStatuses, status)
			}
		}
		if len(one.Status.ContainerStatuses) != 1 {
			t.Fatalf("the pod has no container %s: %+v", c.container, p)
		}
		out := s.shell(t, one, `cd "/proc/${PIDS%% *}/root"; ls var/run/secrets/kubernetes.io/serviceaccount var/lib/kubelet 2>/dev/null | grep -v : || true`)
		if got := strings.Join(strings.Fields(out), " "); got != c.has {
			t.Errorf("files of %s: got %q, want %q", c.container, got, c.has)
		}
	}
}

// foreignObjects are objects of others: an event and a rule that the controller must not change.
const foreignObjects = `
apiVersion: v1
kind: Event
metadata: {name: foreign, namespace: default}
involvedObject: {apiVersion: v1, kind: Node, name: node}
reason: Foreign
source: {component: kubelet}
---
apiVersion: resource.k8s.io/v1
kind: DeviceTaintRule
metadata: {name: foreign}
spec:
  deviceSelector: {driver: foreign.example.com}
  taint: {key: example.com/drain, effect: NoSchedule}
`

// request is a request to the API server.
type request struct {
	name string
	do   func(ctx context.Context, c *kubernetes.Clientset) error
	want string // part of the message of the refusal; empty: accepted
}

// refusedRequests checks the rights of the controller's and the sidecar's tokens: RBAC refuses kinds and verbs, the admission policies refuse
// objects and fields.
func refusedRequests(t *testing.T, s *clusterFixture) {
	s.apply(t, foreignObjects)
	for account, requests := range map[string][]request{releaseName + "-kube": controllerRequests(), releaseName: sidecarRequests()} {
		c := s.clientOf(t, account)
		for _, r := range requests {
			err := r.do(t.Context(), c)
			switch {
			case r.want == "" && err != nil:
				t.Errorf("%s: %s: %v", account, r.name, err)
			case r.want == "":
			case !errors.IsForbidden(err) && !errors.IsInvalid(err) || !strings.Contains(err.Error(), r.want):
				t.Errorf("%s: %s: got %v, want a refusal with %q", account, r.name, err, r.want)
			}
		}
	}
	s.kubectl(t, "delete", "event/foreign", "devicetaintrule/foreign", "--namespace=default")
}

// clientOf returns a client with a token of a service account of the release.
func (s *clusterFixture) clientOf(t *testing.T, account string) *kubernetes.Clientset {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", s.Kubeconfig)
	must(t, err)
	config.BearerToken = strings.TrimSpace(s.kubectl(t, "create", "token", account, "--namespace="+releaseNamespace))
	c, err := kubernetes.NewForConfig(config)
	must(t, err)
	return c
}

func controllerRequests() []request {
	const policy = "podgauge-kube may write "
	ownRule := map[string]string{"app.kubernetes.io/managed-by": "podgauge-kube"}
	return []request{
		{"set a label by the node's status", patchStatus(`{"metadata": {"labels": {"a": "b"}}}`), policy + "no labels"},
		{"set an annotation by the node's status", patchStatus(`{"metadata": {"annotations": {"a": "b"}}}`), policy + "no labels"},
		{"change the node's condition Ready", patchStatus(`{"status": {"conditions": [{"type": "Ready", "status": "False"}]}}`), policy + "only conditions of the types GPUUnhealthy"},
		{"add a condition", patchStatus(`{"status": {"conditions": [{"type": "Other", "status": "False"}]}}`), policy + "only conditions of the types GPUUnhealthy"},
		{"change the node's capacity", patchStatus(`{"status": {"capacity": {"nvidia.com/gpu": "99"}}}`), policy + "no other field of the status"},
		{"add a resource", patchStatus(`{"status": {"capacity": {"example.com/a": "1"}}}`), policy + "no other field of the status"},
		{"patch the node", patchNode(`{"spec": {"unschedulable": true}}`), `cannot patch resource "nodes"`},
		{"an empty patch of the node's status", patchStatus(`{}`), ""},

		{"create an event of the kubelet", createEvent("a", "kubelet", "Node"), policy + "only events of the component podgauge"},
		{"create an event of a Secret", createEvent("b", "podgauge", "Secret"), policy + "only events of pods and nodes"},
		{"change an event of the kubelet", func(ctx context.Context, c *kubernetes.Clientset) error {
			_, err := c.CoreV1().Events("default").Patch(ctx, "foreign", types.MergePatchType, []byte(`{"count": 2}`), meta.PatchOptions{})
			return err
		}, policy + "only events of the component podgauge"},
		{"create an event of podgauge", createEvent("own", "podgauge", "Node"), ""},

		{"create a rule without label", createRule("a", nil), policy + "only rules with the label"},
		{"change a rule of others", func(ctx context.Context, c *kubernetes.Clientset) error {
			rules := c.ResourceV1().DeviceTaintRules()
			list, err := rules.List(ctx, meta.ListOptions{FieldSelector: "metadata.name=foreign"})
			if err != nil || len(list.Items) != 1 {
				return fmt.Errorf("list rules: got %d, want 1: %w", len(list.Items), err)
			}
			list.Items[0].Labels = ownRule
			_, err = rules.Update(ctx, &list.Items[0], meta.UpdateOptions{})
			return err
		}, policy + "only rules with the label"},
		{"delete a rule of others", deleteRule("foreign"), policy + "only rules with the label"},
		{"delete all rules", func(ctx context.Context, c *kubernetes.Clientset) error {
			return c.ResourceV1().DeviceTaintRules().DeleteCollection(ctx, meta.DeleteOptions{}, meta.ListOptions{})
		}, `cannot deletecollection resource "devicetaintrules"`},
		{"create a rule of all devices of a driver", createRule("wide", ownRule, func(s *resource.DeviceTaintRuleSpec) { s.DeviceSelector.Device = nil }), policy + "only rules of a single device"},
		{"create a rule of another node", createRule("other", ownRule, func(s *resource.DeviceTaintRuleSpec) { s.DeviceSelector.Pool = new("other") }), policy + "only rules of a single device in a pool of its node"},
		{"create a foreign taint", createRule("foreign", ownRule, func(s *resource.DeviceTaintRuleSpec) { s.Taint.Key = "example.com/a" }), policy + "only podgauge's taints"},
		{"create a rule of podgauge-kube", createRule("own", ownRule), ""},
		{"delete a rule of podgauge-kube", deleteRule("own"), ""},

		{"delete a pod", deletePod, `cannot delete resource "pods"`},
		{"list Secrets", listSecrets, `cannot list resource "secrets"`},
		{"change the lease of another component", func(ctx context.Context, c *kubernetes.Clientset) error {
			_, err := c.CoordinationV1().Leases("kube-node-lease").Patch(ctx, node.Name, types.MergePatchType, []byte(`{}`), meta.PatchOptions{})
			return err
		}, `cannot patch resource "leases"`},
	}
}

func sidecarRequests() []request {
	return []request{
		{"list pods", func(ctx context.Context, c *kubernetes.Clientset) error {
			_, err := c.CoreV1().Pods("").List(ctx, meta.ListOptions{})
			return err
		}, ""},
		{"change the node's condition", patchStatus(`{"status": {"conditions": [{"type": "GPUUnhealthy", "status": "True"}]}}`), `cannot patch resource "nodes/status"`},
		{"patch the node", patchNode(`{"metadata": {"labels": {"a": "b"}}}`), `cannot patch resource "nodes"`},
		{"create an event", createEvent("c", "podgauge", "Node"), `cannot create resource "events"`},
		{"create a rule", createRule("b", nil), `cannot create resource "devicetaintrules"`},
		{"delete a pod", deletePod, `cannot delete resource "pods"`},
		{"list Secrets", listSecrets, `cannot list resource "secrets"`},
	}
}

func patchStatus(body string) func(context.Context, *kubernetes.Clientset) error {
	return func(ctx context.Context, c *kubernetes.Clientset) error {
		_, err := c.CoreV1().Nodes().Patch(ctx, node.Name, types.StrategicMergePatchType, []byte(body), meta.PatchOptions{}, "status")
		return err
	}
}

func patchNode(body string) func(context.Context, *kubernetes.Clientset) error {
	return func(ctx context.Context, c *kubernetes.Clientset) error {
		_, err := c.CoreV1().Nodes().Patch(ctx, node.Name, types.StrategicMergePatchType, []byte(body), meta.PatchOptions{})
		return err
	}
}

func createEvent(name, component, kind string) func(context.Context, *kubernetes.Clientset) error {
	return func(ctx context.Context, c *kubernetes.Clientset) error {
		_, err := c.CoreV1().Events("default").Create(ctx, &core.Event{
			ObjectMeta:     meta.ObjectMeta{Name: "rights-" + name},
			InvolvedObject: core.ObjectReference{APIVersion: "v1", Kind: kind, Name: "any"}, Source: core.EventSource{Component: component}, Reason: "Rights",
		}, meta.CreateOptions{})
		return err
	}
}

// createRule creates a rule as podgauge-kube does, but for the labels and a change.
func createRule(name string, labels map[string]string, change ...func(*resource.DeviceTaintRuleSpec)) func(context.Context, *kubernetes.Clientset) error {
	return func(ctx context.Context, c *kubernetes.Clientset) error {
		rule := &resource.DeviceTaintRule{
			ObjectMeta: meta.ObjectMeta{Name: "rights-" + name, Labels: labels, Annotations: map[string]string{"podgauge.io/node": node.Name}},
			Spec: resource.DeviceTaintRuleSpec{
				DeviceSelector: &resource.DeviceTaintSelector{Driver: new("rights.example.com"), Pool: new(node.Name), Device: new("gpu-0")},
				Taint:          resource.DeviceTaint{Key: "podgauge.io/unhealthy", Effect: resource.DeviceTaintEffectNoSchedule},
			},
		}
		for _, c := range change {
			c(&rule.Spec)
		}
		_, err := c.ResourceV1().DeviceTaintRules().Create(ctx, rule, meta.CreateOptions{})
		return err
	}
}

// deleteRule deletes a rule of createRule, or the foreign one.
func deleteRule(name string) func(context.Context, *kubernetes.Clientset) error {
	if name != "foreign" {
		name = "rights-" + name
	}
	return func(ctx context.Context, c *kubernetes.Clientset) error {
		return c.ResourceV1().DeviceTaintRules().Delete(ctx, name, meta.DeleteOptions{})
	}
}

func deletePod(ctx context.Context, c *kubernetes.Clientset) error {
	return c.CoreV1().Pods(releaseNamespace).Delete(ctx, "any", meta.DeleteOptions{})
}

func listSecrets(ctx context.Context, c *kubernetes.Clientset) error {
	_, err := c.CoreV1().Secrets(releaseNamespace).List(ctx, meta.ListOptions{})
	return err
}
