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

// KubeStateMetrics runs kube-state-metrics as its own manifests have it, in kube-system.
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

// PrometheusOperator runs the operator as its own manifests have it, in the namespace default.
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

// OpenShiftKinds teaches the API server the SecurityContextConstraints of OpenShift.
func (c *Cluster) OpenShiftKinds(ctx context.Context) error {
	source, err := openShiftSource.Source(ctx)
	if err != nil {
		return err
	}
	const file = "payload-manifests/crds/0000_03_config-operator_01_securitycontextconstraints.crd.yaml"
	return c.applyDefinitions(ctx, filepath.Join(source, file))
}

// applyDefinitions has the API server learn the kinds of a file or folder, and waits until it has.
func (c *Cluster) applyDefinitions(ctx context.Context, file string) error {
	// Some definitions are longer than the annotation in which kubectl would keep them.
	if _, err := c.Kubectl(ctx, "apply", "--server-side", "--filename="+file); err != nil {
		return err
	}
	_, err := c.Kubectl(ctx, "wait", "--for=condition=Established", "crd", "--all", "--timeout="+waitTimeout.String())
	return err
}

// load gives the node an image of one of a program's binaries, under the name by which manifests ask for it.
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

// waitForRollout waits until a workload is as it should be.
func (c *Cluster) waitForRollout(ctx context.Context, namespace, workload string) error {
	if _, err := c.Kubectl(ctx, "rollout", "status", "--namespace="+namespace, workload, "--timeout="+waitTimeout.String()); err != nil {
		return fmt.Errorf("wait for %s: %w", workload, err)
	}
	return nil
}
