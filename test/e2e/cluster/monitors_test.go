//go:build cluster

package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"

	"github.com/podgauge/podgauge/test/e2e/node"
)

// kubeStateMetrics is the PodMonitor of kube-state-metrics, as in kube-prometheus.
const kubeStateMetrics = `
apiVersion: monitoring.coreos.com/v1
kind: PodMonitor
metadata: {name: kube-state-metrics, namespace: kube-system}
spec:
  selector: {matchLabels: {app.kubernetes.io/name: kube-state-metrics}}
  podMetricsEndpoints:
    - {port: http-metrics, honorLabels: true}
`

// installOtherPrograms installs the programs that podgauge works with: Prometheus with operator, kube-state-metrics, OpenShift's
// kinds, and a DRA driver.
func installOtherPrograms(ctx context.Context, t *testing.T, s *clusterFixture) {
	startDRADriver := func(ctx context.Context) error { return s.startDRADriver(ctx, uuids()) }
	for _, step := range []func(context.Context) error{s.startPrometheusOperator, s.installOpenShiftKinds, s.installGoogleKinds, s.startKubeStateMetrics, startDRADriver} {
		if err := step(ctx); err != nil {
			t.Fatal(err)
		}
	}
	s.apply(ctx, t, kubeStateMetrics)
	var err error
	if s.prometheus, err = s.startPrometheus(ctx); err != nil {
		t.Fatal(err)
	}
	await(ctx, t, "kube-state-metrics is scraped", func(ctx context.Context) error {
		return s.checkSeriesCount(ctx, `kube_node_info{node="node-a"}`, 1)
	})
}

// checkMonitors checks the labels of the series in Prometheus with the chart's PodMonitor: the pod with the GPU, and the node,
// never podgauge's pod.
func checkMonitors(ctx context.Context, t *testing.T, s *clusterFixture) {
	pods, err := s.pods(ctx, teamNamespace, "app=trainer")
	if err != nil {
		t.Fatal(err)
	}
	await(ctx, t, "Prometheus has a series of each pod", func(ctx context.Context) error {
		for _, p := range pods {
			found, err := s.prometheus.Query(ctx, fmt.Sprintf("nvidia_gpu_healthy{namespace=%q,pod=%q,container=\"main\",node=%q}", teamNamespace, p.Metadata.Name, node.Name))
			if err != nil || len(found) != 1 {
				return fmt.Errorf("series of %s: got %v, want 1: %w", p.Metadata.Name, found, err)
			}
		}
		return nil
	})
	printMeasurement(t, "helm install → Prometheus has a series of each pod's GPU (the kubelet updates the operator's configuration)", formatSeconds(time.Since(s.installStarted)))
	own, err := s.podgaugePods(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for query, want := range map[string]int{
		`{exported_pod!=""}`:       0,
		`{exported_namespace!=""}`: 0,
		fmt.Sprintf(`{__name__=~"nvidia_gpu_.*",pod=%q}`, own[0].Metadata.Name): 0,
		`{__name__=~"nvidia_gpu_.*",node!="node-a"}`:                            0,
		`{__name__=~"podgauge_.*",node!="node-a"}`:                              0,
		`nvidia_gpu_healthy{pod=""}`:                                            gpuCount - len(pods),
		`up{job="podgauge"} == 1`:                                               1,
		`kube_pod_status_phase{namespace="team",phase="Running"} == 1`:          len(pods),
	} {
		// Targets are scraped at different times, and restart with a new configuration.
		await(ctx, t, "Prometheus has the expected series", func(ctx context.Context) error { return s.checkSeriesCount(ctx, query, want) })
	}
}

// checkSeriesCount returns an error unless a query returns the expected number of series.
func (s *clusterFixture) checkSeriesCount(ctx context.Context, query string, want int) error {
	found, err := s.prometheus.Query(ctx, query)
	if err == nil && len(found) != want {
		err = fmt.Errorf("series of %s: got %d, want %d: %.1000v", query, len(found), want, found)
	}
	return err
}

// checkAlert removes a GPU from the bus, so that the pod fails, and checks that the chart's alert fires with pod, node, GPU and
// reason. The alert needs the pod phase from kube-state-metrics.
func checkAlert(ctx context.Context, t *testing.T, s *clusterFixture) {
	s.apply(ctx, t, strings.ReplaceAll(failingManifest, "@IMAGE@", node.TestImage))
	s.kubectl(ctx, t, "wait", "--namespace="+teamNamespace, "pod/failing", "--for=condition=Ready", "--timeout="+waitTimeout.String())
	var id string
	await(ctx, t, "the pod has a GPU", func(ctx context.Context) error {
		owners, err := s.Node.Owners(ctx, gpuResource)
		for gpu, owner := range owners {
			if owner.Pod == "failing" {
				id = gpu
				return nil
			}
		}
		return errors.Join(errors.New("pod has no GPU"), err)
	})
	await(ctx, t, "/metrics has the pod's name", func(ctx context.Context) error {
		families, err := s.scrapeOne(ctx)
		if err != nil {
			return err
		}
		if name, err := ownerOf(families, id); err != nil || name != "failing" {
			return fmt.Errorf("pod label of the GPU: got %q, want failing: %w", name, err)
		}
		return nil
	})
	index := 0
	for uuid(index) != id {
		index++
	}
	var pod podObject
	if err := s.Get(ctx, "/api/v1/namespaces/"+teamNamespace+"/pods/failing", &pod); err != nil {
		t.Fatal(err)
	}
	// CDI injects the device node of the pod's GPU and the shared node only.
	nodes := s.shell(ctx, t, pod, "cd /proc/${PIDS%% *}/root/dev && echo nvidia*")
	if want := fmt.Sprintf("nvidia%d nvidiactl\n", index); nodes != want {
		t.Errorf("device nodes of the container: got %q, want %q", nodes, want)
	}
	if err := s.machine.Event(index, "xid 79"); err != nil {
		t.Fatal(err)
	}
	await(ctx, t, "the node lacks the GPU", s.hasAllocatable(gpuCount-1))
	s.shell(ctx, t, pod, "kill -KILL $PIDS") // like a program that crashes without its GPU
	s.kubectl(ctx, t, "wait", "--namespace="+teamNamespace, "pod/failing", "--for=jsonpath={.status.phase}=Failed", "--timeout="+waitTimeout.String())
	begin := time.Now()
	var fired model.Metric
	await(ctx, t, "the alert fires", func(ctx context.Context) error {
		found, err := s.prometheus.Query(ctx, `ALERTS{alertname="PodgaugePodFailedOnUnhealthyDevice",alertstate="firing"}`)
		if err != nil || len(found) != 1 {
			return fmt.Errorf("firing alerts: got %v, want 1: %w", found, err)
		}
		fired = found[0].Metric
		return nil
	})
	printMeasurement(t, "pod failed → PodgaugePodFailedOnUnhealthyDevice fires (scraped and evaluated every second)", formatSeconds(time.Since(begin)))
	for name, want := range map[model.LabelName]string{
		"namespace": teamNamespace, "pod": "failing", "container": "main", "node": node.Name, "uuid": id, "reason": "xid_79",
	} {
		if string(fired[name]) != want {
			t.Errorf("label %s of the alert: got %q, want %q: %v", name, fired[name], want, fired)
		}
	}
}

const failingManifest = `
apiVersion: v1
kind: Pod
metadata: {name: failing, namespace: team}
spec:
  restartPolicy: Never
  containers:
    - {name: main, image: "@IMAGE@", imagePullPolicy: Never, resources: {limits: {nvidia.com/gpu: 1}}}
`
