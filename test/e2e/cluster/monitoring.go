package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/podgauge/podgauge/test/e2e/buildcache"
	"github.com/podgauge/podgauge/test/e2e/image"
)

// KubeStateMetrics runs kube-state-metrics from its manifests, in kube-system.
func (c *Cluster) KubeStateMetrics(ctx context.Context) error {
	source, err := kubeStateMetrics.Source(ctx)
	if err != nil {
		return err
	}
	if err := c.load(ctx, kubeStateMetrics, "kube-state-metrics", "registry.k8s.io/kube-state-metrics/kube-state-metrics:"+kubeStateMetrics.Version); err != nil {
		return err
	}
	if _, err := c.Kubectl(ctx, "apply", "--kustomize="+filepath.Join(source, "examples", "standard")); err != nil {
		return err
	}
	return c.waitForRollout(ctx, "kube-system", "deployment/kube-state-metrics")
}

// PrometheusOperator runs the operator from its manifests, in the namespace default.
func (c *Cluster) PrometheusOperator(ctx context.Context) error {
	source, err := prometheusOperator.Source(ctx)
	if err != nil {
		return err
	}
	if err := c.load(ctx, prometheusOperator, "operator", "quay.io/prometheus-operator/prometheus-operator:"+prometheusOperator.Version); err != nil {
		return err
	}
	if err := c.applyDefinitions(ctx, filepath.Join(source, "example", "prometheus-operator-crd")); err != nil {
		return err
	}
	if _, err := c.Kubectl(ctx, "apply", "--filename="+filepath.Join(source, "example", "rbac", "prometheus-operator")); err != nil {
		return err
	}
	return c.waitForRollout(ctx, "default", "deployment/prometheus-operator")
}

// OpenShiftKinds installs the definition of OpenShift's SecurityContextConstraints.
func (c *Cluster) OpenShiftKinds(ctx context.Context) error {
	source, err := openShiftSource.Source(ctx)
	if err != nil {
		return err
	}
	const file = "payload-manifests/crds/0000_03_config-operator_01_securitycontextconstraints.crd.yaml"
	return c.applyDefinitions(ctx, filepath.Join(source, file))
}

// applyDefinitions installs the custom resource definitions of a file or folder and waits until all are established.
func (c *Cluster) applyDefinitions(ctx context.Context, file string) error {
	// Server-side, because some definitions exceed the size of kubectl's annotation.
	if _, err := c.Kubectl(ctx, "apply", "--server-side", "--filename="+file); err != nil {
		return err
	}
	_, err := c.Kubectl(ctx, "wait", "--for=condition=Established", "crd", "--all", "--timeout="+waitTimeout.String())
	return err
}

// load imports an image of a program's binary into the node, under the name in the manifests.
func (c *Cluster) load(ctx context.Context, p buildcache.BuildSpec, name, as string) error {
	binary, err := binaryPath(p, name)
	if err != nil {
		return err
	}
	content, err := os.ReadFile(binary)
	if err != nil {
		return err
	}
	archive := c.Node.Path(name + ".tar")
	f, err := os.Create(archive)
	if err != nil {
		return err
	}
	if err := errors.Join(image.Image{Name: as, Program: content, Path: "/bin/" + name}.Write(f), f.Close()); err != nil {
		return err
	}
	return c.Node.LoadImage(ctx, archive)
}

// waitForRollout waits for the end of a workload's rollout.
func (c *Cluster) waitForRollout(ctx context.Context, namespace, workload string) error {
	if _, err := c.Kubectl(ctx, "rollout", "status", "--namespace="+namespace, workload, "--timeout="+waitTimeout.String()); err != nil {
		return fmt.Errorf("wait for %s: %w", workload, err)
	}
	return nil
}
