// Package chart renders deploy/helm/podgauge as helm does, with helm's own engine, and holds what comes out of it
// against Kubernetes' types, against podgauge's flags, and against what a pod of podgauge may ask of a node.
package chart

import (
	"bytes"
	"cmp"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	"sigs.k8s.io/yaml"
)

var update = flag.Bool("update", false, "write the golden files, deploy/podgauge.yaml and what the chart has copies of")

const (
	root     = "../../.."
	chartDir = root + "/deploy/helm/podgauge"
)

// chartObject is one object that the chart makes.
type chartObject struct {
	template string // the file that made it
	text     []byte
	objectHeader
}

// objectHeader is what all objects have.
type objectHeader struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name      string            `json:"name"`
		Namespace string            `json:"namespace"`
		Labels    map[string]string `json:"labels"`
	} `json:"metadata"`
}

// installOrder is the order in which objects are made: what others refer to comes first.
var installOrder = []string{"Namespace", "SecurityContextConstraints", "ResourceQuota", "ServiceAccount", "Secret", "ConfigMap", "Service", "DaemonSet", "NetworkPolicy", "PodMonitor", "ServiceMonitor", "PrometheusRule"}

// mergeValues reads what a user would give with -f: later texts are laid over earlier ones.
func mergeValues(texts ...string) (map[string]any, error) {
	all := map[string]any{}
	for _, text := range texts {
		var given map[string]any
		if err := yaml.Unmarshal([]byte(text), &given); err != nil {
			return nil, err
		}
		all = loader.MergeMaps(all, given)
	}
	return all, nil
}

// renderChart is what helm does with the chart when it installs it as podgauge into the namespace podgauge: the schema is
// asked first. The notes are left out of the documents.
func renderChart(given ...string) (all []chartObject, notes string, err error) {
	vals, err := mergeValues(given...)
	if err != nil {
		return nil, "", err
	}
	c, err := loader.LoadDir(chartDir)
	if err != nil {
		return nil, "", err
	}
	release := common.ReleaseOptions{Name: "podgauge", Namespace: "podgauge", Revision: 1, IsInstall: true}
	rendered, err := util.ToRenderValues(c, vals, release, common.DefaultCapabilities)
	if err != nil {
		return nil, "", err
	}
	files, err := engine.Render(c, rendered)
	if err != nil {
		return nil, "", err
	}
	for path, text := range files {
		name := strings.TrimPrefix(path, "podgauge/templates/")
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
	slices.SortFunc(all, func(a, b chartObject) int {
		return cmp.Or(
			cmp.Compare(slices.Index(installOrder, a.Kind), slices.Index(installOrder, b.Kind)),
			cmp.Compare(a.Metadata.Name, b.Metadata.Name))
	})
	return all, notes, nil
}

// splitObjects finds the objects in what a template made.
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
			return nil, errors.New("is no object")
		}
		all = append(all, d)
	}
	return all, nil
}

// joinObjects is a file of objects.
func joinObjects(all []chartObject) []byte {
	var b bytes.Buffer
	for _, d := range all {
		fmt.Fprintf(&b, "---\n# %s\n%s", d.template, d.text)
	}
	return b.Bytes()
}

// renderedCache are the documents that were rendered before, by what was given: most tests look at all cases.
var renderedCache sync.Map

// mustRender renders, or ends the test. Nobody changes what it returns.
func mustRender(t *testing.T, given ...string) []chartObject {
	t.Helper()
	key := strings.Join(given, "\n---\n")
	if all, is := renderedCache.Load(key); is {
		return all.([]chartObject)
	}
	all, _, err := renderChart(given...)
	if err != nil {
		t.Fatal(err)
	}
	renderedCache.Store(key, all)
	return all
}

// compareGolden holds a file against what should be in it, or writes it.
func compareGolden(t *testing.T, path string, want []byte) {
	t.Helper()
	if *update {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v; make golden writes it", err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s is not what is made; make golden writes it anew\n%s", path, firstDifference(string(got), string(want)))
	}
}

func firstDifference(got, want string) string {
	g, w := strings.Split(got, "\n"), strings.Split(want, "\n")
	for i := range min(len(g), len(w)) {
		if g[i] != w[i] {
			return fmt.Sprintf("line %d is  %s\nit would be %s", i+1, g[i], w[i])
		}
	}
	return fmt.Sprintf("it has %d lines, and would have %d", len(g), len(w))
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
