package openmetrics

import (
	"log/slog"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/alertmanager/alert"
	amcommon "github.com/prometheus/alertmanager/config/common"
	"github.com/prometheus/alertmanager/eventrecorder"
	"github.com/prometheus/alertmanager/inhibit"
	amlabels "github.com/prometheus/alertmanager/pkg/labels"
	"github.com/prometheus/alertmanager/provider/mem"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
	"go.yaml.in/yaml/v3"

	"github.com/podgauge/podgauge/test/helpers/expect"
	"github.com/podgauge/podgauge/test/helpers/require"
	"github.com/podgauge/podgauge/test/helpers/testfile"
)

const (
	runbooks   = "../../../docs/runbooks"
	runbookURL = "https://github.com/podgauge/podgauge/blob/main/docs/runbooks/"
)

// placeholder matches the placeholders of a runbook: uuid="UUID".
var placeholder = regexp.MustCompile(`="[A-Z]+"`)

// familyPattern matches names of families in a text.
var familyPattern = regexp.MustCompile(`\b(nvidia_gpu|podgauge)_[a-z0-9_]+`)

// recordedPattern matches names of recorded series.
var recordedPattern = regexp.MustCompile(`\b(device|gpu|node|namespace|workload)\w*:\w+:\w+`)

// missingFrom returns the wanted texts that are missing in another list.
func missingFrom(wanted, list []string) []string {
	var missing []string
	for _, w := range wanted {
		if !slices.Contains(list, w) {
			missing = append(missing, w)
		}
	}
	return missing
}

// filesOf returns the files of a pattern.
func filesOf(t *testing.T, pattern string) []string {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) == 0 {
		t.Fatalf("no files %s: %v", pattern, err)
	}
	return files
}

// parseExpr parses a query.
func parseExpr(t *testing.T, text string) parser.Expr {
	t.Helper()
	expr, err := promQL.ParseExpr(text)
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return expr
}

// nodesOf returns the nodes of a type in an expression, outer nodes first.
func nodesOf[T parser.Node](expr parser.Expr) (found []T) {
	parser.Inspect(expr, func(n parser.Node, _ []parser.Node) error {
		if node, ok := n.(T); ok {
			found = append(found, node)
		}
		return nil
	})
	return found
}

// listedLabelValues returns the label values in docs/reference/metrics.md, by family and label.
func listedLabelValues(t *testing.T) map[string][]string {
	t.Helper()
	all := map[string][]string{}
	for _, f := range documentedFamilies(t) {
		for label, values := range f.values {
			all[f.name+" "+label] = values
		}
	}
	if !slices.Contains(all["nvidia_gpu_throttle_active reason"], "hw_power_brake") {
		t.Fatalf("docs/reference/metrics.md: wrong label values: %v", all)
	}
	return all
}

// unknownAlternatives returns the alternatives of an expression's matchers that are not listed values.
func unknownAlternatives(all map[string][]string, expr parser.Expr) (wrong []string) {
	for _, s := range nodesOf[*parser.VectorSelector](expr) {
		for _, m := range s.LabelMatchers {
			if values := all[s.Name+" "+m.Name]; values != nil && m.Value != "" {
				wrong = append(wrong, missingFrom(strings.Split(m.Value, "|"), values)...)
			}
		}
	}
	return wrong
}

