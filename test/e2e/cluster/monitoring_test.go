//go:build cluster

package cluster_test

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/prometheus/common/model"

	"github.com/podgauge/podgauge/test/e2e/node"
	"github.com/podgauge/podgauge/test/e2e/programs"
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

// prometheusManifest requests a Prometheus with all monitors and rules from the operator.
const prometheusManifest = `
apiVersion: monitoring.coreos.com/v1
kind: Prometheus
metadata: {name: e2e, namespace: default}
spec:
  serviceAccountName: prometheus
  scrapeInterval: 1s
  evaluationInterval: 1s
  podMonitorSelector: {}
  podMonitorNamespaceSelector: {}
  serviceMonitorSelector: {}
  serviceMonitorNamespaceSelector: {}
  ruleSelector: {}
  ruleNamespaceSelector: {}
`

// installOtherPrograms installs the programs that podgauge works with: Prometheus with operator, kube-state-metrics, OpenShift's and
// Google's kinds, and a DRA driver.
func installOtherPrograms(t *testing.T, s *clusterFixture) {
	const registry = "quay.io/prometheus-operator/"
	operator := source(t, programs.PrometheusOperator)
	s.installMonitoringKinds(t)
	s.loadProgram(t, programs.PrometheusOperator, "operator", registry+"prometheus-operator:"+programs.PrometheusOperator.Version)
	s.kubectl(t, "apply", "--filename="+filepath.Join(operator, "example", "rbac", "prometheus-operator"))
	s.waitForRollout(t, "default", "deployment/prometheus-operator")

	const scc = "payload-manifests/crds/0000_03_config-operator_01_securitycontextconstraints.crd.yaml"
	s.applyDefinitions(t, filepath.Join(source(t, programs.OpenShift), scc))
	s.applyDefinitions(t, filepath.Join("testdata", "clusterpodmonitorings.yaml")) // for the example gke.yaml

	s.loadProgram(t, programs.KubeStateMetrics, "kube-state-metrics", "registry.k8s.io/kube-state-metrics/kube-state-metrics:"+programs.KubeStateMetrics.Version)
	s.kubectl(t, "apply", "--kustomize="+filepath.Join(source(t, programs.KubeStateMetrics), "examples", "standard"))
	s.waitForRollout(t, "kube-system", "deployment/kube-state-metrics")
	s.startDRADriver(t)
	s.apply(t, kubeStateMetrics)

	s.loadProgram(t, programs.Prometheus, "prometheus", "quay.io/prometheus/prometheus:"+programs.Prometheus.Version)
	s.loadProgram(t, programs.PrometheusOperator, "prometheus-config-reloader", registry+"prometheus-config-reloader:"+programs.PrometheusOperator.Version)
	for _, name := range []string{"service-account", "cluster-role", "cluster-role-binding"} {
		s.kubectl(t, "apply", "--filename="+filepath.Join(operator, "example", "rbac", "prometheus", "prometheus-"+name+".yaml"))
	}
	s.apply(t, prometheusManifest)
	s.kubectl(t, "wait", "prometheus/e2e", "--for=condition=Available", "--timeout="+waitTimeout.String())
	var pod podObject
	must(t, s.Get(t.Context(), "/api/v1/namespaces/default/pods/prometheus-e2e-0", &pod))
	var err error
	s.prometheus, err = node.ConnectPrometheus("http://" + pod.Status.PodIP + ":9090")
	must(t, err)
	await(t, "kube-state-metrics is scraped", func(ctx context.Context) error {
		return s.checkSeriesCount(ctx, `kube_node_info{node="node-a"}`, 1)
	})
}

// source returns the folder of a program's sources.
func source(t *testing.T, p programs.BuildSpec) string {
	t.Helper()
	dir, err := p.Source(t.Context())
	must(t, err)
	return dir
}

// installMonitoringKinds installs the definitions of the Prometheus operator's kinds.
func (s *clusterFixture) installMonitoringKinds(t *testing.T) {
	t.Helper()
	s.applyDefinitions(t, filepath.Join(source(t, programs.PrometheusOperator), "example", "prometheus-operator-crd"))
}

// applyDefinitions installs the custom resource definitions of a file or folder and waits until all are established.
func (s *clusterFixture) applyDefinitions(t *testing.T, file string) {
	t.Helper()
	// Server-side, because some definitions exceed the size of kubectl's annotation.
	s.kubectl(t, "apply", "--server-side", "--filename="+file)
	s.kubectl(t, "wait", "--for=condition=Established", "crd", "--all", "--timeout="+waitTimeout.String())
}

