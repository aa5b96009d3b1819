//go:build cluster

package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/test/e2e/node"
)

// TestCluster goes through a release's life as an administrator does, from the chart that is refused to what is left after its end.
func TestCluster(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()
	s := newScene(ctx, t)
	for _, step := range []struct {
		name string
		play func(context.Context, *testing.T, *scene)
	}{
		{"others are there", others},
		{"a namespace without a label takes no podgauge", unlabelled},
		{"the API server takes every golden case", goldens},
		{"helm installs it", install},
		{"a pod that asks for a GPU gets one", workload},
		{"Prometheus has the pod's name on the GPU's series", monitors},
		{"claims have the labels of their pods", claims},
		{"updates lose nothing", updates},
		{"a pod that fails on a broken GPU is an alert", alert},
		{"helm uninstalls it", uninstall},
	} {
		if !t.Run(step.name, func(t *testing.T) { step.play(ctx, t, s) }) {
			return // what follows stands on it
		}
	}
}

// unlabelled installs the chart where Pod Security admission takes what is baseline only: the DaemonSet is there, its pods are refused, and
// the event says which label the namespace lacks.
func unlabelled(ctx context.Context, t *testing.T, s *scene) {
	s.helm(ctx, t, "install", release, chart, "--namespace=unlabelled", "--create-namespace", "--values="+s.values)
	await(ctx, t, "the DaemonSet's pods are refused", func(ctx context.Context) error {
		var events struct {
			Items []struct {
				Reason, Message string
				InvolvedObject  struct{ Kind string }
			}
		}
		if err := s.Get(ctx, "/api/v1/namespaces/unlabelled/events", &events); err != nil {
			return err
		}
		for _, e := range events.Items {
			if e.InvolvedObject.Kind == "DaemonSet" && e.Reason == "FailedCreate" && strings.Contains(e.Message, `violates PodSecurity "baseline`) {
				t.Log(e.Message)
				return nil
			}
		}
		return fmt.Errorf("the events are %+v", events.Items)
	})
	s.helm(ctx, t, "uninstall", release, "--namespace=unlabelled", "--wait")
	s.kubectl(ctx, t, "delete", "namespace", "unlabelled")
	s.kubectl(ctx, t, "label", "namespace", namespace, "pod-security.kubernetes.io/enforce=privileged")
}

// install takes one command.
func install(ctx context.Context, t *testing.T, s *scene) {
	before, err := s.objects(ctx)
	if err != nil {
		t.Fatal(err)
	}
	s.before = before
	s.installed = time.Now()
	s.helm(ctx, t, "install", release, chart, "--namespace="+namespace, "--values="+s.values)
	await(ctx, t, "the DaemonSet is ready", s.daemonSet)
	figure(t, "helm install → the DaemonSet is ready (minReadySeconds are 5 of them)", seconds(time.Since(s.installed)))
	await(ctx, t, "the node has GPUs", s.hasAllocatable(gpus))
	s.confined(ctx, t)
}

// confined is what the chart promises of the process: no capability, nothing to be gained, system calls filtered.
func (s *scene) confined(ctx context.Context, t *testing.T) {
	t.Helper()
	all, err := s.podgauges(ctx)
	if err != nil || len(all) != 1 {
		t.Fatal(all, err)
	}
	status := s.shell(ctx, t, all[0], "cat /proc/${PIDS%% *}/status")
	for _, line := range []string{"Name:\tpodgauge", "CapEff:\t0000000000000000", "CapBnd:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"} {
		if !strings.Contains(status, line) {
			t.Errorf("podgauge's process has no line %q:\n%s", line, status)
		}
	}
}

// trainers are pods that have a GPU each.
const trainers = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: trainer, namespace: team}
spec:
  replicas: 3
  selector: {matchLabels: {app: trainer}}
  template:
    metadata: {labels: {app: trainer}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
        - {name: main, image: "@IMAGE@", imagePullPolicy: Never, resources: {limits: {nvidia.com/gpu: 1}}}
`

// workload is scheduled by the scheduler, and named by /metrics on the GPU that the kubelet says it has.
func workload(ctx context.Context, t *testing.T, s *scene) {
	begin := time.Now()
	s.apply(ctx, t, strings.ReplaceAll(trainers, "@IMAGE@", node.BoxImage))
	s.kubectl(ctx, t, "rollout", "status", "--namespace="+team, "deployment/trainer", "--timeout="+patience.String())
	figure(t, "three pods that ask for a GPU each: applied → available", seconds(time.Since(begin)))
	pods, err := s.pods(ctx, team, "app=trainer")
	if err != nil || len(pods) != 3 {
		t.Fatal(pods, err)
	}
	await(ctx, t, "/metrics has the pods' names", func(ctx context.Context) error { return s.named(ctx, pods) })
}

// named holds a scrape against the kubelet's own word: each pod has one GPU, and its name is on that one.
func (s *scene) named(ctx context.Context, pods []pod) error {
	holders, err := s.Node.Holders(ctx, resource)
	if err != nil {
		return err
	}
	families, err := s.scraped(ctx)
	if err != nil {
		return err
	}
	for _, p := range pods {
		found := false
		for id, h := range holders {
			if h.Pod != p.Metadata.Name {
				continue
			}
			found = true
			if name, err := holder(families, id); err != nil || name != h.Pod {
				return fmt.Errorf("%s is %q's, not %q's: %w", id, name, h.Pod, err)
			}
		}
		if !found {
			return errors.New("the kubelet knows of no GPU of " + p.Metadata.Name)
		}
	}
	if len(holders) != len(pods) {
		return fmt.Errorf("the kubelet has holders %v", holders)
	}
	return nil
}