// TestAlerts checks that each alert uses documented families, and has a severity, a summary with its labels, a description and a runbook.
func TestAlerts(t *testing.T) {
	all := readCatalogue(t)
	alerts := map[string]rulefmt.Rule{}
	for _, r := range alertRules(t) {
		if _, ok := alerts[r.Alert]; ok {
			t.Errorf("duplicate alert %s", r.Alert)
		}
		alerts[r.Alert] = r
		expr := parseExpr(t, r.Expr)
		if _, wrong := all.checkExpr(r.Expr); len(wrong) > 0 {
			t.Errorf("%s does not match docs/reference/metrics.md: %q", r.Alert, wrong)
		}
		for _, wrong := range unknownAlternatives(listedLabelValues(t), expr) {
			t.Errorf("%s matches %s, which docs/reference/metrics.md does not list", r.Alert, wrong)
		}
		if !slices.Contains([]string{"critical", "warning", "info"}, r.Labels["severity"]) {
			t.Errorf("%s has severity %q", r.Alert, r.Labels["severity"])
		}
		if r.Annotations["description"] == "" {
			t.Errorf("%s has no description", r.Alert)
		}
		expect.Equal(t, r.Annotations["runbook_url"], runbookURL+r.Alert+".md", "runbook of", r.Alert)
		for _, text := range r.Annotations {
			checkFamiliesExist(t, all, r.Alert, text)
		}
		for _, without := range dropsCluster(expr) {
			t.Errorf("%s drops the label cluster: %s", r.Alert, without)
		}
		for _, l := range requiredSummaryLabels(expr) {
			if !regexp.MustCompile(`\$labels\.` + l + `\b`).MatchString(r.Annotations["summary"]) {
				t.Errorf("the summary of %s lacks the label %s", r.Alert, l)
			}
		}
	}
	if len(alerts) < 20 {
		t.Errorf("got %d alerts, want at least 20", len(alerts))
	}
	checkRunbooks(t, all, alerts)
}

// dropsCluster returns the aggregations and joins of an expression without the label cluster. absent() has no labels.
func dropsCluster(expr parser.Expr) (drop []string) {
	for _, a := range nodesOf[*parser.AggregateExpr](expr) {
		if a.Without || !slices.Contains(a.Grouping, "cluster") {
			drop = append(drop, a.String())
		}
	}
	for _, e := range nodesOf[*parser.BinaryExpr](expr) {
		if m := e.VectorMatching; m != nil && m.On && !slices.Contains(m.MatchingLabels, "cluster") {
			drop = append(drop, e.String())
		}
	}
	return drop
}

// joinsClusters returns the joins of an expression without the label cluster.
func joinsClusters(expr parser.Expr) (wrong []string) {
	for _, e := range nodesOf[*parser.BinaryExpr](expr) {
		if m := e.VectorMatching; m != nil && len(m.MatchingLabels) > 0 && !slices.Contains(m.MatchingLabels, "cluster") {
			wrong = append(wrong, e.String())
		}
	}
	return wrong
}

// requiredSummaryLabels returns the labels that an alert's summary must contain: the location and the pod.
func requiredSummaryLabels(expr parser.Expr) (required []string) {
	aggregations := nodesOf[*parser.AggregateExpr](expr)
	if len(aggregations) == 0 {
		return nil
	}
	for _, l := range aggregations[0].Grouping {
		if slices.Contains([]string{"node", "gpu", "namespace", "pod"}, l) {
			required = append(required, l)
		}
	}
	return required
}

// checkRunbooks checks that each alert has a runbook, and each runbook an alert.
func checkRunbooks(t *testing.T, all familyCatalogue, alerts map[string]rulefmt.Rule) {
	t.Helper()
	written := map[string]bool{}
	for _, file := range filesOf(t, runbooks+"/*.md") {
		text := testfile.Read(t, file)
		checkFamiliesExist(t, all, file, text)
		checkRunbookQueries(t, all, file, text)
		checkRunbookSets(t, file, text)
		checkRunbookDefaults(t, file, text)
		name := strings.TrimSuffix(filepath.Base(file), ".md")
		if name == "rma" {
			continue
		}
		rule, ok := alerts[name]
		if !ok {
			t.Errorf("%s: unknown alert", file)
		}
		written[name] = true
		checkRunbookForm(t, file, text, rule)
	}
	for name := range alerts {
		if !written[name] {
			t.Errorf("%s has no runbook", name)
		}
	}
}

// firstBlock matches a title followed by a block of shell commands.
var firstBlock = regexp.MustCompile("(?s)^# (\\w+)\n\n```sh\n(.*?)\n```\n\n## ")

// hardwareAlert matches the names of alerts after which a GPU may be replaced.
var hardwareAlert = regexp.MustCompile(`Device(Flapping|Missing|StuckRecovering|Unhealthy)$|GpuMissing|GpuLost|HardwareXid|Nvlink|Pcie` +
	`|RecoveryAction|RepairPending|RowRemap|Sram|Ecc|UnrepairableMemory|CollectionStalled`)

