package dashboards

import (
	"bufio"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/common/model"

	"github.com/podgauge/podgauge/test/helpers/require"
)

const (
	fleetNodes    = 500
	fleetScrapes  = 10 * time.Second
	fleetDuration = 20 * time.Minute // as many samples as in an hour with the usual interval of 30 s
	fleetPodLife  = 10 * time.Minute
	// maxPanelTime limits the first view of a panel.
	maxPanelTime = 2 * time.Second
)

// TestFleet checks that a Prometheus with 500 nodes evaluates each group of rules within its interval, and returns each panel of the
// dashboards within two seconds.
func TestFleet(t *testing.T) {
	if os.Getenv("PODGAUGE_FLEET") == "" {
		t.Skip("only with make fleet-check")
	}
	dir := t.TempDir()
	f := &fleet{node: startNode(t, "", "fleet", "--mig-strategy=mixed", "--state-dir="+filepath.Join(dir, "state")), begun: time.Now()}
	f.node.waitForMetrics(t, `pod="mig-1"`, `reason="xid_79"`)
	nodes, exporters := f.serve(t)
	config := honoring
	config.scrapes, config.evaluations, config.rules = fleetScrapes, 30*time.Second, append(config.rules, jobsFile)
	writePrometheusConfig(t, dir, config, nodes, exporters)
	client, url := startPrometheus(t, dir, filepath.Join(dir, "data"))
	c := &dashboardRun{API: client, T: t, panelRange: panelRange{begin: time.Now(), scrapes: fleetScrapes}}

	slowest := map[string]float64{} // evaluation of a group
	for end := c.begin.Add(fleetDuration); time.Now().Before(end); sleepUntil(t.Context(), time.Now().Add(fleetScrapes)) {
		for group, seconds := range groupMetrics(url, "prometheus_rule_group_last_duration_seconds") {
			slowest[group] = max(slowest[group], seconds)
		}
	}
	c.end = time.Now()
	for group, missed := range groupMetrics(url, "prometheus_rule_group_iterations_missed_total") {
		if missed > 0 {
			t.Errorf("%s missed %g evaluations", group, missed)
		}
	}
	c.measure(url, slowest)
	c.measureHours(dir)
}

// measureHours measures the dashboard Reliability over six hours: a Prometheus with the recorded series that it reads, each with a sample a minute.
func (c *dashboardRun) measureHours(dir string) {
	file, data := filepath.Join(dir, "recorded.txt"), filepath.Join(dir, "hours")
	f, err := os.Create(file)
	require.NoError(c, err)
	text, begin := bufio.NewWriter(f), c.end.Add(-6*time.Hour).Truncate(time.Minute)
	series := 0
	for _, rule := range readRules(c.T, reliabilityFile) {
		if !strings.HasSuffix(rule.Record, "1m") || strings.HasPrefix(rule.Record, "device") {
			continue
		}
		found, _, _, err := c.Query(c.Context(), "max_over_time("+rule.Record+"[20m])", c.end)
		require.NoError(c, err)
		for _, s := range found.(model.Vector) {
			series++
			labels := strings.ReplaceAll(s.Metric.String(), `", `, `",`) // OpenMetrics has no spaces
			for at := begin; at.Before(c.end); at = at.Add(time.Minute) {
				fmt.Fprintf(text, "%s%s %v %d\n", rule.Record, labels, s.Value, at.Unix())
			}
		}
	}
	fmt.Fprintln(text, "# EOF")
	require.NoError(c, text.Flush())
	require.NoError(c, f.Close())
	output, err := exec.Command("promtool", "tsdb", "create-blocks-from", "openmetrics", "--quiet", file, data).CombinedOutput()
	if err != nil {
		c.Fatalf("promtool: %v\n%s", err, output)
	}
	require.NoError(c, os.WriteFile(filepath.Join(dir, "prometheus.yml"), nil, 0o600))
	client, _ := startPrometheus(c.T, dir, data)
	hours := &dashboardRun{API: client, T: c.T, panelRange: panelRange{begin: begin, end: c.end.Truncate(time.Minute), scrapes: time.Minute}}
	boards := readDashboards(c.T)
	isReliability := func(b *dashboardFile) bool { return strings.HasSuffix(b.Title, "Reliability") }
	times := hours.measureBoard(boards[slices.IndexFunc(boards, isReliability)])
	c.Logf("Reliability, six hours of %d recorded series: slowest %s, median %s", series, times[len(times)-1], times[len(times)/2])
}

// fleet serves the metrics of many nodes, derived from the current metrics of one simulated node.
type fleet struct {
	node  *simNode
	begun time.Time

	mu      sync.Mutex
	metrics string    // of the simulated node
	scraped time.Time // time of metrics
}

// serve starts the exporters of the nodes, and kube-state-metrics of a cluster. A node has an address of the loopback network.
func (f *fleet) serve(t *testing.T) (nodes []*simNode, exporters map[string]string) {
	t.Helper()
	listener, err := net.Listen("tcp", ":0")
	require.NoError(t, err)
	server := &httptest.Server{Listener: listener, Config: &http.Server{Handler: http.HandlerFunc(f.scrape)}}
	server.Start()
	t.Cleanup(server.Close)
	port := listener.Addr().(*net.TCPAddr).Port
	for i := range fleetNodes {
		address := fmt.Sprintf("127.1.%d.%d:%d", i/250, i%250, port)
		nodes = append(nodes, &simNode{name: fmt.Sprintf("node-%d", i), cluster: "east", address: address})
	}
	return nodes, map[string]string{"east": fmt.Sprintf("127.2.0.1:%d", port)}
}

