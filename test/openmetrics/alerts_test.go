package openmetrics

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
)

const (
	runbooks   = "../../docs/runbooks"
	runbookURL = "https://github.com/podgauge/podgauge/blob/main/docs/runbooks/"
)

// listing is what docs/metrics.md says of one: its labels, and their values where it lists them.
type listing map[string][]string

// device are the labels of families of devices (docs/adr/0002), and target is what relabelling
// adds to all.
var (
	device = []string{"uuid", "gpu", "mig_uuid", "namespace", "pod", "container"}
	target = []string{"node"}
)

var (
	row    = regexp.MustCompile("(?m)^\\| `([a-z0-9_]+)`<br>.*$")
	quoted = regexp.MustCompile("`([a-z0-9_]+)`(?:: ([a-z0-9_, ]+))?")
	ours   = regexp.MustCompile(`\b(nvidia_gpu|podgauge)_[a-z0-9_]+`)
)

// listed reads docs/metrics.md.
func listed(t *testing.T) map[string]listing {
	t.Helper()
	all := map[string]listing{
		// kube-state-metrics' and Prometheus' own.
		"kube_pod_status_phase": {"namespace": nil, "pod": nil, "phase": {"Pending", "Running", "Succeeded", "Failed", "Unknown"}},
		"up":                    {"job": nil, "instance": nil},
	}
	for _, line := range row.FindAllStringSubmatch(read(t, "../../docs/metrics.md"), -1) {
		f := listing{}
		for _, l := range unlisted(line[1]) {
			f[l] = nil
		}
		for _, l := range quoted.FindAllStringSubmatch(strings.TrimSpace(strings.Split(line[0], "|")[4]), -1) {
			f[l[1]] = nil
			if l[2] != "" && !strings.Contains(l[2], " to ") {
				f[l[1]] = strings.Split(l[2], ", ")
			}
		}
		all[line[1]] = f
	}
	if len(all) < 120 || !slices.Contains(all["nvidia_gpu_throttle_active"]["reason"], "hw_power_brake") {
		t.Fatalf("docs/metrics.md is not read right: %d families, %v", len(all), all["nvidia_gpu_throttle_active"])
	}
	return all
}

// unlisted are the labels of a family that its row does not list.
func unlisted(name string) []string {
	switch {
	case name == "nvidia_gpu_allocation_info", name == "nvidia_gpu_allocation_last_seen_timestamp_seconds":
		return append(slices.Clone(target), "uuid", "mig_uuid", "namespace", "pod", "container")
	case name == "nvidia_gpu_info":
		return slices.Concat(target, device, []string{"model", "driver_version", "serial", "pci_bus_id"})
	case strings.HasPrefix(name, "nvidia_gpu_"):
		return slices.Concat(target, device)
	case strings.HasPrefix(name, "podgauge_container_"), name == "podgauge_resource_allocation_info", name == "podgauge_claim_info":
		return append(slices.Clone(target), "namespace", "pod", "container")
	}
	return target
}

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// unknown tells what an expression asks for that the catalogue does not have: a family, a label,
// or a value of a label that would be matched by nothing.
func unknown(all map[string]listing, expr parser.Expr) []string {
	var wrong []string
	parser.Inspect(expr, func(n parser.Node, _ []parser.Node) error {
		switch n := n.(type) {
		case *parser.VectorSelector:
			f, ok := all[n.Name]
			if !ok {
				wrong = append(wrong, "family "+n.Name)
				return nil
			}
			for _, m := range n.LabelMatchers {
				if m.Name != model.MetricNameLabel {
					wrong = append(wrong, f.misses(n.Name, m)...)
				}
			}
		case *parser.AggregateExpr:
			wrong = append(wrong, missing(n.Grouping, labelsOf(all, n.Expr))...)
		case *parser.BinaryExpr:
			if n.VectorMatching != nil {
				wrong = append(wrong, missing(n.VectorMatching.MatchingLabels, labelsOf(all, n.LHS))...)
				wrong = append(wrong, missing(n.VectorMatching.MatchingLabels, labelsOf(all, n.RHS))...)
			}
		}
		return nil
	})
	return wrong
}

// misses are the values for which a matcher asks and which there are not, or its label.
func (f listing) misses(name string, m *labels.Matcher) []string {
	values, ok := f[m.Name]
	switch {
	case !ok:
		return []string{"label " + m.Name + " of " + name}
	case values == nil || m.Value == "":
		return nil
	}
	return missing(strings.Split(m.Value, "|"), values)
}

// labelsOf are those that the series of an expression can have.
func labelsOf(all map[string]listing, expr parser.Expr) []string {
	var found []string
	parser.Inspect(expr, func(n parser.Node, _ []parser.Node) error {
		if s, ok := n.(*parser.VectorSelector); ok {
			for l := range all[s.Name] {
				found = append(found, l)
			}
		}
		return nil
	})
	return found
}

// missing are the wanted that are not had.
func missing(wanted, had []string) []string {
	var missing []string
	for _, w := range wanted {
		if !slices.Contains(had, w) {
			missing = append(missing, w)
		}
	}
	return missing
}