// checkRunbookForm checks the commands at the beginning of a runbook, and the sections. The commands find the pod of the alert's node.
func checkRunbookForm(t *testing.T, file, text string, rule rulefmt.Rule) {
	t.Helper()
	begin := firstBlock.FindStringSubmatch(text)
	if begin == nil || begin[1] != rule.Alert || !regexp.MustCompile(`(?m)^kubectl `).MatchString(begin[2]) {
		t.Fatalf("%s does not begin with its title and a block of kubectl commands", file)
	}
	hasNode := strings.Contains(rule.Annotations["summary"], "$labels.node")
	if hasNode && (!strings.Contains(begin[2], "NODE=") || !strings.Contains(begin[2], "spec.nodeName=$NODE")) {
		t.Errorf("the commands of %s do not find the pod of the node", file)
	}
	sections := []string{"Meaning", "Action", "When it is over"}
	if hardwareAlert.MatchString(rule.Alert) {
		sections = []string{"Meaning", "Collect evidence for an RMA", "Action", "When it is over"}
		if !strings.Contains(text, "](rma.md)") {
			t.Errorf("%s does not link rma.md", file)
		}
	}
	var got []string
	for _, heading := range regexp.MustCompile(`(?m)^## (.*)$`).FindAllStringSubmatch(text, -1) {
		got = append(got, heading[1])
	}
	expect.EqualSlices(t, got, sections, "sections of", file)
	if _, action, _ := strings.Cut(text, "\n## Action\n"); !regexp.MustCompile(`^\n(1\. |\||Follow the label)`).MatchString(action) {
		t.Errorf("the action of %s begins with neither a step nor a table", file)
	}
}

// checkRunbookQueries checks that the queries of a runbook are PromQL over existing families and labels.
func checkRunbookQueries(t *testing.T, all familyCatalogue, file, text string) {
	t.Helper()
	for _, block := range regexp.MustCompile("(?s)```promql\n(.*?)```").FindAllStringSubmatch(text, -1) {
		for query := range strings.Lines(block[1]) {
			if _, wrong := all.checkExpr(placeholder.ReplaceAllString(strings.TrimSpace(query), `=~".+"`)); len(wrong) > 0 {
				t.Errorf("%s: %q: %q", file, query, wrong)
			}
		}
	}
}

// checkRunbookSets checks that a runbook names the flag for each family that the default set lacks.
func checkRunbookSets(t *testing.T, file, text string) {
	t.Helper()
	exported := defaultSet(t)
	for _, f := range documentedFamilies(t) {
		if exported[f.name] != nil || !regexp.MustCompile(`\b`+f.name+`\b`).MatchString(text) {
			continue
		}
		if !strings.Contains(text, "`"+f.name+"` requires `--metrics.set=full`") && !strings.Contains(text, "`--metrics.nvlink-links` adds") {
			t.Errorf("%s names %s without its flag", file, f.name)
		}
	}
}

// checkRunbookDefaults checks that each query of a runbook works with the default set and values, or that the text between the query and the next
// heading names what the query needs.
func checkRunbookDefaults(t *testing.T, file, text string) {
	t.Helper()
	exported := defaultSet(t)
	listed := listedLabelValues(t)
	for _, block := range regexp.MustCompile("(?s)```promql\n(.*?)```(.*?)(\n## |$)").FindAllStringSubmatch(text, -1) {
		for query := range strings.Lines(block[1]) {
			for _, s := range selectors(t, placeholder.ReplaceAllString(query, `=~".+"`)) {
				need := ""
				switch name := regexp.MustCompile(`_(bucket|sum|count)$`).ReplaceAllString(s.Name, ""); {
				case strings.HasPrefix(s.Name, "kube_"):
					need = "kube-state-metrics"
				case s.Name == "up" || strings.Contains(s.Name, ":"): // by Prometheus, or recorded
				case strings.HasPrefix(s.Name, "podgauge_kube_"): // by podgauge-kube
				case !selectsExported(s, exported[name], listed) && !selectsExported(s, exported[s.Name], listed):
					need = "`" + s.Name + "` requires `--metrics.set=full`"
				case strings.HasPrefix(s.Name, "nvidia_gpu_container_") || strings.HasPrefix(s.Name, "nvidia_gpu_unattributed_"):
					need = "`processes.enabled=true`"
				}
				if strings.HasPrefix(s.Name, "nvidia_gpu_nvlink_link_") || s.Name == "nvidia_gpu_nvlink_up" {
					need = "`--metrics.nvlink-links`"
				}
				if !strings.Contains(strings.ReplaceAll(block[2], "\n", " "), need) {
					t.Errorf("%s: the text after %q lacks %q", file, strings.TrimSpace(query), need)
				}
			}
		}
	}
}

