package cluster

import (
	"context"
	"errors"
	"path/filepath"

	"github.com/podgauge/podgauge/test/e2e/node"
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

// Prometheus runs a server with all monitors and rules by the operator, in the namespace default.
// The service account has the permissions of the operator's example.
func (c *Cluster) Prometheus(ctx context.Context) (*node.PrometheusServer, error) {
	source, err := prometheusOperator.Source(ctx)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(
		c.load(ctx, prometheusProgram, "prometheus", "quay.io/prometheus/prometheus:"+prometheusProgram.Version),
		c.load(ctx, prometheusOperator, "prometheus-config-reloader", "quay.io/prometheus-operator/prometheus-config-reloader:"+prometheusOperator.Version),
	); err != nil {
		return nil, err
	}
	rights := filepath.Join(source, "example", "rbac", "prometheus", "prometheus-")
	for _, name := range []string{"service-account", "cluster-role", "cluster-role-binding"} {
		if _, err := c.Kubectl(ctx, "apply", "--filename="+rights+name+".yaml"); err != nil {
			return nil, err
		}
	}
	if _, err := c.Apply(ctx, prometheusManifest); err != nil {
		return nil, err
	}
	if _, err := c.Kubectl(ctx, "wait", "prometheus/e2e", "--for=condition=Available", "--timeout="+waitTimeout.String()); err != nil {
		return nil, err
	}
	var pod struct{ Status struct{ PodIP string } }
	if err := c.Get(ctx, "/api/v1/namespaces/default/pods/prometheus-e2e-0", &pod); err != nil {
		return nil, err
	}
	return node.ConnectPrometheus("http://" + pod.Status.PodIP + ":9090"), nil
}