// TestUnknown: what the test of the rules is to find, it finds.
func TestUnknown(t *testing.T) {
	all := listed(t)
	for text, want := range map[string]int{
		`max by (node, uuid) (nvidia_gpu_healthy) == 0`:                   0,
		`max by (gpu) (nvidia_gpu_allocation_info)`:                       1,
		`max by (pod) (podgauge_container_exclusive_cpus)`:                0,
		`nvidia_gpu_helthy == 0`:                                          1,
		`nvidia_gpu_healthy{uid="GPU-1"} == 0`:                            1,
		`max by (uid) (nvidia_gpu_healthy)`:                               1,
		`nvidia_gpu_throttle_active{reason=~"hw_thermal|thermall"} == 1`:  1,
		`podgauge_nvml_up and on (uuid) nvidia_gpu_up`:                    1,
		`podgauge_nvml_up{gpu="1"} or nvidia_gpu_up{state="completed"}`:   2,
		`nvidia_gpu_fabric_state{state!="completed",node="a"} unless upp`: 1,
	} {
		expr, err := parser.NewParser(parser.Options{}).ParseExpr(text)
		if err != nil {
			t.Fatal(err)
		}
		if got := unknown(all, expr); len(got) != want {
			t.Errorf("%s: %q, want %d", text, got, want)
		}
	}
}

// TestAlerts: each alert says what the catalogue has, how bad it is, where, and what to do.
func TestAlerts(t *testing.T) {
	all := listed(t)
	named := map[string]bool{}
	for _, r := range alerts(t) {
		if named[r.Alert] {
			t.Errorf("%s is there twice", r.Alert)
		}
		named[r.Alert] = true
		expr, err := parser.NewParser(parser.Options{}).ParseExpr(r.Expr)
		if err != nil {
			t.Fatal(err)
		}
		if wrong := unknown(all, expr); len(wrong) > 0 {
			t.Errorf("%s asks for what docs/metrics.md does not have: %q", r.Alert, wrong)
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
			asksForKnown(t, all, r.Alert, text)
		}
		for _, l := range missing(toldBy(expr), labelsIn(r.Annotations["summary"])) {
			t.Errorf("the summary of %s does not name its %s", r.Alert, l)
		}
	}
	if len(named) < 20 {
		t.Errorf("%d alerts", len(named))
	}
	pages(t, all, named)
}

// toldBy are the labels of an alert that its summary has to name: where it is, and whose.
func toldBy(expr parser.Expr) []string {
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

// pages checks that each alert has a runbook, and each runbook an alert.
func pages(t *testing.T, all map[string]listing, named map[string]bool) {
	t.Helper()
	files, err := filepath.Glob(runbooks + "/*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".md")
		if !named[name] {
			t.Errorf("%s is the runbook of no alert", file)
		}
		delete(named, name)
		text := read(t, file)
		asksForKnown(t, all, file, text)
		queries(t, all, file, text)
		for _, part := range []string{"# " + name + "\n", "\n## Look\n", "\n## Do\n", "\n## Harmless when\n"} {
			if !strings.Contains(text, part) {
				t.Errorf("%s lacks %q", file, part)
			}
		}
	}
	for name := range named {
		t.Errorf("%s has no runbook", name)
	}
}

// queries checks that what a runbook has in its blocks of code, commands apart, is PromQL over
// what there is.
func queries(t *testing.T, all map[string]listing, file, text string) {
	t.Helper()
	for line := range strings.Lines(text) {
		query, ok := strings.CutPrefix(line, "    ")
		if !ok || strings.HasPrefix(query, "podgauge ") || strings.HasPrefix(query, "kubectl ") {
			continue
		}
		expr, err := parser.NewParser(parser.Options{}).ParseExpr(query)
		if err != nil {
			t.Errorf("%s: %q: %v", file, query, err)
			continue
		}
		if wrong := unknown(all, expr); len(wrong) > 0 {
			t.Errorf("%s asks for what docs/metrics.md does not have: %q", file, wrong)
		}
	}
}

// asksForKnown checks the families that a text names.
func asksForKnown(t *testing.T, all map[string]listing, name, text string) {
	t.Helper()
	for _, f := range ours.FindAllString(text, -1) {
		if _, ok := all[f]; !ok {
			t.Errorf("%s names %s, which docs/metrics.md does not have", name, f)
		}
	}
}

// TestXids: the alerts on Xids take those that docs/xids.md has as their classes say.
func TestXids(t *testing.T) {
	classes := map[string]string{} // by Xid
	for _, x := range regexp.MustCompile("(?m)^\\| (\\d+) \\|[^|]*\\|[^|]*\\| `(\\w+)` \\|").FindAllStringSubmatch(read(t, "../../docs/xids.md"), -1) {
		classes[x[1]] = x[2]
	}
	if len(classes) < 80 {
		t.Fatalf("docs/xids.md has %d Xids", len(classes))
	}
	matchers := map[string]*labels.Matcher{} // by alert, the one on Xids or on reasons
	for _, r := range alerts(t) {
		expr, err := parser.NewParser(parser.Options{}).ParseExpr(r.Expr)
		if err != nil {
			t.Fatal(err)
		}
		parser.Inspect(expr, func(n parser.Node, _ []parser.Node) error {
			if s, ok := n.(*parser.VectorSelector); ok {
				for _, m := range s.LabelMatchers {
					if m.Name == "xid" || m.Name == "reason" {
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
