//go:build cluster

package cluster_test

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/podgauge/podgauge/test/e2e/programs"
)

// startKubeStateMetrics runs kube-state-metrics from its manifests, in kube-system.
func (s *clusterFixture) startKubeStateMetrics(ctx context.Context) error {
	source, err := programs.KubeStateMetrics.Source(ctx)
	if err != nil {
		return err
	}
	if err := s.loadProgram(ctx, programs.KubeStateMetrics, "kube-state-metrics", "registry.k8s.io/kube-state-metrics/kube-state-metrics:"+programs.KubeStateMetrics.Version); err != nil {
		return err
	}
	if _, err := s.Kubectl(ctx, "apply", "--kustomize="+filepath.Join(source, "examples", "standard")); err != nil {
		return err
	}
	return s.waitForRollout(ctx, "kube-system", "deployment/kube-state-metrics")
}

// startPrometheusOperator runs the operator from its manifests, in the namespace default.
func (s *clusterFixture) startPrometheusOperator(ctx context.Context) error {
	source, err := programs.PrometheusOperator.Source(ctx)
	if err != nil {
		return err
	}
	if err := s.loadProgram(ctx, programs.PrometheusOperator, "operator", "quay.io/prometheus-operator/prometheus-operator:"+programs.PrometheusOperator.Version); err != nil {
		return err
	}
	if err := s.installMonitoringKinds(ctx); err != nil {
		return err
	}
	if _, err := s.Kubectl(ctx, "apply", "--filename="+filepath.Join(source, "example", "rbac", "prometheus-operator")); err != nil {
		return err
	}
	return s.waitForRollout(ctx, "default", "deployment/prometheus-operator")
}

// installMonitoringKinds installs the definitions of the Prometheus operator's kinds.
func (s *clusterFixture) installMonitoringKinds(ctx context.Context) error {
	source, err := programs.PrometheusOperator.Source(ctx)
	if err != nil {
		return err
	}
	return s.applyDefinitions(ctx, filepath.Join(source, "example", "prometheus-operator-crd"))
}

// installOpenShiftKinds installs the definition of OpenShift's SecurityContextConstraints.
func (s *clusterFixture) installOpenShiftKinds(ctx context.Context) error {
	source, err := programs.OpenShift.Source(ctx)
	if err != nil {
		return err
	}
	const file = "payload-manifests/crds/0000_03_config-operator_01_securitycontextconstraints.crd.yaml"
	return s.applyDefinitions(ctx, filepath.Join(source, file))
}

// installGoogleKinds installs the definition of the kind in the example gke.yaml.
func (s *clusterFixture) installGoogleKinds(ctx context.Context) error {
	return s.applyDefinitions(ctx, filepath.Join("testdata", "clusterpodmonitorings.yaml"))
}

// applyDefinitions installs the custom resource definitions of a file or folder and waits until all are established.
func (s *clusterFixture) applyDefinitions(ctx context.Context, file string) error {
	// Server-side, because some definitions exceed the size of kubectl's annotation.
	if _, err := s.Kubectl(ctx, "apply", "--server-side", "--filename="+file); err != nil {
		return err
	}
	_, err := s.Kubectl(ctx, "wait", "--for=condition=Established", "crd", "--all", "--timeout="+waitTimeout.String())
	return err
}

// loadProgram imports an image of a program's binary into the node, under the name in the manifests.
func (s *clusterFixture) loadProgram(ctx context.Context, p programs.BuildSpec, name, as string) error {
	binary, err := p.Binary(name)
	if err != nil {
		return err
	}
	return s.Node.LoadProgram(ctx, as, binary, "/bin/"+name)
}

// waitForRollout waits for the end of a workload's rollout.
func (s *clusterFixture) waitForRollout(ctx context.Context, namespace, workload string) error {
	if _, err := s.Kubectl(ctx, "rollout", "status", "--namespace="+namespace, workload, "--timeout="+waitTimeout.String()); err != nil {
		return fmt.Errorf("wait for %s: %w", workload, err)
	}
	return nil
}
