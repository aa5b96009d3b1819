package dashboards

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"math"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// fleetEngine is a set of programs that store series and serve queries.
type fleetEngine struct {
	name      string
	clocked   bool   // the head is cut by the wall clock
	title     string // in the table
	writeURL  string
	url       string // of queries
	data      []string
	receivers []string // URLs of the programs that store series
	commands  [][]string
	processes []*testProgram
}

// fleetExitTimeout bounds the end of a program with the fleet in memory.
const fleetExitTimeout = 5 * time.Minute

func newPrometheus(t *testing.T, dir string) *fleetEngine {
	t.Helper()
	address, data, config := freeAddress(t), filepath.Join(dir, "prometheus"), filepath.Join(dir, "prometheus.yml")
	if err := os.WriteFile(config, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	e := &fleetEngine{name: "Prometheus", title: "Prometheus 2.42", url: "http://" + address, writeURL: "http://" + address + "/api/v1/write", data: []string{data}}
	e.receivers = []string{e.url}
	e.commands = [][]string{{
		"prometheus", "--config.file=" + config, "--storage.tsdb.path=" + data, "--web.listen-address=" + address,
		"--web.enable-remote-write-receiver", "--log.level=warn",
	}}
	e.start(t)
	return e
}

// newThanos starts two receivers with the series distributed among them, and a querier.
func newThanos(t *testing.T, dir, program string) *fleetEngine {
	t.Helper()
	query := freeAddress(t)
	e := &fleetEngine{name: "Thanos", clocked: true, title: "Thanos 0.42, two receivers", url: "http://" + query}
	ring := filepath.Join(dir, "hashring.json")
	var endpoints []string
	arguments := []string{program, "query", "--http-address=" + query, "--grpc-address=" + freeAddress(t), "--query.replica-label=receive", "--log.level=warn"}
	for i := range 2 {
		grpc, web, write := freeAddress(t), freeAddress(t), freeAddress(t)
		data := filepath.Join(dir, fmt.Sprintf("thanos-%d", i))
		endpoints = append(endpoints, grpc)
		arguments = append(arguments, "--endpoint="+grpc)
		e.data, e.receivers, e.writeURL = append(e.data, data), append(e.receivers, "http://"+web), "http://"+write+"/api/v1/receive"
		e.commands = append(e.commands, []string{
			program, "receive", "--tsdb.path=" + data, "--grpc-address=" + grpc, "--http-address=" + web, "--remote-write.address=" + write,
			"--receive.hashrings-file=" + ring, "--receive.local-endpoint=" + grpc, fmt.Sprintf(`--label=receive="%d"`, i),
			"--receive.capnproto-address=" + freeAddress(t), "--tsdb.retention=100y", "--log.level=warn",
		})
	}
	e.commands = append(e.commands, arguments)
	text, err := json.Marshal([]map[string]any{{"endpoints": endpoints}})
	if err == nil {
		err = os.WriteFile(ring, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	e.start(t)
	return e
}

// start starts the programs and waits until they are ready for queries.
func (e *fleetEngine) start(t *testing.T) {
	t.Helper()
	e.processes = nil
	for _, command := range e.commands {
		p := startProgram(t, e.name, command[0], command[1:]...)
		p.timeout = fleetExitTimeout
		e.processes = append(e.processes, p)
	}
	e.waitReady(t)
}

func (e *fleetEngine) waitReady(t *testing.T) {
	t.Helper()
	for _, url := range append(e.receivers, e.url) {
		for end := time.Now().Add(fleetExitTimeout); fetch(url+"/-/ready") == ""; sleepUntil(t.Context(), time.Now().Add(200*time.Millisecond)) {
			if time.Now().After(end) || e.exited() {
				t.Fatalf("%s exited, or is not ready within %s", e.name, fleetExitTimeout)
			}
		}
	}
	if e.url != e.receivers[0] {
		waitUntil(t, e.name+" is connected to its stores", func() bool {
			return strings.Count(fetch(e.url+"/api/v1/stores"), `"lastError":null`) == len(e.receivers)
		})
	}
}

// exited reports whether a program has exited.
func (e *fleetEngine) exited() bool {
	return slices.ContainsFunc(e.processes, func(p *testProgram) bool {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.Process.Pid))
		return err != nil || strings.Contains(string(text), ") Z ")
	})
}

func (e *fleetEngine) stop(t *testing.T) {
	t.Helper()
	for i := range e.processes {
		if err := e.processes[len(e.processes)-1-i].stop(); err != nil {
			t.Errorf("%s: %v", e.name, err)
		}
	}
}

// memory returns the sum of a line of /proc/PID/status over the programs, in bytes.
func (e *fleetEngine) memory(t *testing.T, line string) (bytes float64) {
	t.Helper()
	for _, p := range e.processes {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.Process.Pid))
		if err != nil {
			t.Fatal(err)
		}
		kB, err := strconv.ParseFloat(regexp.MustCompile(line + `:\s+(\d+) kB`).FindStringSubmatch(string(text))[1], 64)
		if err != nil {
			t.Fatal(err)
		}
		bytes += 1024 * kB
	}
	return bytes
}

// resetPeak resets VmHWM to the current memory.
func (e *fleetEngine) resetPeak(t *testing.T) {
	t.Helper()
	for _, p := range e.processes {
		if err := os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", p.Process.Pid), []byte("5"), 0); err != nil {
			t.Fatal(err)
		}
	}
}

