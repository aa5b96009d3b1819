package chart

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/chart/v2/util"
	core "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/podgauge/podgauge/dashboards"
	"github.com/podgauge/podgauge/test/helpers/expect"
	"github.com/podgauge/podgauge/test/helpers/require"
	"github.com/podgauge/podgauge/test/helpers/testfile"
)

var ruleFiles = []string{
	"podgauge.rules.yaml", "podgauge.recording.yaml", "podgauge.jobs.yaml", "podgauge.reliability.yaml", "podgauge.cost.yaml", "podgauge.profiling.yaml",
}

// chartCopies returns the chart's rules and dashboards: the repository's, with <owner> before the owner labels. The templates replace
// it by the value ownerLabelPrefix. Helm does not read files outside a chart's folder.
func chartCopies(t *testing.T) map[string]string {
	t.Helper()
	copies := map[string]string{"rules/podgauge.owner-labels.yaml": strings.ReplaceAll(testfile.Read(t, root+"/deploy/rules/podgauge.owner-labels.yaml"), "exported_", "<owner>")}
	for _, name := range ruleFiles {
		text, err := dashboards.Rules([]byte(testfile.Read(t, root+"/deploy/rules/"+name)), "<owner>")
		require.NoError(t, err)
		copies["rules/"+name] = string(text)
	}
	for name, text := range boardFiles(t, "<owner>") {
		copies["dashboards/"+name] = text
	}
	return copies
}

// TestCopies checks that the chart's rules and dashboards are up to date.
func TestCopies(t *testing.T) {
	want := chartCopies(t)
	for to, text := range want {
		testfile.CheckGolden(t, *update, chartDir+"/files/"+to, text)
	}
	files, err := filepath.Glob(chartDir + "/files/*/*")
	require.NoError(t, err)
	for _, path := range files {
		name := strings.TrimPrefix(path, chartDir+"/files/")
		if want[name] == "" {
			t.Errorf("%s has no source", path)
			if *update {
				os.Remove(path)
			}
		}
	}
}

// boardFiles returns the generated dashboards.
func boardFiles(t *testing.T, ownerLabelPrefix string) map[string]string {
	t.Helper()
	files, err := dashboards.Files(ownerLabelPrefix)
	require.NoError(t, err)
	texts := map[string]string{}
	for name, text := range files {
		texts[name] = string(text)
	}
	return texts
}

// TestDashboards checks that each dashboard is in a separate ConfigMap with the label for Grafana's sidecar.
func TestDashboards(t *testing.T) {
	found := map[string]string{}
	for _, m := range decodeAll[core.ConfigMap](t, mustRender(t, `dashboards: {enabled: true, namespace: grafana, labels: {grafana_dashboard: "yes"}}`)) {
		if m.Labels["grafana_dashboard"] != "yes" || m.Annotations["grafana_folder"] != "podgauge" || m.Namespace != "grafana" {
			t.Errorf("%s: got namespace %s, labels %v, annotations %v", m.Name, m.Namespace, m.Labels, m.Annotations)
		}
		for name, text := range m.Data {
			found[strings.TrimPrefix(name, "podgauge-")] = text
		}
		if size := len(mustJSON(t, m)); size > 256<<10 { // the limit of an annotation of kubectl apply
			t.Errorf("size of %s: got %d bytes", m.Name, size)
		}
	}
	for name := range boardFiles(t, "") {
		if canonicalJSON(t, found[name]) != canonicalJSON(t, testfile.Read(t, root+"/dashboards/"+name)) {
			t.Errorf("%s in the ConfigMap differs from the repository's", name)
		}
	}
}

// canonicalJSON returns a JSON text with sorted keys.
func canonicalJSON(t *testing.T, text string) string {
	t.Helper()
	var content any
	require.NoError(t, json.Unmarshal([]byte(text), &content))
	return string(mustJSON(t, content))
}

