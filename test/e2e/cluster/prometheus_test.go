//go:build cluster

package cluster_test

import (
	"context"
	"errors"
	"path/filepath"

	"github.com/podgauge/podgauge/test/e2e/node"
	"github.com/podgauge/podgauge/test/e2e/programs"
)

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

// startPrometheus runs a server with all monitors and rules by the operator, in the namespace default.
// The service account has the permissions of the operator's example.
func (s *clusterFixture) startPrometheus(ctx context.Context) (*node.PrometheusServer, error) {
	source, err := programs.PrometheusOperator.Source(ctx)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(
		s.loadProgram(ctx, programs.Prometheus, "prometheus", "quay.io/prometheus/prometheus:"+programs.Prometheus.Version),
		s.loadProgram(ctx, programs.PrometheusOperator, "prometheus-config-reloader", "quay.io/prometheus-operator/prometheus-config-reloader:"+programs.PrometheusOperator.Version),
	); err != nil {
		return nil, err
	}
	rights := filepath.Join(source, "example", "rbac", "prometheus", "prometheus-")
	for _, name := range []string{"service-account", "cluster-role", "cluster-role-binding"} {
		if _, err := s.Kubectl(ctx, "apply", "--filename="+rights+name+".yaml"); err != nil {
			return nil, err
		}
	}
	if _, err := s.Apply(ctx, prometheusManifest); err != nil {
		return nil, err
	}
	if _, err := s.Kubectl(ctx, "wait", "prometheus/e2e", "--for=condition=Available", "--timeout="+waitTimeout.String()); err != nil {
		return nil, err
	}
	var pod struct{ Status struct{ PodIP string } }
	if err := s.Get(ctx, "/api/v1/namespaces/default/pods/prometheus-e2e-0", &pod); err != nil {
		return nil, err
	}
	return node.ConnectPrometheus("http://" + pod.Status.PodIP + ":9090")
}
