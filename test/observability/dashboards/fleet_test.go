package dashboards

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

var (
	fleetNodes   = flag.Int("nodes", 500, "nodes of the fleet, with 8 GPUs each")
	fleetHours   = flag.Int("hours", 6, "hours of series, and range of the dashboards")
	fleetCluster = flag.Bool("cluster", true, "also check a cluster of Thanos")
	keepFleet    = flag.Bool("keep", false, "keep the data, and reuse data with the same recording rules")
	writeFleet   = flag.Bool("write", false, "write the tables to docs/explanation/scale.md")
)

const (
	// envFleet is the folder of Thanos' program and of the data.
	envFleet = "PODGAUGE_FLEET"
	// maxPanelSeconds limits the first view of a panel.
	maxPanelSeconds = 2
	// feedWindow is the time of a request's samples. Prometheus accepts samples up to an hour older than its latest sample.
	feedWindow   = 30 * time.Minute
	fleetSeed    = 1
	ruleInterval = time.Minute
	ruleOffset   = 17300 * time.Millisecond // of the evaluations from the full minute
)

// fleetEnd is the time of the latest scrape. Prometheus cuts a block at this hour, so its head has two hours.
var fleetEnd = time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)

// fleetRun is a run of TestFleet.
type fleetRun struct {
	*testing.T
	panelRange
	*fleetModel
	dir     string // of the data
	steps   int
	engines []*fleetEngine
	fed     fedData
	rows    []fleetRow
}

// TestFleet checks that Prometheus and a cluster of Thanos return each panel of the dashboards within two seconds, with six hours of
// 500 nodes.
func TestFleet(t *testing.T) {
	programs := os.Getenv(envFleet)
	if programs == "" {
		t.Skip("only with make fleet-check")
	}
	duration := time.Duration(*fleetHours) * time.Hour
	c := &fleetRun{T: t, panelRange: panelRange{begin: fleetEnd.Add(-duration), end: fleetEnd, scrapes: fleetStep}, steps: int(duration/fleetStep) + 1}
	c.dir = filepath.Join(programs, fmt.Sprintf("data-%d-%d", *fleetNodes, *fleetHours))
	if !*keepFleet || c.readFed() != nil {
		c.fleetModel = c.newFleet(scrapeNode(t))
		c.mustDo(os.RemoveAll(c.dir))
		c.mustDo(os.MkdirAll(c.dir, 0o700))
	}
	if !*keepFleet {
		t.Cleanup(func() { os.RemoveAll(c.dir) })
	}
	c.engines = []*fleetEngine{newPrometheus(t, c.dir)}
	if *fleetCluster {
		c.engines = append(c.engines, newThanos(t, c.dir, filepath.Join(programs, "thanos")))
	}
	if c.fleetModel != nil {
		c.feed()
	}
	c.addFed()
	var results []map[string]fleetResult
	for _, e := range c.engines {
		results = append(results, c.measure(e))
		c.compare(e, results[0], results[len(results)-1])
	}
	c.report()
}

func (c *fleetRun) mustDo(err error) {
	c.Helper()
	if err != nil {
		c.Fatal(err)
	}
}

// fedData describes the data of the engines.
type fedData struct {
	Rules                 string // content of the recording rules
	Samples, Series, Pods int
}

const fedFile = "fed.json"

// readFed reads the description of existing data. It returns an error if the recording rules have changed.
func (c *fleetRun) readFed() error {
	text, err := os.ReadFile(filepath.Join(c.dir, fedFile))
	if err == nil {
		err = json.Unmarshal(text, &c.fed)
	}
	if rules := c.recordingRules(); err == nil && c.fed.Rules != rules {
		err = errors.New("other recording rules")
	}
	return err
}

func (c *fleetRun) recordingRules() string {
	c.Helper()
	rules, err := os.ReadFile(recordingsFile)
	c.mustDo(err)
	return string(rules)
}

// addFed adds the table rows about the data.
func (c *fleetRun) addFed() {
	for _, e := range c.engines {
		if c.fleetModel != nil {
			c.add(e, "resident memory after the writes", formatBytes(e.memory(c.T, "VmRSS")))
		}
		c.add(e, "samples; series; pods", fmt.Sprintf("%.1f million; %d; %d", float64(c.fed.Samples)/1e6, c.fed.Series, c.fed.Pods))
	}
}

// scrapeNode scrapes the simulated node.
func scrapeNode(t *testing.T) (n nodeScrapes) {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "fleet.script")
	if err := os.WriteFile(file, []byte(fleetScript), 0o600); err != nil {
		t.Fatal(err)
	}
	node := &simNode{name: "node", address: freeAddress(t)}
	node.testProgram = startProgram(t, node.name, "../../../bin/podgauge-sim", "--simulate=script:"+file, "--mig-strategy=mixed",
		"--state-dir="+filepath.Join(dir, "state"), "--web.listen-address="+node.address)
	waitUntil(t, "the node has its pods and incidents", func() bool {
		n.first = fetch("http://" + node.address + "/metrics")
		return strings.Count(n.first, "\nnvidia_gpu_allocation_info{") == fleetScriptPods && strings.Count(n.first, "\nnvidia_gpu_incidents_total{") == fleetScriptIncidents
	})
	begun := time.Now()
	sleepUntil(t.Context(), begun.Add(20*time.Second))
	n.second = fetch("http://" + node.address + "/metrics")
	n.interval = time.Since(begun)
	return n
}

func (c *fleetRun) newFleet(n nodeScrapes) *fleetModel {
	f, err := newFleetModel(n, fleetOptions{nodes: *fleetNodes, seed: fleetSeed, epoch: c.begin, steps: c.steps})
	if err != nil {
		c.Fatal(err)
	}
	return f
}