// defaultSet returns the label values of the default set by family; an empty value stands for all.
func defaultSet(t *testing.T) map[string][]string {
	t.Helper()
	exported := map[string][]string{}
	for _, f := range documentedFamilies(t) {
		listed := slices.Concat(slices.Collect(maps.Values(f.values))...)
		for _, set := range f.sets {
			_, values, _ := strings.Cut(set, ": ")
			excluded, isExcluded := strings.CutPrefix(values, "not ")
			switch {
			case set == "full":
			case isExcluded:
				exported[f.name] = slices.DeleteFunc(listed, func(value string) bool { return value == excluded })
			default:
				exported[f.name] = append(exported[f.name], strings.Split(values, ", ")...)
			}
		}
	}
	return exported
}

// selectsExported reports whether a selector selects a family, or one of its rows with these label values.
func selectsExported(s *parser.VectorSelector, values []string, listed map[string][]string) bool {
	return slices.ContainsFunc(values, func(value string) bool {
		return value == "" || !slices.ContainsFunc(s.LabelMatchers, func(m *labels.Matcher) bool {
			return slices.Contains(listed[s.Name+" "+m.Name], value) && !m.Matches(value)
		})
	})
}

// checkFamiliesExist checks that the families in a text exist.
func checkFamiliesExist(t *testing.T, all familyCatalogue, name, text string) {
	t.Helper()
	for _, f := range append(recordedPattern.FindAllString(text, -1), familyPattern.FindAllString(recordedPattern.ReplaceAllString(text, ""), -1)...) {
		if _, ok := all[f]; !ok {
			t.Errorf("%s names %s, which docs/reference/metrics.md lacks", name, f)
		}
	}
}

// TestXids checks that the alerts on Xids match the classes in docs/reference/xids.md.
func TestXids(t *testing.T) {
	classes := map[string]string{} // by Xid
	for _, x := range regexp.MustCompile("(?m)^\\|(\\d+)\\|[^|]*\\|[^|]*\\|`(\\w+)`\\|").FindAllStringSubmatch(testfile.Read(t, "../../../docs/reference/xids.md"), -1) {
		classes[x[1]] = x[2]
	}
	if len(classes) < 80 {
		t.Fatalf("docs/reference/xids.md has %d Xids", len(classes))
	}
	matchers := map[string][]*labels.Matcher{} // of counted Xids or reasons, by alert
	for _, r := range alertRules(t) {
		for _, s := range nodesOf[*parser.VectorSelector](parseExpr(t, r.Expr)) {
			for _, m := range s.LabelMatchers {
				if counted := r.Alert != "PodgaugeXidStorm" || s.Name == "nvidia_gpu_xid_errors_total"; counted && (m.Name == "xid" || m.Name == "reason") {
					matchers[r.Alert] = append(matchers[r.Alert], m)
				}
			}
		}
	}
	matches := func(alert, value string) bool {
		return slices.ContainsFunc(matchers[alert], func(m *labels.Matcher) bool { return m.Matches(value) })
	}
	for xid, class := range classes {
		hardware := class != "application" && class != "information"
		if got := matches("PodgaugeHardwareXid", xid); got != hardware {
			t.Errorf("PodgaugeHardwareXid, Xid %s of the class %s: matches is %v", xid, class, got)
		}
		if got := matches("PodgaugeXidStorm", xid); got == hardware {
			t.Errorf("PodgaugeXidStorm, Xid %s of the class %s: matches is %v", xid, class, got)
		}
		if got := matches("PodgaugeGpuLost", "xid_"+xid); got != (class == "fallen") {
			t.Errorf("PodgaugeGpuLost, Xid %s of the class %s: matches is %v", xid, class, got)
		}
	}
}

