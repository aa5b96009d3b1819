package openmetrics

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
)

const (
	runbooks   = "../../../docs/runbooks"
	runbookURL = "https://github.com/podgauge/podgauge/blob/main/docs/runbooks/"
)

// blank is what the reader of a runbook fills in: uuid="UUID".
var blank = regexp.MustCompile(`="[A-Z]+"`)

// familyPattern are families as a text names them.
var familyPattern = regexp.MustCompile(`\b(nvidia_gpu|podgauge)_[a-z0-9_]+`)

func readFile(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// missingFrom are the wanted that are not had.
func missingFrom(wanted, had []string) []string {
	var missing []string
	for _, w := range wanted {
		if !slices.Contains(had, w) {
			missing = append(missing, w)
		}
	}
	return missing
}

// listedLabelValues are the values of labels that docs/reference/metrics.md lists, by family and label.
func listedLabelValues(t *testing.T) map[string][]string {
	t.Helper()
	all := map[string][]string{}
	for line := range strings.Lines(readFile(t, "../../../docs/reference/metrics.md")) {
		name, _, ok := strings.Cut(strings.TrimPrefix(line, "|`"), "`<br>")
		if !ok {
			continue
		}
		for _, l := range regexp.MustCompile("`([a-z0-9_]+)`: ([a-z0-9_, ]+)").FindAllStringSubmatch(line, -1) {
			if l[1] != "link" {
				all[name+" "+l[1]] = strings.Split(strings.TrimSpace(l[2]), ", ")
			}
		}
	}
	if !slices.Contains(all["nvidia_gpu_throttle_active reason"], "hw_power_brake") {
		t.Fatalf("docs/reference/metrics.md is not read right: %v", all)
	}
	return all
}

// unknownAlternatives are the alternatives of an expression's matchers that are not among such values.
func unknownAlternatives(all map[string][]string, expr parser.Expr) []string {
	var wrong []string
	parser.Inspect(expr, func(n parser.Node, _ []parser.Node) error {
		s, ok := n.(*parser.VectorSelector)
		if !ok {
			return nil
		}
		for _, m := range s.LabelMatchers {
			if values := all[s.Name+" "+m.Name]; values != nil && m.Value != "" {
				wrong = append(wrong, missingFrom(strings.Split(m.Value, "|"), values)...)
			}
		}
		return nil
	})
	return wrong
}

// TestAlerts: each alert says what the catalogue has, how bad it is, where, and what to do.
func TestAlerts(t *testing.T) {
	all := readCatalogue(t)
	named := map[string]rulefmt.Rule{}
	for _, r := range alertRules(t) {
		if _, ok := named[r.Alert]; ok {
			t.Errorf("there are two alerts %s", r.Alert)
		}
		named[r.Alert] = r
		expr, err := parser.NewParser(parser.Options{}).ParseExpr(r.Expr)
		if err != nil {
			t.Fatal(err)
		}
		if _, wrong := all.checkExpr(r.Expr); len(wrong) > 0 {
			t.Errorf("%s asks for what docs/reference/metrics.md does not have: %q", r.Alert, wrong)
		}
		for _, wrong := range unknownAlternatives(listedLabelValues(t), expr) {
			t.Errorf("%s asks for %s, which docs/reference/metrics.md does not list", r.Alert, wrong)
		}
		if !slices.Contains([]string{"critical", "warning", "info"}, r.Labels["severity"]) {
			t.Errorf("%s has severity %q", r.Alert, r.Labels["severity"])
		}
		if r.Annotations["description"] == "" {
			t.Errorf("%s has no description", r.Alert)
		}
		if got, want := r.Annotations["runbook_url"], runbookURL+r.Alert+".md"; got != want {
			t.Errorf("%s has the runbook %q, want %q", r.Alert, got, want)
		}
		for _, text := range r.Annotations {
			checkFamiliesExist(t, all, r.Alert, text)
		}
		for _, without := range dropsCluster(expr) {
			t.Errorf("%s drops the label cluster: %s", r.Alert, without)
		}
		for _, l := range missingFrom(requiredSummaryLabels(expr), labelsIn(r.Annotations["summary"])) {
			t.Errorf("the summary of %s does not name its %s", r.Alert, l)
		}
	}
	if len(named) < 20 {
		t.Errorf("%d alerts", len(named))
	}
	checkRunbooks(t, all, named)
}

// dropsCluster returns the aggregations and joins of an expression that do not keep clusters apart. absent() has no labels.
func dropsCluster(expr parser.Expr) (drop []string) {
	parser.Inspect(expr, func(n parser.Node, _ []parser.Node) error {
		switch e := n.(type) {
		case *parser.AggregateExpr:
			if e.Without || !slices.Contains(e.Grouping, "cluster") {
				drop = append(drop, e.String())
			}
		case *parser.BinaryExpr:
			if e.VectorMatching != nil && e.VectorMatching.On && !slices.Contains(e.VectorMatching.MatchingLabels, "cluster") {
				drop = append(drop, e.String())
			}
		}
		return nil
	})
	return drop
}

// requiredSummaryLabels are the labels of an alert that its summary has to name: where it is, and whose.
func requiredSummaryLabels(expr parser.Expr) []string {
	var found []string
	parser.Inspect(expr, func(n parser.Node, _ []parser.Node) error {
		if a, ok := n.(*parser.AggregateExpr); ok && found == nil {
			found = a.Grouping
		}
		return nil
	})
	return slices.DeleteFunc(slices.Clone(found), func(l string) bool { return !slices.Contains([]string{"node", "gpu", "namespace", "pod"}, l) })
}

func labelsIn(text string) []string {
	var found []string
	for _, l := range regexp.MustCompile(`\$labels\.(\w+)`).FindAllStringSubmatch(text, -1) {
		found = append(found, l[1])
	}
	return found
}

// checkRunbooks checks that each alert has a runbook, and each runbook an alert.
func checkRunbooks(t *testing.T, all familyCatalogue, alerts map[string]rulefmt.Rule) {
	t.Helper()
	files, err := filepath.Glob(runbooks + "/*.md")
	if err != nil {
		t.Fatal(err)
	}
	written := map[string]bool{}
	for _, file := range files {
		text := readFile(t, file)
		checkFamiliesExist(t, all, file, text)
		checkRunbookQueries(t, all, file, text)
		checkRunbookSets(t, file, text)
		name := strings.TrimSuffix(filepath.Base(file), ".md")
		if name == "rma" {
			continue
		}
		rule, ok := alerts[name]
		if !ok {
			t.Errorf("%s is the runbook of no alert", file)
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

// firstBlock is a title and a block of shell commands directly below.
var firstBlock = regexp.MustCompile("(?s)^# (\\w+)\n\n```sh\n(.*?)\n```\n\n## ")

// hardwareAlert matches the names of alerts after which a GPU may be replaced.
var hardwareAlert = regexp.MustCompile(`Device(Flapping|Missing|StuckRecovering|Unhealthy)$|GpuMissing|GpuLost|HardwareXid|Nvlink|Pcie` +
	`|RecoveryAction|RepairPending|RowRemap|Sram|Ecc|UnrepairableMemory|CollectionStalled`)

// checkRunbookForm checks the commands that begin a runbook, and the sections. The commands find the pod of the alert's node.
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
		sections = []string{"Meaning", "Action", "Collect evidence for an RMA", "When it is over"}
		if !strings.Contains(text, "](rma.md)") {
			t.Errorf("%s does not link rma.md", file)
		}
	}
	var got []string
	for _, heading := range regexp.MustCompile(`(?m)^## (.*)$`).FindAllStringSubmatch(text, -1) {
		got = append(got, heading[1])
	}
	if !slices.Equal(got, sections) {
		t.Errorf("%s has the sections %q, want %q", file, got, sections)
	}
	if _, action, _ := strings.Cut(text, "\n## Action\n"); !regexp.MustCompile(`^\n(1\. |\||Follow the label)`).MatchString(action) {
		t.Errorf("the action of %s begins with neither a step nor a table", file)
	}
}

// checkRunbookQueries checks that the queries of a runbook are PromQL over existing families and labels.
func checkRunbookQueries(t *testing.T, all familyCatalogue, file, text string) {
	t.Helper()
	for _, block := range regexp.MustCompile("(?s)```promql\n(.*?)```").FindAllStringSubmatch(text, -1) {
		for query := range strings.Lines(block[1]) {
			if _, wrong := all.checkExpr(blank.ReplaceAllString(strings.TrimSpace(query), `=~".+"`)); len(wrong) > 0 {
				t.Errorf("%s: %q: %q", file, query, wrong)
			}
		}
	}
}

// checkRunbookSets checks that a runbook names the flag that exports a family, if the set default lacks the family.
func checkRunbookSets(t *testing.T, file, text string) {
	t.Helper()
	metrics := readFile(t, "../../../docs/reference/metrics.md")
	for _, name := range familyPattern.FindAllString(text, -1) {
		isFull := regexp.MustCompile("(?m)^\\|`" + name + "`<br>.*\\|full\\|$").MatchString(metrics)
		if isFull && !strings.Contains(text, "`"+name+"` requires `--metrics.set=full`") && !strings.Contains(text, "`--metrics.nvlink-links` adds") {
			t.Errorf("%s names %s without its flag", file, name)
		}
	}
}

// checkFamiliesExist checks the families that a text names.
func checkFamiliesExist(t *testing.T, all familyCatalogue, name, text string) {
	t.Helper()
	for _, f := range familyPattern.FindAllString(text, -1) {
		if _, ok := all[f]; !ok {
			t.Errorf("%s names %s, which docs/reference/metrics.md does not have", name, f)
		}
	}
}

// TestXids: the alerts on Xids take those that docs/reference/xids.md has as their classes say.
func TestXids(t *testing.T) {
	classes := map[string]string{} // by Xid
	for _, x := range regexp.MustCompile("(?m)^\\|(\\d+)\\|[^|]*\\|[^|]*\\|`(\\w+)`\\|").FindAllStringSubmatch(readFile(t, "../../../docs/reference/xids.md"), -1) {
		classes[x[1]] = x[2]
	}
	if len(classes) < 80 {
		t.Fatalf("docs/reference/xids.md has %d Xids", len(classes))
	}
	matchers := map[string]*labels.Matcher{} // by alert, the one on Xids or on reasons
	for _, r := range alertRules(t) {
		expr, err := parser.NewParser(parser.Options{}).ParseExpr(r.Expr)
		if err != nil {
			t.Fatal(err)
		}
		parser.Inspect(expr, func(n parser.Node, _ []parser.Node) error {
			if s, ok := n.(*parser.VectorSelector); ok {
				for _, m := range s.LabelMatchers {
					if m.Name == "xid" || m.Name == "reason" && matchers[r.Alert] == nil {
						matchers[r.Alert] = m
					}
				}
			}
			return nil
		})
	}
	for xid, class := range classes {
		hardware := class != "application" && class != "information"
		if got := matchers["PodgaugeHardwareXid"].Matches(xid); got != hardware {
			t.Errorf("PodgaugeHardwareXid takes Xid %s, of the class %s: %v", xid, class, got)
		}
		if got := matchers["PodgaugeXidStorm"].Matches(xid); got == hardware {
			t.Errorf("PodgaugeXidStorm takes Xid %s, of the class %s: %v", xid, class, got)
		}
		if got := matchers["PodgaugeGpuLost"].Matches("xid_" + xid); got != (class == "fallen") {
			t.Errorf("PodgaugeGpuLost takes Xid %s, of the class %s: %v", xid, class, got)
		}
	}
}
