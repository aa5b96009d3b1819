package dashboards

import (
	"bufio"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	prometheus "github.com/prometheus/client_golang/api/prometheus/v1"

	"github.com/podgauge/podgauge/dashboards"
	"github.com/podgauge/podgauge/test/helpers/program"
	"github.com/podgauge/podgauge/test/helpers/require"
)

// renamed is the prefix of a Prometheus that does not honor labels.
const renamed = "exported_"

// startOverriding starts a Prometheus with overrideHonorLabels, as OpenShift's user workload monitoring: the targets' labels name
// podgauge's own pod. Its rules have the prefix of the chart's value ownerLabelPrefix.
func (c *dashboardRun) startOverriding(nodes []*simNode, exporters map[string]string) prometheus.API {
	c.Helper()
	dir := c.TempDir()
	rules := []string{"../../../deploy/rules/podgauge.owner-labels.yaml"}
	for _, file := range honoring.rules {
		text, err := os.ReadFile(file)
		if err == nil {
			text, err = dashboards.Rules(text, renamed)
		}
		if err == nil {
			rules = append(rules, filepath.Join(dir, filepath.Base(file)))
			err = os.WriteFile(rules[len(rules)-1], text, 0o600)
		}
		require.NoError(c, err)
	}
	rules = append(rules, fasterJobRules(c.T, dir, renamed))
	writePrometheusConfig(c.T, dir, scrapeConfig{rules: rules, targetLabels: `, namespace: "gpu", pod: "podgauge-x", container: "podgauge"`}, nodes, exporters)
	client, _ := startPrometheus(c.T, dir, filepath.Join(dir, "data"))
	return client
}

// checkOwnerLabels checks that alerts and dashboards name the same owners in a Prometheus that does not honor labels.
func (c *dashboardRun) checkOwnerLabels(overriding prometheus.API) {
	files, err := dashboards.Files(renamed)
	require.NoError(c, err)
	other := &dashboardRun{API: overriding, T: c.T, panelRange: c.panelRange}
	var boards []*dashboardFile
	for _, b := range readDashboards(c.T) {
		changed := &dashboardFile{Name: b.Name}
		require.NoError(c, json.Unmarshal(files[b.Name+".json"], changed))
		boards = append(boards, changed)
		for i, q := range b.queries() {
			got, want := other.owners(changed, changed.queries()[i], renamed), c.owners(b, q, "")
			if !slices.Equal(got, want) && isComparable(q.Expr) {
				c.Errorf("%s: owners without honor_labels: got %q, want %q: %s", q.location, got, want, changed.queries()[i].Expr)
			}
		}
	}
	other.checkTables(boards)
	got, want, compared := other.alertOwners(renamed), c.alertOwners(""), 0
	for alert := range want {
		if got[alert] == "" { // the servers scrape at different times, and only the first one has backfilled series
			continue
		}
		if compared++; got[alert] != want[alert] {
			c.Errorf("%s without honor_labels: got %s, want %s", alert, got[alert], want[alert])
		}
	}
	if compared < 30 {
		c.Errorf("got %d alerts in both servers, want at least 30", compared)
	}
}

// isComparable reports whether both servers have the same series. Only the first one has the backfilled blocks, for queries that read more
// of the past than a run has. The servers evaluate the rules once a minute, at different times: values of a minute differ, and a node that has
// readings for half a minute may be used for one of them only.
func isComparable(expr string) bool {
	return !slices.ContainsFunc([]string{"30m", "1m{", "gpus_idle", "gpus_used"}, func(word string) bool { return strings.Contains(expr, word) })
}

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

func ownerOf(labels map[string]string, prefix string) string {
	return fmt.Sprintf("%s/%s/%s", labels[prefix+"namespace"], labels[prefix+"pod"], labels[prefix+"container"])
}