const (
	inhibitionFile = "../../../deploy/alertmanager/podgauge.inhibit.yaml"
	xid79File      = "../../../deploy/rules/podgauge-xid79_test.yaml"
	xid79Duration  = 100 * time.Minute
)

// TestXid79RaisesOnePage evaluates all alerts from an Xid 79 to the GPU's recovery with Alertmanager's inhibitor. It checks that a single
// alert is not muted while the GPU is lost, that there is a single page, and no notification about the GPU's pod.
func TestXid79RaisesOnePage(t *testing.T) {
	rules := inhibitionRules(t)
	pages, all := map[string]bool{}, map[string]bool{}
	for minute, firing := range firingAlerts(t, readRuleTests(t, xid79File).Tests[0], xid79Duration) {
		var notified []string
		for _, a := range unmuted(t, rules, firing) {
			notified = append(notified, alertName(a))
			if a["severity"] == "critical" {
				pages[a.String()] = true
			}
		}
		isLost := slices.ContainsFunc(firing, func(a model.LabelSet) bool { return alertName(a) == "PodgaugeGpuLost" })
		if isLost && !slices.Equal(notified, []string{"PodgaugeGpuLost"}) {
			t.Errorf("minute %d: got notifications %q, want only PodgaugeGpuLost", minute, notified)
		}
		if slices.Contains(notified, "PodgaugePodFailedOnUnhealthyDevice") {
			t.Errorf("minute %d: got a notification about the pod of the lost GPU", minute)
		}
		for _, a := range firing {
			all[alertName(a)] = true
		}
	}
	if len(pages) != 1 {
		t.Errorf("got pages %q, want one", slices.Sorted(maps.Keys(pages)))
	}
	// The fault causes all these alerts.
	for _, name := range []string{"DeviceUnhealthy", "FabricNotReady", "HardwareXid", "NvlinkDown", "PodFailedOnUnhealthyDevice", "RecoveryActionNeeded", "UnhealthyDeviceAllocated"} {
		if !all["Podgauge"+name] {
			t.Errorf("Podgauge%s does not fire, so its inhibition is not tested", name)
		}
	}
}

// TestFleetFaultRaisesOnePage checks that two nodes without a driver or podgauge, of four, raise a single page, and so do three lost GPUs.
func TestFleetFaultRaisesOnePage(t *testing.T) {
	fires := map[string][]string{
		"PodgaugeFleetUnhealthy by nodes":     {"PodgaugeDown", "PodgaugeDriverDown"},
		"PodgaugeFleetUnhealthy by lost GPUs": {"PodgaugeGpuLost"},
	}
	for _, test := range readRuleTests(t, "../../../deploy/rules/podgauge-health_test.yaml").Tests {
		others, ok := fires[test.Name]
		if !ok {
			continue
		}
		delete(fires, test.Name)
		t.Run(test.Name, func(t *testing.T) {
			pages, all := map[string]bool{}, map[string]bool{}
			for _, firing := range firingAlerts(t, test, 55*time.Minute) {
				for _, a := range unmuted(t, inhibitionRules(t), firing) {
					if a["severity"] == "critical" {
						pages[alertName(a)] = true
					}
				}
				for _, a := range firing {
					all[alertName(a)] = true
				}
			}
			expect.EqualSlices(t, slices.Sorted(maps.Keys(pages)), []string{"PodgaugeFleetUnhealthy"})
			for _, name := range others {
				if !all[name] {
					t.Errorf("got alerts %q, want %s", slices.Sorted(maps.Keys(all)), name)
				}
			}
		})
	}
	if len(fires) > 0 {
		t.Errorf("no tests %q", slices.Sorted(maps.Keys(fires)))
	}
}

