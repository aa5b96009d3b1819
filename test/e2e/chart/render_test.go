// Package chart renders deploy/helm/podgauge with helm's engine, and compares the objects with Kubernetes' types, podgauge's flags, and
// the allowed privileges of podgauge's pod.
package chart

import (
	"bytes"
	"cmp"
	"errors"
	"flag"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	"sigs.k8s.io/yaml"

	"github.com/podgauge/podgauge/test/helpers/require"
)

var update = flag.Bool("update", false, "write the golden files, deploy/podgauge.yaml and the chart's copies")

const (
	root     = "../../.."
	chartDir = root + "/deploy/helm/podgauge"
)

// olderVersion is a version of Kubernetes without ValidatingAdmissionPolicy, which is v1 from 1.30.
const olderVersion = "v1.27.0"

// chartObject is a rendered object.
type chartObject struct {
	template string // file name
	text     []byte
	objectHeader
}

// objectHeader has the common fields of all objects.
type objectHeader struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name      string            `json:"name"`
		Namespace string            `json:"namespace"`
		Labels    map[string]string `json:"labels"`
	} `json:"metadata"`
}

// installOrder is the order of installation: referenced objects come first.
var installOrder = []string{"Namespace", "SecurityContextConstraints", "ResourceQuota", "ServiceAccount", "Secret", "ConfigMap", "Service", "DaemonSet", "Deployment", "NetworkPolicy", "PodMonitor", "ServiceMonitor", "PrometheusRule"}

// mergeValues merges values as helm does for several -f: later texts override earlier texts.
func mergeValues(texts ...string) (map[string]any, error) {
	all := map[string]any{}
	for _, text := range texts {
		var values map[string]any
		if err := yaml.Unmarshal([]byte(text), &values); err != nil {
			return nil, err
		}
		all = loader.MergeMaps(all, values)
	}
	return all, nil
}

// renderChart validates the values and renders the chart as helm does for the release podgauge in the namespace podgauge.
func renderChart(values ...string) (all []chartObject, notes string, err error) {
	return renderChartFor("v1.37.0", values...)
}

// renderChartFor is renderChart for a cluster of this version.
func renderChartFor(kubeVersion string, values ...string) (all []chartObject, notes string, err error) {
	return renderFolder(chartDir, kubeVersion, values...)
}

// renderFolder is renderChartFor for a chart's folder.
func renderFolder(dir, kubeVersion string, values ...string) (all []chartObject, notes string, err error) {
	merged, err := mergeValues(values...)
	if err != nil {
		return nil, "", err
	}
	c, err := loader.LoadDir(dir)
	if err != nil {
		return nil, "", err
	}
	release := common.ReleaseOptions{Name: "podgauge", Namespace: "podgauge", Revision: 1, IsInstall: true}
	capabilities := common.DefaultCapabilities.Copy()
	capabilities.KubeVersion = common.KubeVersion{Version: kubeVersion}
	if kubeVersion != olderVersion {
		capabilities.APIVersions = append(capabilities.APIVersions, "admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy")
	}
	rendered, err := util.ToRenderValues(c, merged, release, capabilities)
	if err != nil {
		return nil, "", err
	}
	files, err := engine.Render(c, rendered)
	if err != nil {
		return nil, "", err
	}
	for path, text := range files {
		_, name, _ := strings.Cut(path, "/templates/")
		if name == "NOTES.txt" {
			notes = text
			continue
		}
		found, err := splitObjects(name, text)
		if err != nil {
			return nil, "", fmt.Errorf("%s: %w\n%s", path, err, text)
		}
		all = append(all, found...)
	}
	slices.SortStableFunc(all, func(a, b chartObject) int {
		return cmp.Or(
			cmp.Compare(slices.Index(installOrder, a.Kind), slices.Index(installOrder, b.Kind)),
			cmp.Compare(a.Metadata.Name, b.Metadata.Name))
	})
	return all, notes, nil
}

// splitObjects returns the objects in a rendered template.
func splitObjects(template, text string) (all []chartObject, err error) {
	for part := range strings.SplitSeq("\n"+text, "\n---\n") {
		part = strings.TrimSpace(part)
		if part == "" {
			continue
		}
		d := chartObject{template: template, text: []byte(part + "\n")}
		if err := yaml.Unmarshal(d.text, &d.objectHeader); err != nil {
			return nil, err
		}
		if d.Kind == "" || d.Metadata.Name == "" {
			return nil, errors.New("kind or name is missing")
		}
		all = append(all, d)
	}
	return all, nil
}

// joinObjects returns the objects as a YAML file.
func joinObjects(all []chartObject) []byte {
	var b bytes.Buffer
	for _, d := range all {
		fmt.Fprintf(&b, "---\n# %s\n%s", d.template, d.text)
	}
	return b.Bytes()
}

// renderedCache has the rendered objects by values, because most tests use all cases.
var renderedCache sync.Map

// mustRender returns the rendered objects, or fails the test. The objects must not be changed.
func mustRender(t *testing.T, values ...string) []chartObject {
	t.Helper()
	key := strings.Join(values, "\n---\n")
	if all, ok := renderedCache.Load(key); ok {
		return all.([]chartObject)
	}
	all, _, err := renderChart(values...)
	require.NoError(t, err)
	renderedCache.Store(key, all)
	return all
}