// alertOwners returns the owner and the summary of each active alert, by alert and device. The namespace of
// PodgaugeDaemonSetNotReady is the DaemonSet's in every server.
func (c *dashboardRun) alertOwners(prefix string) map[string]string {
	c.Helper()
	found := map[string]string{}
	for _, a := range c.alerts() {
		labels := map[string]string{}
		for label, value := range a.Labels {
			labels[string(label)] = string(value)
		}
		if owner := ownerOf(labels, prefix); labels["alertname"] != "PodgaugeDaemonSetNotReady" {
			key := fmt.Sprint(labels["alertname"], labels["node"], labels["uuid"], labels["mig_uuid"], labels["reason"], labels["resource"], labels["workload"], owner)
			found[key] = owner + ": " + string(a.Annotations["summary"])
		}
	}
	return found
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
	program.WaitUntil(t, "Prometheus has the owner", func() bool {
		found, _, _, err := client.Query(t.Context(), `nvidia_gpu_allocation_info{namespace!="",pod="notebook-0",container!="",node="node-a"}`, time.Now())
		return err == nil && found.String() != ""
	})
	found, _, _, err := client.Query(t.Context(), `{exported_pod!=""} or {exported_namespace!=""} or {exported_container!=""}`, time.Now())
	if err != nil || found.String() != "" {
		t.Errorf("renamed labels (%v): %s", err, found)
	}
}

// Some rules evaluate hours. promtool creates blocks for this time: constant series of a node's first scrape, except for the series of
// backfillRules.
const (
	backfillDuration = 3*time.Hour + 10*time.Minute
	backfillStep     = 2 * time.Minute
)

// backfillRule changes the past values of series with a prefix. The value is a function of the age.
type backfillRule struct {
	series string // prefix
	value  func(ago time.Duration) string
}

// lastGPU is the node's last whole GPU.
const lastGPU = "GPU-0000a106-5eed-4000-8000-000000000006"

// backfillRules are the past values for alerts that evaluate hours.
var backfillRules = []backfillRule{
	// PodgaugeDeviceFlapping: a device that recovered four times within three hours.
	{`nvidia_gpu_health_flaps_total{`, func(ago time.Duration) string {
		return fmt.Sprint(int((backfillDuration - ago) / (45 * time.Minute)))
	}},
}

// backfill creates blocks of a node's past in data.
func backfill(t *testing.T, dir, data string, n *simNode, scrape string, now time.Time) (samples int) {
	t.Helper()
	name := filepath.Join(dir, "past.txt")
	file, err := os.Create(name)
	require.NoError(t, err)
	defer file.Close()
	text := bufio.NewWriter(file)
	series := seriesOf(scrape, n)
	for ago := backfillDuration; ago > 0; ago -= backfillStep {
		for _, s := range series {
			fmt.Fprintf(text, "%s %s %d\n", s.name, s.value(ago), now.Add(-ago).Unix())
			samples++
		}
	}
	fmt.Fprintln(text, "# EOF")
	require.NoError(t, text.Flush())
	if out, err := exec.Command("promtool", "tsdb", "create-blocks-from", "openmetrics", name, data).CombinedOutput(); err != nil {
		t.Fatalf("promtool: %v\n%s", err, out)
	}
	return samples
}

// backfillSeries is a series of the past.
type backfillSeries struct {
	name, current string
	rule          *backfillRule
}

func (w backfillSeries) value(ago time.Duration) string {
	if w.rule == nil {
		return w.current
	}
	return w.rule.value(ago)
}

// seriesOf returns the series of a scrape with their target labels.
func seriesOf(scrape string, n *simNode) (all []backfillSeries) {
	for line := range strings.Lines(scrape) {
		end := strings.LastIndex(line, " ")
		if strings.HasPrefix(line, "#") || end < 0 {
			continue
		}
		name, value := withTargetLabels(line[:end], n), strings.TrimSpace(line[end:])
		all = append(all, backfillSeries{name, value, nil})
		for i := range backfillRules {
			p := &backfillRules[i]
			if strings.HasPrefix(line, p.series) && strings.Contains(line, `uuid="`+lastGPU+`"`) {
				all[len(all)-1].rule = p
			}
		}
	}
	return all
}

// withTargetLabels returns a series with the labels of its target.
func withTargetLabels(series string, n *simNode) string {
	target := fmt.Sprintf(`cluster=%q,node=%q,instance=%q,job="podgauge"`, n.cluster, n.name, n.address)
	name, labels, ok := strings.Cut(series, "{")
	if !ok {
		return name + "{" + target + "}"
	}
	return name + "{" + target + "," + labels
}