// TestInhibitionNames checks that the inhibition rules name existing alerts, and that only a page mutes a page.
func TestInhibitionNames(t *testing.T) {
	severities := map[string]string{}
	for _, r := range alertRules(t) {
		severities[r.Alert] = r.Labels["severity"]
	}
	for i, rule := range inhibitionRules(t) {
		sources, targets := matchingNames(rule.SourceMatchers, severities), matchingNames(rule.TargetMatchers, severities)
		if len(sources) == 0 || len(targets) == 0 {
			t.Errorf("rule %d: sources %q, targets %q", i, sources, targets)
		}
		for _, m := range append(slices.Clone(rule.SourceMatchers), rule.TargetMatchers...) {
			for _, name := range strings.FieldsFunc(m.Value, func(r rune) bool { return strings.ContainsRune("()|", r) }) {
				name = "Podgauge" + strings.TrimPrefix(name, "Podgauge")
				if severities[name] == "" && !strings.HasSuffix(name, "+") && name != "Podgauge" {
					t.Errorf("rule %d: unknown alert %s", i, name)
				}
			}
		}
		for _, source := range sources {
			for _, target := range targets {
				if severities[target] == "critical" && severities[source] != "critical" {
					t.Errorf("rule %d: %s mutes the page %s", i, source, target)
				}
			}
		}
	}
}

// matchingNames returns the alerts that matchers select by name.
func matchingNames(matchers amcommon.Matchers, severities map[string]string) (names []string) {
	for name := range severities {
		if !slices.ContainsFunc(matchers, func(m *amlabels.Matcher) bool { return m.Name == "alertname" && !m.Matches(name) }) {
			names = append(names, name)
		}
	}
	return names
}

// inhibitionRules reads the rules with Alertmanager's parser.
func inhibitionRules(t *testing.T) []amcommon.InhibitRule {
	t.Helper()
	var file struct {
		InhibitRules []amcommon.InhibitRule `yaml:"inhibit_rules"`
	}
	if err := yaml.Unmarshal([]byte(testfile.Read(t, inhibitionFile)), &file); err != nil || len(file.InhibitRules) == 0 {
		t.Fatalf("%s: %d rules, %v", inhibitionFile, len(file.InhibitRules), err)
	}
	return file.InhibitRules
}

func alertName(a model.LabelSet) string { return string(a[model.AlertNameLabel]) }

// firingAlerts returns the firing alerts of each minute of the series of a test.
func firingAlerts(t *testing.T, test ruleTest, duration time.Duration) [][]model.LabelSet {
	t.Helper()
	minutes := make([][]model.LabelSet, duration/time.Minute+1)
	for minute, firing := range test.history(t).evaluate(t, append(recordingsOf(t, rulesFile), alertRules(t)...), time.Minute, duration) {
		for _, a := range firing {
			set := model.LabelSet{}
			for name, value := range a.Map() {
				set[model.LabelName(name)] = model.LabelValue(value)
			}
			minutes[minute] = append(minutes[minute], set)
		}
	}
	return minutes
}

// unmuted returns the alerts that Alertmanager's inhibitor does not mute.
func unmuted(t *testing.T, rules []amcommon.InhibitRule, firing []model.LabelSet) []model.LabelSet {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	alerts, err := mem.NewAlerts(t.Context(), time.Hour, 0, nil, log, eventrecorder.NopRecorder(), prometheus.NewRegistry(), nil)
	require.NoError(t, err)
	defer alerts.Close()
	now := time.Now()
	for _, a := range firing {
		one := &alert.Alert{Alert: model.Alert{Labels: a, StartsAt: now, EndsAt: now.Add(time.Hour)}, UpdatedAt: now}
		require.NoError(t, alerts.Put(t.Context(), one))
	}
	inhibitor := inhibit.NewInhibitor(alerts, rules, log, eventrecorder.NopRecorder())
	go inhibitor.Run()
	defer inhibitor.Stop()
	inhibitor.WaitForLoading()
	isMuted := func(a model.LabelSet) bool { return inhibitor.Mutes(t.Context(), a) }
	return slices.DeleteFunc(slices.Clone(firing), isMuted)
}
