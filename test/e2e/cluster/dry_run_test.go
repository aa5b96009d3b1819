//go:build cluster

package cluster_test

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/podgauge/podgauge/test/helpers/testfile"
)

// dryRun applies a manifest as a server-side dry run. The API server rejects unknown fields and invalid values.
func (s *clusterFixture) dryRun(t *testing.T, manifest string) error {
	t.Helper()
	_, err := s.Apply(t.Context(), manifest, "--server-side", "--dry-run=server", "--validate=strict")
	return err
}

// checkGoldens applies each golden file of the chart, and the manifest without helm, as a dry run.
func checkGoldens(t *testing.T, s *clusterFixture) {
	cases, err := filepath.Glob(repoRoot + "/test/e2e/chart/testdata/*.yaml")
	if err != nil || len(cases) == 0 {
		t.Fatalf("no golden cases: %v", err)
	}
	manifest, namespaces := "", map[string]bool{} // a dry run creates no namespaces
	for _, file := range append(cases, repoRoot+"/deploy/podgauge.yaml") {
		content := testfile.Read(t, file)
		manifest = content
		for _, match := range namespaced.FindAllStringSubmatch(manifest, -1) {
			if name := match[1]; !namespaces[name] {
				s.apply(t, fmt.Sprintf(`{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": %q}}`, name))
				namespaces[name] = true
			}
		}
		if err := s.dryRun(t, manifest); err != nil {
			t.Errorf("%s: %v", file, err)
		}
	}
	// Check that the dry run rejects an unknown field and an invalid value.
	for _, wrong := range []string{"minReadySecond: 5", "minReadySeconds: five"} {
		err := s.dryRun(t, strings.Replace(manifest, "minReadySeconds: 5", wrong, 1))
		if err == nil || !strings.Contains(err.Error(), "minReadySecond") {
			t.Errorf("dry run with %s: got error %v, want an error with the field", wrong, err)
		}
	}
}

var namespaced = regexp.MustCompile(`(?m)^  namespace: '?([^\s']+)'?$`)

// baselineViolations are the reasons for which the Pod Security level baseline rejects the pods of a value file, except hostPath volumes,
// which all of them have.
var baselineViolations = map[string][]string{
	"dra-driver.yaml":   {"privileged"},
	"gke.yaml":          {"privileged"},
	"gpucluster.yaml":   {"privileged"},
	"host-driver.yaml":  {"privileged"},
	"mig.yaml":          {"non-default capabilities"},
	"openshift.yaml":    {"seLinuxOptions"},
	"time-slicing.yaml": {"host namespaces"},
}

// checkValueFiles renders the chart with each value file and applies all objects as a dry run. It checks that the privileged namespace of
// the release accepts a pod of the DaemonSet, and that the level baseline rejects the pod for the documented reasons.
func checkValueFiles(t *testing.T, s *clusterFixture) {
	s.apply(t, `{apiVersion: node.k8s.io/v1, kind: RuntimeClass, metadata: {name: nvidia}, handler: nvidia}`)
	s.kubectl(t, "create", "namespace", "baseline")
	for _, namespace := range []string{releaseNamespace, "baseline"} { // a pod needs its service account
		s.kubectl(t, "create", "serviceaccount", releaseName, "--namespace="+namespace)
	}
	files, err := filepath.Glob(chartDir + "/examples/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no value files: %v", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			manifest := s.helm(t, "template", releaseName, chartDir, "--namespace="+releaseNamespace, "--values="+file)
			if err := s.dryRun(t, manifest); err != nil {
				t.Error(err)
			}
			if err := s.dryRun(t, samplePod(t, manifest, releaseNamespace)); err != nil {
				t.Errorf("pod in a privileged namespace: %v", err)
			}
			err := s.dryRun(t, samplePod(t, manifest, "baseline"))
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
	s.kubectl(t, "delete", "namespace", "baseline")
	s.kubectl(t, "delete", "runtimeclass", "nvidia")
	s.kubectl(t, "delete", "serviceaccount", releaseName, "--namespace="+releaseNamespace)
}

// samplePod returns a pod of the manifest's DaemonSet in a namespace.
func samplePod(t *testing.T, manifest, namespace string) string {
	t.Helper()
	for text := range strings.SplitSeq("\n"+manifest, "\n---\n") {
		var object struct {
			Kind string
			Spec struct{ Template map[string]any }
		}
		must(t, yaml.Unmarshal([]byte(text), &object))
		if object.Kind != "DaemonSet" {
			continue
		}
		pod := object.Spec.Template
		pod["apiVersion"], pod["kind"] = "v1", "Pod"
		pod["metadata"].(map[string]any)["name"] = "podgauge-sample"
		pod["metadata"].(map[string]any)["namespace"] = namespace
		body, err := json.Marshal(pod)
		must(t, err)
		return string(body)
	}
	t.Fatalf("no DaemonSet in\n%s", manifest)
	return ""
}