func (f *fleet) scrape(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/plain; version=0.0.4")
	var tens, ones int
	if _, err := fmt.Sscanf(r.Host, "127.1.%d.%d", &tens, &ones); err != nil {
		phases := map[string]string{}
		for i := range fleetNodes {
			for pod := range podPhasesAt(f.node.script, time.Minute) {
				phases[pod+f.suffix(i)] = "Running"
			}
		}
		fmt.Fprint(w, kubeStateFamilies(phases))
		return
	}
	i := tens*250 + ones
	replacements := []string{`"GPU-0000`, fmt.Sprintf(`"GPU-%04x`, i), `"MIG-0000`, fmt.Sprintf(`"MIG-%04x`, i)}
	for pod := range podPhasesAt(f.node.script, time.Minute) {
		_, name, _ := strings.Cut(pod, "/")
		replacements = append(replacements, fmt.Sprintf("pod=%q", name), fmt.Sprintf("pod=%q", name+f.suffix(i)))
	}
	_, _ = strings.NewReplacer(replacements...).WriteString(w, f.nodeMetrics())
}

// suffix is the suffix of pods on a node. New pods replace them, at another time on each node.
func (f *fleet) suffix(node int) string {
	age := time.Since(f.begun) + fleetPodLife*time.Duration(node)/fleetNodes
	return fmt.Sprintf("-%d-%d", node, age/fleetPodLife)
}

// nodeMetrics returns the metrics of the simulated node, at most a second old.
func (f *fleet) nodeMetrics() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if time.Since(f.scraped) > time.Second {
		f.metrics, f.scraped = fetch("http://"+f.node.address+"/metrics"), time.Now()
	}
	return f.metrics
}

var groupPattern = regexp.MustCompile(`(?m)^(\w+)\{rule_group="[^;]*;([^"]+)"\} (\S+)$`)

// groupMetrics returns a metric of Prometheus for each group of rules.
func groupMetrics(url, name string) map[string]float64 {
	found := map[string]float64{}
	for _, m := range groupPattern.FindAllStringSubmatch(fetch(url+"/metrics"), -1) {
		if m[1] == name {
			found[m[2]], _ = strconv.ParseFloat(m[3], 64)
		}
	}
	return found
}

// metric returns the sum of a metric of Prometheus over its labels.
func metric(url, name string) (sum float64) {
	for line := range strings.Lines(fetch(url + "/metrics")) {
		series, text, _ := strings.Cut(strings.TrimSpace(line), " ")
		if family, _, _ := strings.Cut(series, "{"); family == name {
			value, _ := strconv.ParseFloat(text, 64)
			sum += value
		}
	}
	return sum
}

// measure logs the usage of Prometheus and the times of rules and dashboards.
func (c *dashboardRun) measure(url string, slowest map[string]float64) {
	series, samples := metric(url, "prometheus_tsdb_head_series"), metric(url, "prometheus_tsdb_head_samples_appended_total")
	memory, cpu := metric(url, "process_resident_memory_bytes"), metric(url, "process_cpu_seconds_total")
	c.Logf("%d processors; %.0f series, ended ones included; %.0f million samples", runtime.NumCPU(), series, samples/1e6)
	c.Logf("resident memory %.1f GB, %.1f kB for each series; CPU time %.1f µs for each sample, rules included", memory/1e9, memory/series/1e3, 1e6*cpu/samples)
	if series < fleetNodes*700 {
		c.Errorf("got %g series, want at least 700 for each node", series)
	}
	intervals := groupMetrics(url, "prometheus_rule_group_interval_seconds")
	for _, group := range slices.Sorted(maps.Keys(intervals)) {
		if slowest[group] == 0 || slowest[group] > intervals[group] {
			c.Errorf("%s takes %.1f s, want at most its interval of %g s", group, slowest[group], intervals[group])
		}
		c.Logf("%s, every %g s: slowest evaluation %.2f s", group, intervals[group], slowest[group])
	}
	for _, board := range readDashboards(c.T) {
		times := c.measureBoard(board)
		c.Logf("%s: %d queries of the first view: slowest %s, median %s", board.Title, len(times), times[len(times)-1], times[len(times)/2])
	}
}

// measureBoard returns the sorted times of a dashboard's queries with the initial values of its variables.
func (c *dashboardRun) measureBoard(b *dashboardFile) (times []time.Duration) {
	values := variableValues{}
	for _, v := range b.Templating.List {
		if v.Type == "textbox" {
			values[v.Name] = price
		}
		if v.Type != "query" {
			continue
		}
		found := c.labelValues(b, v, values)
		if len(found) == 0 {
			c.Errorf("%s: $%s has no values", b.Name, v.Name)
			continue
		}
		if !v.All {
			found = found[:1]
		}
		values[v.Name] = v.allValue(found)
	}
	for _, q := range b.queries() {
		begun := time.Now()
		expr, err := c.expandVariables(q.Expr, values)
		if err != nil {
			c.Fatalf("%s: %v", q.location, err)
		}
		if q.Instant {
			c.countAt(expr, c.end)
		} else {
			c.countOverRange(expr)
		}
		times = append(times, time.Since(begun))
		if last := times[len(times)-1]; last > maxPanelTime {
			c.Errorf("%s: %s, want at most %s", q.location, last, maxPanelTime)
		}
	}
	slices.Sort(times)
	return times
}