// TestRules checks that the PrometheusRules have all unchanged rules of the files, except disabled rules. The value cordoned enables the lines
// for kube-state-metrics.
func TestRules(t *testing.T) {
	const disabled, cordoned = "PodgaugeIdleDeviceAllocated", `prometheusRule: {enabled: true, cordoned: true}`
	rules := func(replace *strings.Replacer) map[string]string {
		all := map[string]string{}
		for _, name := range ruleFiles {
			var spec monitoring.PrometheusRuleSpec
			require.NoError(t, yaml.UnmarshalStrict([]byte(replace.Replace(testfile.Read(t, root+"/deploy/rules/"+name))), &spec))
			maps.Copy(all, rulesByName(spec))
		}
		return all
	}
	lacks := func(words ...string) func(string) bool {
		return func(rule string) bool {
			return !slices.ContainsFunc(words, func(word string) bool { return strings.Contains(rule, word) })
		}
	}
	const recording, jobs, reliability = "podgauge-recording ", "podgauge-jobs ", "podgauge-reliability "
	const cost, profiling = "podgauge-cost ", "podgauge-profiling "
	for values, isEnabled := range map[string]func(rule string) bool{
		`prometheusRule: {enabled: true}`: lacks(profiling),
		cordoned:                          lacks(profiling),
		`prometheusRule: {enabled: true, recording: false, jobs: false, profiling: true}`: lacks(recording, jobs),
		`prometheusRule: {enabled: true, cost: false}`:                                    lacks(profiling, cost),
		`prometheusRule: {enabled: true, reliability: false, profiling: true}`:            lacks(reliability),
		`prometheusRule: {enabled: true, alerts: {` + disabled + `: {enabled: false}}}`:   lacks(profiling, `"`+disabled+`"`),
	} {
		want := rules(strings.NewReplacer())
		if values == cordoned {
			want = rules(strings.NewReplacer("# kube-state-metrics: ", ""))
		}
		got := map[string]string{}
		for _, r := range decodeAll[monitoring.PrometheusRule](t, mustRender(t, values)) {
			maps.Copy(got, rulesByName(r.Spec))
		}
		for key, rule := range want {
			if enabled := isEnabled(key + rule); enabled != (got[key] == rule) {
				t.Errorf("%s: %s: want enabled: %v, got %q", values, key, enabled, got[key])
			}
			delete(got, key)
		}
		for key := range got {
			t.Errorf("%s: unexpected rule %s", values, key)
		}
	}
}

// ownerLabelName is an owner label without a prefix in PromQL: neither a variable nor the name of a series.
var ownerLabelName = regexp.MustCompile(`(?:^|[^$:\w])(namespace|pod|container)\b(?:[^:]|$)`)

// TestOwnerLabelPrefix checks that no rule and no panel reads an owner label without the prefix, except labels of kube-state-metrics.
func TestOwnerLabelPrefix(t *testing.T) {
	const values = `{ownerLabelPrefix: exported_, prometheusRule: {enabled: true, profiling: true}, dashboards: {enabled: true}}`
	plain, rules := 0, decodeAll[monitoring.PrometheusRule](t, mustRender(t, values))
	for _, r := range rules {
		for _, g := range r.Spec.Groups {
			for _, rule := range g.Rules {
				switch text := rule.Expr.String(); {
				case g.Name == "podgauge-owner-labels":
					plain++
				case rule.Alert == "PodgaugeDaemonSetNotReady":
				case ownerLabelName.MatchString(text) || strings.Contains(string(mustJSON(t, rule.Annotations)), "abels.pod"):
					t.Errorf("%s%s: %s %v", rule.Alert, rule.Record, text, rule.Annotations)
				}
			}
		}
	}
	if len(rules) != 7 || plain != 4 {
		t.Errorf("got %d PrometheusRules and %d series of kube-state-metrics, want 7 and 4", len(rules), plain)
	}
	panels := 0
	for _, m := range decodeAll[core.ConfigMap](t, mustRender(t, values)) {
		for name, text := range m.Data {
			for _, expr := range regexp.MustCompile(`"(?:expr|query|legendFormat)": "(.*)"`).FindAllStringSubmatch(text, -1) {
				panels++
				if ownerLabelName.MatchString(expr[1]) {
					t.Errorf("%s: %s", name, expr[1])
				}
			}
		}
	}
	if panels < 100 {
		t.Errorf("got %d queries and legends", panels)
	}
}

// TestJobLabel checks that the rules for jobs have the label of the value jobLabel.
func TestJobLabel(t *testing.T) {
	text := string(joinObjects(mustRender(t, `{prometheusRule: {enabled: true, jobLabel: example.com/my-run}}`)))
	if !strings.Contains(text, `"label_example_com_my_run"`) || strings.Contains(text, `"label_job"`) {
		t.Error("the rules lack the label of the value jobLabel")
	}
}