// loadProgram imports an image of a program's binary into the node, under the name in the manifests.
func (s *clusterFixture) loadProgram(t *testing.T, p programs.BuildSpec, name, as string) {
	t.Helper()
	binary, err := p.Binary(name)
	must(t, err)
	must(t, s.Node.LoadProgram(t.Context(), as, binary, "/bin/"+name))
}

// waitForRollout waits for the end of a workload's rollout.
func (s *clusterFixture) waitForRollout(t *testing.T, namespace, workload string) {
	t.Helper()
	s.kubectl(t, "rollout", "status", "--namespace="+namespace, workload, "--timeout="+waitTimeout.String())
}

// checkMonitors checks the labels of the series in Prometheus with the chart's PodMonitor: the pod with the GPU, and the node,
// never podgauge's pod.
func checkMonitors(t *testing.T, s *clusterFixture) {
	pods := s.trainers(t)
	await(t, "Prometheus has a series of each pod", func(ctx context.Context) error {
		for _, p := range pods {
			query := fmt.Sprintf("nvidia_gpu_healthy{namespace=%q,pod=%q,container=\"main\",node=%q}", teamNamespace, p.Metadata.Name, node.Name)
			if err := s.checkSeriesCount(ctx, query, 1); err != nil {
				return err
			}
		}
		return nil
	})
	printMeasurement(t, "helm install → Prometheus has a series of each pod's GPU (the kubelet updates the operator's configuration)", formatSeconds(time.Since(s.installStarted)))
	own, err := s.podgaugePod(t.Context())
	must(t, err)
	for query, want := range map[string]int{
		`{exported_pod!=""}`:       0,
		`{exported_namespace!=""}`: 0,
		fmt.Sprintf(`{__name__=~"nvidia_gpu_.*",pod=%q}`, own.Metadata.Name): 0,
		`{__name__=~"nvidia_gpu_.*",node!="node-a"}`:                         0,
		`{__name__=~"podgauge_.*",node!="node-a"}`:                           0,
		`nvidia_gpu_healthy{pod=""}`:                                         gpuCount - len(pods),
		`up{job="podgauge"} == 1`:                                            1,
		`kube_pod_status_phase{namespace="team",phase="Running"} == 1`:       len(pods),
	} {
		// Targets are scraped at different times, and restart with a new configuration.
		await(t, "Prometheus has the expected series", func(ctx context.Context) error { return s.checkSeriesCount(ctx, query, want) })
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

// checkAlert fails a GPU, so that its pod fails, and checks that the chart's alert fires with pod, node, GPU and reason. The alert needs the
// pod phase from kube-state-metrics.
func checkAlert(t *testing.T, s *clusterFixture) {
	p, gpu := s.runGPUPod(t, "failing")
	owner := node.OwnerKey{Namespace: teamNamespace, Pod: "failing", Container: "main"}
	await(t, "/metrics has the pod's name", func(ctx context.Context) error {
		return s.checkOwners(ctx, map[string]node.OwnerKey{uuid(gpu): owner})
	})
	// CDI injects the device node of the pod's GPU and the shared node only.
	nodes := s.shell(t, p, "cd /proc/${PIDS%% *}/root/dev && echo nvidia*")
	if want := fmt.Sprintf("nvidia%d nvidiactl\n", gpu); nodes != want {
		t.Errorf("device nodes of the container: got %q, want %q", nodes, want)
	}
	must(t, s.machine.Event(gpu, "xid 79"))
	await(t, "the node lacks the GPU", s.hasAllocatable(gpuCount-1))
	s.kill(t, p) // like a program that crashes without its GPU
	s.kubectl(t, "wait", "--namespace="+teamNamespace, "pod/failing", "--for=jsonpath={.status.phase}=Failed", "--timeout="+waitTimeout.String())
	begin := time.Now()
	var fired model.Metric
	await(t, "the alert fires", func(ctx context.Context) error {
		found, err := s.prometheus.Query(ctx, `ALERTS{alertname="PodgaugePodFailedOnUnhealthyDevice",alertstate="firing"}`)
		if err != nil || len(found) != 1 {
			return fmt.Errorf("firing alerts: got %v, want 1: %w", found, err)
		}
		fired = found[0].Metric
		return nil
	})
	printMeasurement(t, "pod failed → PodgaugePodFailedOnUnhealthyDevice fires (scraped and evaluated every second)", formatSeconds(time.Since(begin)))
	for name, want := range map[model.LabelName]string{
		"namespace": teamNamespace, "pod": "failing", "container": "main", "node": node.Name, "uuid": uuid(gpu), "reason": "xid_79",
	} {
		if string(fired[name]) != want {
			t.Errorf("label %s of the alert: got %q, want %q: %v", name, fired[name], want, fired)
		}
	}
}
