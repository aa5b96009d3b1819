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

// kubeStateMetrics is scraped as kube-prometheus has it.
const kubeStateMetrics = `
apiVersion: monitoring.coreos.com/v1
kind: PodMonitor
metadata: {name: kube-state-metrics, namespace: kube-system}
spec:
  selector: {matchLabels: {app.kubernetes.io/name: kube-state-metrics}}
  podMetricsEndpoints:
    - {port: http-metrics, honorLabels: true}
`

// others are there before podgauge comes: the operator with a Prometheus that takes all monitors and rules, kube-state-metrics, the kinds of
// OpenShift, and a DRA driver.
func others(ctx context.Context, t *testing.T, s *scene) {
	for _, step := range []func(context.Context) error{s.PrometheusOperator, s.OpenShiftKinds, s.KubeStateMetrics, func(ctx context.Context) error { return s.DRADriver(ctx, uuids()) }} {
		if err := step(ctx); err != nil {
			t.Fatal(err)
		}
	}
	s.apply(ctx, t, kubeStateMetrics)
	var err error
	if s.prometheus, err = s.Prometheus(ctx); err != nil {
		t.Fatal(err)
	}
	await(ctx, t, "kube-state-metrics is scraped", func(ctx context.Context) error {
		return s.counts(ctx, `kube_node_info{node="node-a"}`, 1)
	})
}

// monitors holds what Prometheus has against the pods: by the configuration that the operator makes of the chart's PodMonitor, the series
// bear the name of the pod that has the GPU, and of the node, and none bears podgauge's.
func monitors(ctx context.Context, t *testing.T, s *scene) {
	pods, err := s.pods(ctx, team, "app=trainer")
	if err != nil {
		t.Fatal(err)
	}
	await(ctx, t, "Prometheus has a series of each pod", func(ctx context.Context) error {
		for _, p := range pods {
			found, err := s.prometheus.Query(ctx, fmt.Sprintf("nvidia_gpu_healthy{namespace=%q,pod=%q,container=\"main\",node=%q}", team, p.Metadata.Name, node.Name))
			if err != nil || len(found) != 1 {
				return fmt.Errorf("%s has %v: %w", p.Metadata.Name, found, err)
			}
		}
		return nil
	})
	figure(t, "helm install → Prometheus has a series of each pod's GPU (the operator's configuration, carried by the kubelet)", seconds(time.Since(s.installed)))
	own, err := s.podgauges(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for query, want := range map[string]int{
		`{exported_pod!=""}`:       0,
		`{exported_namespace!=""}`: 0,
		fmt.Sprintf(`{__name__=~"nvidia_gpu_.*",pod=%q}`, own[0].Metadata.Name): 0,
		`{__name__=~"nvidia_gpu_.*",node!="node-a"}`:                            0,
		`{__name__=~"podgauge_.*",node!="node-a"}`:                              0,
		`nvidia_gpu_healthy{pod=""}`:                                            gpus - len(pods),
		`up{job="podgauge"} == 1`:                                               1,
		`kube_pod_status_phase{namespace="team",phase="Running"} == 1`:          len(pods),
	} {
		// Each target is scraped in its own time, and they have just begun anew with the configuration.
		await(ctx, t, "Prometheus is right", func(ctx context.Context) error { return s.counts(ctx, query, want) })
	}
}

// counts says where a query does not find so many series.
func (s *scene) counts(ctx context.Context, query string, want int) error {
	found, err := s.prometheus.Query(ctx, query)
	if err == nil && len(found) != want {
		err = fmt.Errorf("%s has %d series, not %d: %.1000v", query, len(found), want, found)
	}
	return err
}

// alert has a GPU fall off the bus under a pod that ends by it: the rule that the chart brought fires, by the phase that kube-state-metrics
// tells, and names pod, node, GPU and reason.
func alert(ctx context.Context, t *testing.T, s *scene) {
	s.apply(ctx, t, strings.ReplaceAll(loser, "@IMAGE@", node.BoxImage))
	s.kubectl(ctx, t, "wait", "--namespace="+team, "pod/victim", "--for=condition=Ready", "--timeout="+patience.String())
	var id string
	await(ctx, t, "the pod has a GPU", func(ctx context.Context) error {
		holders, err := s.Node.Holders(ctx, resource)
		for gpu, h := range holders {
			if h.Pod == "victim" {
				id = gpu
				return nil
			}
		}
		return errors.Join(errors.New("it has none"), err)
	})
	await(ctx, t, "/metrics has its name", func(ctx context.Context) error {
		families, err := s.scraped(ctx)
		if err != nil {
			return err
		}
		if name, err := holder(families, id); err != nil || name != "victim" {
			return fmt.Errorf("the GPU is %q's: %w", name, err)
		}
		return nil
	})
	index := 0
	for uuid(index) != id {
		index++
	}
	var victim pod
	if err := s.Get(ctx, "/api/v1/namespaces/"+team+"/pods/victim", &victim); err != nil {
		t.Fatal(err)
	}
	// CDI brought it its own GPU's node and the one that all share, and no other.
	nodes := s.shell(ctx, t, victim, "cd /proc/${PIDS%% *}/root/dev && echo nvidia*")
	if want := fmt.Sprintf("nvidia%d nvidiactl\n", index); nodes != want {
		t.Errorf("its container has %q, not %q", nodes, want)
	}
	if err := s.machine.Event(index, "xid 79"); err != nil {
		t.Fatal(err)
	}
	await(ctx, t, "the node has one GPU less", s.hasAllocatable(gpus-1))
	s.shell(ctx, t, victim, "kill -KILL $PIDS") // as a program ends whose GPU is gone
	s.kubectl(ctx, t, "wait", "--namespace="+team, "pod/victim", "--for=jsonpath={.status.phase}=Failed", "--timeout="+patience.String())
	begin := time.Now()
	var fired map[string]string
	await(ctx, t, "the alert fires", func(ctx context.Context) error {
		found, err := s.prometheus.Query(ctx, `ALERTS{alertname="PodgaugePodFailedOnUnhealthyDevice",alertstate="firing"}`)
		if err != nil || len(found) != 1 {
			return fmt.Errorf("there are %v: %w", found, err)
		}
		fired = found[0].Labels
		return nil
	})
	figure(t, "the pod has failed → PodgaugePodFailedOnUnhealthyDevice fires (scraped and evaluated every second)", seconds(time.Since(begin)))
	for name, want := range map[string]string{
		"namespace": team, "pod": "victim", "container": "main", "node": node.Name, "uuid": id, "reason": "xid_79",
	} {
		if fired[name] != want {
			t.Errorf("the alert has %s %q, not %q: %v", name, fired[name], want, fired)
		}
	}
}

const loser = `
apiVersion: v1
kind: Pod
metadata: {name: victim, namespace: team}
spec:
  restartPolicy: Never
  containers:
    - {name: main, image: "@IMAGE@", imagePullPolicy: Never, resources: {limits: {nvidia.com/gpu: 1}}}
`
