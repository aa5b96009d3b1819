//go:build cluster

package cluster_test

import (
	"context"
	"encoding/json"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/podgauge/podgauge/test/e2e/cluster"
	"github.com/podgauge/podgauge/test/e2e/node"
)

// baselineViolations are the reasons for which the Pod Security level baseline rejects the pods of a value file, except hostPath volumes,
// which all of them have.
var baselineViolations = map[string][]string{
	"gke.yaml":          {"privileged"},
	"host-driver.yaml":  {"privileged"},
	"mig.yaml":          {"non-default capabilities"},
	"openshift.yaml":    {"seLinuxOptions"},
	"time-slicing.yaml": {"host namespaces"},
}

// TestValueFiles renders the chart with each value file and applies all objects as a server-side dry run. It checks that a privileged
// namespace accepts a pod of the DaemonSet, and that the level baseline rejects the pod for the documented reasons.
func TestValueFiles(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	c, err := cluster.Up(ctx, node.ForTest(ctx, t, cluster.Options()), "baseline")
	if err != nil {
		t.Fatal(err)
	}
	s := &clusterFixture{Cluster: c}
	if err := errors.Join(s.installMonitoringKinds(ctx), s.installOpenShiftKinds(ctx), s.installGoogleKinds(ctx)); err != nil {
		t.Fatal(err)
	}
	s.apply(ctx, t, valueFileObjects)
	files, err := filepath.Glob(chartDir + "/examples/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no value files: %v", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			manifest := s.helm(ctx, t, "template", releaseName, chartDir, "--namespace="+releaseNamespace, "--values="+file)
			if _, err := s.Apply(ctx, manifest, "--server-side", "--dry-run=server", "--validate=strict"); err != nil {
				t.Error(err)
			}
			if _, err := s.Apply(ctx, podOf(t, manifest, releaseNamespace), "--dry-run=server", "--validate=strict"); err != nil {
				t.Errorf("pod in a privileged namespace: %v", err)
			}
			_, err := s.Apply(ctx, podOf(t, manifest, "unlabeled"), "--dry-run=server", "--validate=strict")
			if err == nil || !strings.Contains(err.Error(), `violates PodSecurity "baseline:latest"`) {
				t.Fatalf("pod at the level baseline: %v", err)
			}
			_, reasons, _ := strings.Cut(err.Error(), `"baseline:latest": `)
			for _, reason := range []string{"hostPath volumes", "privileged", "non-default capabilities", "seLinuxOptions", "host namespaces", "hostPort"} {
				expected := reason == "hostPath volumes" || slices.Contains(baselineViolations[filepath.Base(file)], reason)
				if strings.Contains(reasons, reason+" (") != expected {
					t.Errorf("rejected because of %s: %t; reasons are %s", reason, !expected, reasons)
				}
			}
		})
	}
}

// valueFileObjects are objects that the pods refer to.
const valueFileObjects = `
{apiVersion: v1, kind: Namespace, metadata: {name: podgauge, labels: {pod-security.kubernetes.io/enforce: privileged}}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: unlabeled}}
---
{apiVersion: v1, kind: ServiceAccount, metadata: {name: podgauge, namespace: podgauge}}
---
{apiVersion: v1, kind: ServiceAccount, metadata: {name: podgauge, namespace: unlabeled}}
---
{apiVersion: node.k8s.io/v1, kind: RuntimeClass, metadata: {name: nvidia}, handler: nvidia}
`

// podOf returns a pod of the manifest's DaemonSet in a namespace.
func podOf(t *testing.T, manifest, namespace string) string {
	t.Helper()
	for text := range strings.SplitSeq("\n"+manifest, "\n---\n") {
		var object struct {
			Kind string
			Spec struct{ Template map[string]any }
		}
		if err := yaml.Unmarshal([]byte(text), &object); err != nil {
			t.Fatal(err)
		}
		if object.Kind != "DaemonSet" {
			continue
		}
		pod := object.Spec.Template
		pod["apiVersion"], pod["kind"] = "v1", "Pod"
		pod["metadata"].(map[string]any)["name"] = "podgauge-sample"
		pod["metadata"].(map[string]any)["namespace"] = namespace
		body, err := json.Marshal(pod)
		if err != nil {
			t.Fatal(err)
		}
		return string(body)
	}
	t.Fatalf("no DaemonSet in\n%s", manifest)
	return ""
}
