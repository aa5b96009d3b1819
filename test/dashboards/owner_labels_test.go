package dashboards

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/dashboards"
	prometheus "github.com/prometheus/client_golang/api/prometheus/v1"
)

// renamed is the prefix of a Prometheus that does not honor labels.
const renamed = "exported_"

// startOverriding starts a Prometheus with overrideHonorLabels, as OpenShift's user workload monitoring: the targets' labels name
// podgauge's own pod. Its rules have the prefix of the chart's value ownerLabelPrefix.
func (c *dashboardRun) startOverriding(nodes []*simNode, exporters map[string]string) prometheus.API {
	c.Helper()
	dir := c.TempDir()
	rules := []string{"../../deploy/rules/podgauge.owner-labels.yaml"}
	for _, file := range []string{rulesFile, recordingsFile} {
		text, err := os.ReadFile(file)
		if err == nil {
			text, err = dashboards.Rules(text, renamed)
		}
		if err == nil {
			rules = append(rules, filepath.Join(dir, filepath.Base(file)))
			err = os.WriteFile(rules[len(rules)-1], text, 0o600)
		}
		if err != nil {
			c.Fatal(err)
		}
	}
	writePrometheusConfig(c.T, dir, scrapeConfig{rules: rules, targetLabels: `, namespace: "gpu", pod: "podgauge-x", container: "podgauge"`}, nodes, exporters)
	client, _ := startPrometheus(c.T, dir, filepath.Join(dir, "data"))
	return client
}

// checkOwnerLabels checks that alerts and dashboards name the same owners in a Prometheus that does not honor labels.
func (c *dashboardRun) checkOwnerLabels(overriding prometheus.API) {
	files, err := dashboards.Files(renamed)
	if err != nil {
		c.Fatal(err)
	}
	other := &dashboardRun{API: overriding, T: c.T, panelRange: c.panelRange}
	var boards []*dashboardFile
	for _, b := range readDashboards(c.T) {
		changed := &dashboardFile{Name: b.Name}
		if err := json.Unmarshal(files[b.Name+".json"], changed); err != nil {
			c.Fatal(err)
		}
		boards = append(boards, changed)
		for i, q := range b.queries() {
			got, want := other.owners(changed, changed.queries()[i], renamed), c.owners(b, q, "")
			if !slices.Equal(got, want) && !hasBackfill(q.Expr) {
				c.Errorf("%s: owners without honor_labels: got %q, want %q: %s", q.location, got, want, changed.queries()[i].Expr)
			}
		}
	}
	other.checkTables(boards)
	if got, want := other.alertsOfOwners(renamed), c.alertsOfOwners(""); !slices.Equal(got, want) {
		c.Errorf("alerts without honor_labels: got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// hasBackfill reports whether a query reads more of the past than a run has. Only the first Prometheus has the backfilled blocks.
func hasBackfill(expr string) bool { return strings.Contains(expr, "30m") }

// owners returns the owners in the results of a query at the end of the run.
func (c *dashboardRun) owners(b *dashboardFile, q panelQuery, prefix string) []string {
	c.Helper()
	found := map[string]bool{}
	for _, s := range c.selections(b) {
		for _, r := range c.querySeries(q.Expr, s.all, c.end) {
			found[ownerOf(r.Labels, prefix)] = true
		}
	}
	return slices.Sorted(maps.Keys(found))
}

func ownerOf[T ~string](labels map[T]T, prefix string) string {
	return fmt.Sprintf("%s/%s/%s", labels[T(prefix+"namespace")], labels[T(prefix+"pod")], labels[T(prefix+"container")])
}

// incomparableAlerts differ between the Prometheus servers for another reason than owner labels.
var incomparableAlerts = map[string]bool{
	"PodgaugeDaemonSetNotReady": true, // namespace is the DaemonSet's in both
	"PodgaugeFleetUnhealthy":    true, // only the first one has the nodes of the past
	"PodgaugeNvlinkDown":        true, // only the first one has the links of the past
}

// alertsOfOwners returns the active alerts of the scripts, with node and owner.
func (c *dashboardRun) alertsOfOwners(prefix string) []string {
	c.Helper()
	found := map[string]bool{}
	for _, a := range c.alerts() {
		name, labels := string(a.Labels["alertname"]), map[string]string{}
		for label, value := range a.Labels {
			labels[string(label)] = string(value)
		}
		if expectedAlerts(c.T)[name].cause == causeScript && !incomparableAlerts[name] {
			found[fmt.Sprintf("%s %s %s %s", name, a.Labels["node"], ownerOf(labels, prefix), a.Annotations["summary"])] = true
		}
	}
	return slices.Sorted(maps.Keys(found))
}

// TestManagedCollection checks that Google's managed collection keeps the owner labels with the ClusterPodMonitoring of the example
// gke.yaml. The collector never honors labels; targetLabels without pod, container and namespace leaves nothing to override.
func TestManagedCollection(t *testing.T) {
	skipUnlessEnabled(t)
	dir := t.TempDir()
	node := startNode(t, "east", "node-a", "--mig-strategy=mixed", "--state-dir="+filepath.Join(dir, "a"))
	node.waitForMetrics(t, `pod="notebook-0"`)
	writePrometheusConfig(t, dir, scrapeConfig{}, []*simNode{node}, nil)
	client, _ := startPrometheus(t, dir, filepath.Join(dir, "data"))
	waitUntil(t, "Prometheus has the owner", func() bool {
		found, _, _, err := client.Query(t.Context(), `nvidia_gpu_allocation_info{namespace!="",pod="notebook-0",container!="",node="node-a"}`, time.Now())
		return err == nil && found.String() != ""
	})
	found, _, _, err := client.Query(t.Context(), `{exported_pod!=""} or {exported_namespace!=""} or {exported_container!=""}`, time.Now())
	if err != nil || found.String() != "" {
		t.Errorf("renamed labels (%v): %s", err, found)
	}
}