// feed sends the series and the results of the recording rules to the engines, window by window.
func (c *fleetRun) feed() {
	begun := time.Now()
	c.fed = fedData{Rules: c.recordingRules()}
	rules := newRecorder(c.T, c.begin, c.engines[0].url)
	window := int(feedWindow / fleetStep)
	for from := 0; from < c.steps; from += window {
		to := min(from+window, c.steps)
		c.feedWindow(from, to)
		c.fed.Samples += rules.record(from, to, c.writeURLs())
		c.Logf("%s: fed until %s; %d samples", time.Since(begun).Round(time.Second), c.begin.Add(time.Duration(to)*fleetStep).Format(time.TimeOnly), c.fed.Samples)
	}
	for i, rule := range rules.rules {
		if rules.samples[i] == 0 {
			c.Errorf("%s has no series", rule.Record)
		}
	}
	for _, n := range c.all {
		c.fed.Pods += len(n.pods)
	}
	c.fed.Series = int(c.engines[0].metric("prometheus_tsdb_head_series_created_total"))
	text, err := json.Marshal(c.fed)
	c.mustDo(err)
	c.mustDo(os.WriteFile(filepath.Join(c.dir, fedFile), text, 0o600))
}

// feedWindow sends the nodes' series of some steps, with a request for each node.
func (c *fleetRun) feedWindow(from, to int) {
	const workers = 4
	type result struct {
		samples int
		err     error
	}
	results := make(chan result)
	for worker := range workers {
		go func() {
			var r writeRequest
			var done result
			for node := worker; node < c.nodes && done.err == nil; node += workers {
				r.reset()
				c.write(&r, node, from, to)
				done.err = r.send(c.Context(), c.writeURLs()...)
				done.samples += r.sampleCount
			}
			results <- done
		}()
	}
	for range workers {
		done := <-results
		c.fed.Samples += done.samples
		if done.err != nil {
			c.Error(done.err)
		}
	}
	if c.Failed() {
		c.FailNow()
	}
}

func (c *fleetRun) writeURLs() (urls []string) {
	for _, e := range c.engines {
		urls = append(urls, e.writeURL)
	}
	return urls
}

// measure restarts an engine and measures all panels and rules.
func (c *fleetRun) measure(e *fleetEngine) map[string]fleetResult {
	e.settle(c.T, c.end)
	e.stop(c.T)
	disk, blocks, blockSamples := e.diskUsage(c.T)
	begun := time.Now()
	e.start(c.T)
	c.add(e, "restart until the first answer", fmt.Sprintf("%.0f s", time.Since(begun).Seconds()))
	c.add(e, "series in the head, ended ones included", fmt.Sprintf("%.0f", e.metric("prometheus_tsdb_head_series")))
	c.add(e, "on disk, with the write-ahead log", formatBytes(disk))
	if blockSamples > 0 {
		c.add(e, "bytes per sample in blocks, with the index", fmt.Sprintf("%.1f", blocks/blockSamples))
	}
	c.add(e, "resident memory after the restart; anonymous part", fmt.Sprintf("%s; %s", formatBytes(e.memory(c.T, "VmRSS")), formatBytes(e.memory(c.T, "RssAnon"))))
	e.resetPeak(c.T)
	results := map[string]fleetResult{}
	for _, b := range readDashboards(c.T) {
		c.measureBoard(e, b, results)
	}
	c.measureRules(e)
	c.add(e, "maximum resident memory during queries", formatBytes(e.memory(c.T, "VmHWM")))
	e.stop(c.T)
	return results
}

// measureBoard measures the first view of a dashboard: its variables, each panel, and all panels at once, as in a browser.
func (c *fleetRun) measureBoard(e *fleetEngine, b *dashboardFile, results map[string]fleetResult) {
	values, slowestVariable := c.firstView(e, b)
	var panels []float64
	var all []fleetQuery
	series := 0
	add := func(title string, queries []fleetQuery) {
		seconds := 0.0
		for _, q := range queries {
			a := e.query(c.T, q)
			seconds, series = seconds+a.seconds, series+len(a.series)
			results[q.location] = a
			c.Logf("%s: %5.2f s, %5d series: %s: %s", e.name, a.seconds, len(a.series), q.location, q.expr)
		}
		if seconds > maxPanelSeconds {
			c.Errorf("%s: %s: %s: %.1f s, want at most %d", e.name, b.Name, title, seconds, maxPanelSeconds)
		}
		panels, all = append(panels, seconds), append(all, queries...)
	}
	for _, p := range b.Panels {
		var queries []fleetQuery
		for _, t := range p.Targets {
			queries = append(queries, c.fill(t, b.Name+": "+p.Title+": "+t.RefID, p.Interval, values))
		}
		if len(queries) > 0 {
			add(p.Title, queries)
		}
	}
	for _, n := range b.Annotations.List {
		add("annotation "+n.Name, []fleetQuery{c.fill(n.Target, b.Name+": annotation "+n.Name, "", values)})
	}
	slices.Sort(panels)
	c.add(e, fmt.Sprintf("*%s*: panels; series; slowest, median; slowest variable", b.Title),
		fmt.Sprintf("%d; %d; %.2f s, %.2f s; %.2f s", len(panels), series, panels[len(panels)-1], panels[len(panels)/2], slowestVariable))
	c.add(e, fmt.Sprintf("*%s*: all panels, six queries at a time", b.Title), fmt.Sprintf("%.1f s", e.queryAll(c.T, all).Seconds()))
}
