// Package chart renders deploy/helm/podgauge with helm's engine, and compares the objects with Kubernetes' types, podgauge's flags, and
// the allowed privileges of podgauge's pod.
package chart

import (
	"bytes"
	"cmp"
	"errors"
	"flag"
	"fmt"
	"regexp"
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

// onlyComments matches a document without an object.
var onlyComments = regexp.MustCompile(`^(#[^\n]*\n?)*$`)

// splitObjects returns the objects in a rendered template.
func splitObjects(template, text string) (all []chartObject, err error) {
	for part := range strings.SplitSeq("\n"+text, "\n---\n") {
		part = strings.TrimSpace(part)
		if onlyComments.MatchString(part) {
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

// TestNotes checks what the notes after the installation say and omit for values.
func TestNotes(t *testing.T) {
	const open, status, doctor, metricSet = "Anyone may read", "-- podgauge status\n", "-- podgauge doctor\n", "metrics.set="
	for values, notes := range map[string]struct{ has, lacks []string }{
		``: {has: []string{
			open, status, doctor, "nvidia.com/gpu.present=true", "podMonitor.enabled=true", "Pod Security level: privileged",
			"all namespaces and addresses may connect to port 9400",
		}},
		`namespaceOverride: gpus`: {has: []string{"kubectl -n gpus rollout status daemonset/podgauge", "label namespace gpus pod-security"}},
		`{simulate: node, prometheusAnnotations: {enabled: true}, namespace: {create: true}}`: {lacks: []string{
			"gpu.present", "podMonitor", "pod-security.", "RuntimeClass", "honorLabels", doctor,
		}},
		`simulate: hardware`: {has: []string{doctor}},
		// The network, and who may read.
		`networkPolicy: {enabled: false}`: {has: []string{open}},
		`hostNetwork: true`:               {has: []string{open}},
		`networkPolicy: {from: [{podSelector: {}}]}`: {
			[]string{"NetworkPolicy: the peers in networkPolicy.from may connect to port 9400. Other inbound and all outbound connections are denied."},
			[]string{open},
		},
		`networkPolicy: {fromNamespaces: {a: b}}`: {
			[]string{"NetworkPolicy: pods of namespaces with the label a=b may connect to port 9400."}, []string{open},
		},
		`web: {metricsOnly: true}`: {
			[]string{"all namespaces and addresses may connect to port 9400, which serves only metrics."}, []string{open},
		},
		`networkPolicy: {egress: [{}]}`:                                 {has: []string{"denied, except those of networkPolicy.ingress and networkPolicy.egress."}},
		`kubernetes: {pods: true}`:                                      {[]string{"denied, except outbound to ports 443, 6443 of all addresses"}, []string{"deployment/", "Only RBAC"}},
		`kubernetes: {events: true}`:                                    {[]string{"outbound connections are denied.", "rollout status deployment/podgauge-kube"}, []string{"Only RBAC"}},
		`kubernetes: {events: true, admissionPolicy: {enabled: false}}`: {has: []string{"Only RBAC limits it"}},
		`{kubernetes: {pods: true}, networkPolicy: {apiServer: {cidrs: [10.0.0.1/32], ports: [16443]}}}`: {
			has: []string{"denied, except outbound to ports 16443 of 10.0.0.1/32."},
		},
		`{hostNetwork: true, metrics: {port: 9410}}`:                   {has: []string{"port 9410 of each node is open to all clients", status}},
		`serviceMonitor: {enabled: true, honorLabels: false}`:          {has: []string{"exported_pod"}},
		`{driver: {injection: host}, networkPolicy: {enabled: false}}`: {has: []string{"The container is privileged, too"}},
		// A metric set that is too small for the installed alerts or dashboards.
		`{metrics: {set: minimal}, prometheusRule: {enabled: true}}`: {has: []string{metricSet}},
		`{metrics: {set: none}, dashboards: {enabled: true}}`:        {has: []string{metricSet}},
		`{metrics: {set: minimal}}`:                                  {lacks: []string{metricSet}},
		`{metrics: {set: full}, prometheusRule: {enabled: true}}`:    {lacks: []string{metricSet}},
		`{prometheusRule: {enabled: true}}`:                          {lacks: []string{metricSet}},
		// Without the state folder there is no socket, and the network requires a password, or lacks the API.
		`webConfig: {existingSecret: a}`:                                         {[]string{status}, []string{open}},
		`webConfig: {content: {tls_server_config: {cert_file: a, key_file: b}}}`: {has: []string{status}},
		`{state: {enabled: false}, web: {metricsOnly: false}}`:                   {has: []string{status}},
		`{state: {enabled: false}, webConfig: {existingSecret: a}}`:              {lacks: []string{"podgauge status"}},
		`{state: {enabled: false}, web: {metricsOnly: true}}`:                    {lacks: []string{"podgauge status"}},
	} {
		_, text, err := renderChart(values)
		require.NoError(t, err)
		for _, want := range notes.has {
			if !strings.Contains(text, want) {
				t.Errorf("%s: the notes lack %q:\n%s", values, want, text)
			}
		}
		for _, unwanted := range notes.lacks {
			if strings.Contains(text, unwanted) {
				t.Errorf("%s: the notes contain %q:\n%s", values, unwanted, text)
			}
		}
	}
}