// metric returns the sum of a metric over the programs that store series.
func (e *fleetEngine) metric(name string) (sum float64) {
	for _, url := range e.receivers {
		for line := range strings.Lines(fetch(url + "/metrics")) {
			if strings.HasPrefix(line, name+" ") || strings.HasPrefix(line, name+"{") {
				value, _ := strconv.ParseFloat(strings.TrimSpace(line[strings.LastIndex(line, " ")+1:]), 64)
				sum += value
			}
		}
	}
	return sum
}

// settle waits until the head has at most three hours. Thanos cuts the head by the wall clock, so that its head has all hours.
func (e *fleetEngine) settle(t *testing.T, end time.Time) {
	t.Helper()
	if e.clocked {
		return
	}
	deadline := time.Now().Add(fleetExitTimeout)
	for int64(e.metric("prometheus_tsdb_head_min_time")) < end.Add(-3*time.Hour).UnixMilli() {
		if time.Now().After(deadline) {
			t.Fatalf("timeout: %s does not write its blocks", e.name)
		}
		sleepUntil(t.Context(), time.Now().Add(time.Second))
	}
}

// diskUsage returns the size of all files, the size of the files in blocks, and the number of samples in blocks.
func (e *fleetEngine) diskUsage(t *testing.T) (all, blocks, blockSamples float64) {
	t.Helper()
	for _, dir := range e.data {
		err := filepath.WalkDir(dir, func(file string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() {
				return err
			}
			info, err := entry.Info()
			if err != nil {
				return err
			}
			all += float64(info.Size())
			if !strings.Contains(file, "/wal/") && !strings.Contains(file, "/chunks_head/") {
				blocks += float64(info.Size())
			}
			if entry.Name() == "meta.json" {
				blockSamples += samplesOfBlock(t, file)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return all, blocks, blockSamples
}

func samplesOfBlock(t *testing.T, file string) float64 {
	t.Helper()
	text, err := os.ReadFile(file)
	var meta struct{ Stats struct{ NumSamples float64 } }
	if err == nil {
		err = json.Unmarshal(text, &meta)
	}
	if err != nil {
		t.Fatal(err)
	}
	return meta.Stats.NumSamples
}

// fleetQuery is a query with its range.
type fleetQuery struct {
	panelRange
	location, expr string
	instant        bool
}

// fleetResult is the result of a query, and its duration.
type fleetResult struct {
	fleetQuery
	seconds float64
	series  map[string]fleetSeries
}

// fleetSeries is the number of samples of a series, and the sum of their values.
type fleetSeries struct {
	samples int
	sum     float64
}

// query runs a query as Grafana does, and reads the whole response.
func (e *fleetEngine) query(t *testing.T, q fleetQuery) fleetResult {
	t.Helper()
	path, form := "/api/v1/query", url.Values{"query": {q.expr}, "time": {formatTime(q.end)}}
	if !q.instant {
		step := q.interval().Truncate(time.Second)
		path, form = "/api/v1/query_range", url.Values{"query": {q.expr}, "start": {formatTime(q.begin)}, "end": {formatTime(q.end)}, "step": {strconv.Itoa(int(step.Seconds()))}}
	}
	a := fleetResult{fleetQuery: q}
	begun := time.Now()
	text, err := post(t.Context(), e.url+path, form)
	a.seconds = time.Since(begun).Seconds()
	if err == nil {
		a.series, err = parseResponse(text)
	}
	if err != nil {
		t.Errorf("%s: %s: %s: %v", e.name, q.location, q.expr, err)
	}
	return a
}

func formatTime(at time.Time) string { return strconv.FormatInt(at.Unix(), 10) }

func post(ctx context.Context, url string, form url.Values) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(form.Encode()))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", response.Status, tail(string(text), 500))
	}
	return text, err
}

// engineLabels are labels that Thanos adds.
var engineLabels = []string{"tenant_id", "receive"}

// parseResponse returns the series of a response by their labels.
func parseResponse(text []byte) (map[string]fleetSeries, error) {
	var response struct {
		Warnings []string
		Data     struct {
			ResultType string
			Result     json.RawMessage
		}
	}
	if err := json.Unmarshal(text, &response); err != nil {
		return nil, err
	}
	if len(response.Warnings) > 0 {
		return nil, fmt.Errorf("%q", response.Warnings)
	}
	var result []struct {
		Metric map[string]string
		Value  [2]any
		Values [][2]any
	}
	if response.Data.ResultType != "scalar" {
		if err := json.Unmarshal(response.Data.Result, &result); err != nil {
			return nil, err
		}
	}
	all := map[string]fleetSeries{}
	for _, s := range result {
		for _, name := range engineLabels {
			delete(s.Metric, name)
		}
		var series fleetSeries
		for _, v := range append(s.Values, s.Value) {
			if text, ok := v[1].(string); ok {
				value, err := strconv.ParseFloat(text, 64)
				if err != nil {
					return nil, err
				}
				series.samples++
				if !math.IsNaN(value) && !math.IsInf(value, 0) {
					series.sum += value
				}
			}
		}
		all[labelsKey(s.Metric)] = series
	}
	return all, nil
}

func labelsKey(labels map[string]string) string {
	var all []string
	for name, value := range labels {
		all = append(all, name+"="+strconv.Quote(value))
	}
	slices.Sort(all)
	return strings.Join(all, ",")
}

// queryAll runs six queries at a time, as a browser does, and returns the total time.
func (e *fleetEngine) queryAll(t *testing.T, queries []fleetQuery) time.Duration {
	const connections = 6
	begun := time.Now()
	next := make(chan fleetQuery)
	var group sync.WaitGroup
	for range connections {
		group.Go(func() {
			for q := range next {
				e.query(t, q)
			}
		})
	}
	for _, q := range queries {
		next <- q
	}
	close(next)
	group.Wait()
	return time.Since(begun)
}