// TestCostValues checks the rules for prices and for labels of pods, which both sides of a join have.
func TestCostValues(t *testing.T) {
	const values = `{ownerLabelPrefix: exported_, prometheusRule: {enabled: true, costLabels: [label_team, label_app],
		prices: {NVIDIA H100 80GB HBM3: 2.5, 'a "quoted" model': 1}}}`
	got := map[string]string{}
	for _, r := range decodeAll[monitoring.PrometheusRule](t, mustRender(t, values)) {
		for _, g := range r.Spec.Groups {
			for _, rule := range g.Rules {
				got[rule.Record] += rule.Expr.String() + "\n"
			}
		}
	}
	expect.Equal(t, got["model:podgauge_gpu_price_per_hour:max"], `max by (cluster, model) (nvidia_gpu_info{model="NVIDIA H100 80GB HBM3"}) * 2.5
max by (cluster, model) (nvidia_gpu_info{model="a \"quoted\" model"}) * 1
`)
	expect.Contains(t, got["device_container_model:podgauge_gpus_allocated:max"], "\n* on (cluster, exported_namespace, exported_pod) "+
		"group_left (label_team, label_app) topk by (cluster, exported_pod, exported_namespace) (1, "+
		"max by (cluster, exported_namespace, label_team, label_app, exported_pod) (nvidia_gpu_allocation_info))")
	expect.Contains(t, got["namespace:podgauge_gpus_pending:sum"], "max by (cluster, exported_namespace, label_team, label_app, exported_pod) "+
		"(exported_kube_pod_labels or on")
	expect.Contains(t, got["namespace_model:podgauge_gpus_used:sum"], "sum by (cluster, exported_namespace, label_team, label_app, model) (")
	for record, expr := range got {
		if strings.Contains(expr, "LABELS") || strings.Contains(record, "gpus") && strings.Contains(expr, "# labels") {
			t.Errorf("%s: %s", record, expr)
		}
	}
}

// TestAlertSelectors checks that selectors of alerts have the names of the release.
func TestAlertSelectors(t *testing.T) {
	text := string(joinObjects(mustRender(t, `{fullnameOverride: gpus, nameOverride: gpu-metrics, prometheusRule: {enabled: true}}`)))
	for _, selector := range []string{`job=~".*gpu-metrics.*"`, `daemonset=~".*gpus.*"`} {
		if !strings.Contains(text, selector) {
			t.Errorf("no alert selects %s", selector)
		}
	}
}

// rulesByName returns the rules of a spec by group and name.
func rulesByName(spec monitoring.PrometheusRuleSpec) map[string]string {
	all := map[string]string{}
	for _, g := range spec.Groups {
		for _, r := range g.Rules {
			text, _ := json.Marshal(r)
			all[g.Name+" "+r.Alert+r.Record+r.Labels["pipe"]+r.Labels["evidence"]+r.Labels["reason"]] = string(text)
		}
	}
	return all
}

func mustJSON(t *testing.T, object any) []byte {
	t.Helper()
	text, err := json.Marshal(object)
	require.NoError(t, err)
	return text
}

// maxPackageSize limits the packed chart, in bytes. Helm stores the chart and its objects in a Secret, which is limited to 1 MiB.
const maxPackageSize = 256 << 10

// TestPackage checks that the packed chart is small, complete and without files for the repository only.
func TestPackage(t *testing.T) {
	c, err := loader.LoadDir(chartDir)
	require.NoError(t, err)
	path, err := util.Save(c, t.TempDir())
	require.NoError(t, err)
	info, err := os.Stat(path)
	require.NoError(t, err)
	if info.Size() > maxPackageSize {
		t.Errorf("size of the package: got %d bytes, want at most %d", info.Size(), maxPackageSize)
	}
	packed, err := loader.LoadFile(path)
	require.NoError(t, err)
	if len(packed.Schema) == 0 || len(packed.Templates) != len(c.Templates) {
		t.Errorf("templates in the package: got %d, want %d; schema: %d bytes", len(packed.Templates), len(c.Templates), len(packed.Schema))
	}
	names := map[string]bool{}
	for _, f := range packed.Raw {
		names[f.Name] = true
		if strings.HasPrefix(f.Name, "examples/") {
			t.Errorf("the package has %s", f.Name)
		}
	}
	for name := range chartCopies(t) {
		if !names["files/"+name] {
			t.Errorf("the package lacks files/%s", name)
		}
	}
}

// TestArtifactHub checks that Artifact Hub shows the images that the chart installs.
func TestArtifactHub(t *testing.T) {
	c, err := loader.LoadDir(chartDir)
	require.NoError(t, err)
	var images []struct{ Name, Image string }
	require.NoError(t, yaml.Unmarshal([]byte(c.Metadata.Annotations["artifacthub.io/images"]), &images))
	var got, want []string
	for _, image := range images {
		got = append(got, image.Image)
	}
	for _, values := range []any{c.Values["image"], c.Values["kubernetes"].(map[string]any)["image"]} {
		want = append(want, values.(map[string]any)["repository"].(string)+":"+c.Metadata.AppVersion)
	}
	expect.EqualSlices(t, got, want)
	expect.Equal(t, c.Metadata.AppVersion, "v"+c.Metadata.Version, "appVersion")
}
