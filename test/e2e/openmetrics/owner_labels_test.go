package openmetrics

import (
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/promql/parser"
)

// ownedFamilies returns the families with owner labels. Their series begin and end with pods.
func ownedFamilies(t *testing.T) map[string]bool {
	t.Helper()
	all := map[string]bool{"nvidia_gpu_healthy": true, "nvidia_gpu_allocated": true, "nvidia_gpu_unhealthy_info": true}
	for _, f := range documentedFamilies(t) {
		all[f.name] = all[f.name] || f.isReading && (f.kind == "gauge" || f.kind == "owner-counter")
	}
	if !all["nvidia_gpu_throttle_active"] || !all["nvidia_gpu_energy_joules_total"] || all["nvidia_gpu_pcie_replays_total"] || all["nvidia_gpu_pcie_link_width"] {
		t.Fatalf("docs/reference/metrics.md: wrong families: %v", all)
	}
	return all
}

// aggregationOf has the aggregation that combines a function's values of the owners to the value of the device. A mean has none,
// because it is a sum divided by a count.
var aggregationOf = map[string]parser.ItemType{
	"rate": parser.SUM, "irate": parser.SUM, "increase": parser.SUM, "sum_over_time": parser.SUM, "count_over_time": parser.SUM,
	"max_over_time": parser.MAX, "last_over_time": parser.MAX, "min_over_time": parser.MIN, "avg_over_time": -1,
}

// unaggregatedSelectors returns the range functions of an expression that are not combined over the owners of a device first.
func unaggregatedSelectors(families map[string]bool, text string) (wrong []string) {
	expr, err := promQL.ParseExpr(text)
	if err != nil {
		return []string{err.Error()}
	}
	parser.Inspect(expr, func(n parser.Node, path []parser.Node) error {
		selector, ok := n.(*parser.MatrixSelector)
		if !ok || !families[selector.VectorSelector.(*parser.VectorSelector).Name] {
			return nil
		}
		call := path[len(path)-1].(*parser.Call)
		for _, outer := range slices.Backward(path) {
			a, ok := outer.(*parser.AggregateExpr)
			if !ok || a.Op == parser.TOPK || a.Op == parser.BOTTOMK { // these keep each owner's series
				continue
			}
			if want, known := aggregationOf[call.Func.Name]; !a.Without && !slices.Contains(a.Grouping, "pod") && (!known || a.Op != want) {
				wrong = append(wrong, a.Op.String()+" over owners of "+call.String())
			}
			break
		}
		return nil
	})
	return wrong
}

// TestOwnersAreAggregatedFirst checks that alerts, recording rules and dashboards combine all owners of a device in a time range.
func TestOwnersAreAggregatedFirst(t *testing.T) {
	families := ownedFamilies(t)
	check := func(location, expr string) {
		for _, wrong := range unaggregatedSelectors(families, expr) {
			t.Errorf("%s: %s", location, wrong)
		}
	}
	for _, r := range alertRules(t) {
		check(r.Alert, r.Expr)
	}
	for _, r := range recordingRules(t) {
		check(r.Record, r.Expr)
	}
	for name, b := range readDashboards(t) {
		for _, q := range b.targets() {
			check(name+": "+q.title, strings.NewReplacer("$__range", "6h", "$__rate_interval", "2m", "$__interval", "1h", "$price_per_kwh", "1",
				"$price_per_gpu_hour", "1").Replace(q.Expr))
		}
	}
	const invalid = `max by (uuid) (rate(nvidia_gpu_throttle_seconds_total[10m])) > 0.1`
	if len(unaggregatedSelectors(families, invalid)) == 0 {
		t.Errorf("%s: got no error", invalid)
	}
}
