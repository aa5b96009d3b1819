package main

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/cli"
	"github.com/podgauge/podgauge/test/helpers/require"
	"github.com/podgauge/podgauge/test/helpers/testfile"
	"github.com/prometheus/common/model"
)

// fakePrometheus responds to queries by the first family of the query.
type fakePrometheus struct {
	mu       sync.Mutex
	families map[string][]model.Sample
	queries  []string
	failing  string // part of queries that fail
}

// serve returns the URL of the server, which requires the user a with the password b.
func (p *fakePrometheus) serve(t *testing.T) (url, config string) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.mu.Lock()
		defer p.mu.Unlock()
		query := r.FormValue("query")
		if user, password, _ := r.BasicAuth(); user != "a" || password != "b" || p.failing != "" && strings.Contains(query, p.failing) {
			writeJSON(w, http.StatusUnauthorized, map[string]any{"status": "error", "errorType": "auth", "error": "who"})
			return
		}
		p.queries = append(p.queries, query)
		result := model.Vector{}
		for family, samples := range p.families {
			if family == "nvidia_gpu_allocation_info" && !strings.Contains(query, "[") {
				continue // no longer allocated
			}
			if strings.Contains(query, family+"{") {
				for _, s := range samples {
					s.Timestamp = model.Now()
					result = append(result, &s)
				}
			}
		}
		writeJSON(w, http.StatusOK, map[string]any{"status": "success", "data": map[string]any{"resultType": "vector", "result": result}})
	}))
	t.Cleanup(server.Close)
	config = filepath.Join(t.TempDir(), "http.yaml")
	require.NoError(t, os.WriteFile(config, []byte("basic_auth: {username: a, password: b}\n"), 0o600))
	return server.URL, config
}

// newRemovedNode returns the series of serving/llm-9 on the removed node-z, and of serving/llm-0 on node-a.
func newRemovedNode(now time.Time) *fakePrometheus {
	const removedGPU = "GPU-3b5c6c1e-0f6d-4c6a-9d4e-8a1f2b3c4d59"
	labels := func(more ...string) model.Metric {
		m := model.Metric{"node": "node-z", "uuid": removedGPU, "gpu": "3", "mig_uuid": "", "namespace": "serving", "pod": "llm-9", "container": "server"}
		for i := 0; i < len(more); i += 2 {
			m[model.LabelName(more[i])] = model.LabelValue(more[i+1])
		}
		return m
	}
	fault := now.Add(-26 * time.Hour)
	return &fakePrometheus{families: map[string][]model.Sample{
		"nvidia_gpu_allocation_device_failure_last_timestamp_seconds": {{Metric: labels("reason", "xid_79"), Value: model.SampleValue(fault.Unix())}},
		"nvidia_gpu_allocation_info": {
			{Metric: labels("resource", "nvidia.com/gpu"), Value: 1},
			{Metric: labels("uuid", "GPU-other", "gpu", "4", "container", "sidecar"), Value: 1},
		},
		"nvidia_gpu_unhealthy_info":                          {{Metric: labels("reason", "xid_79", "action", "reboot"), Value: 1}},
		"kube_pod_status_phase":                              {{Metric: model.Metric{"pod": "llm-9", "phase": "Failed"}, Value: 1}},
		"kube_pod_container_status_terminated_reason":        {{Metric: model.Metric{"pod": "llm-9", "container": "server", "reason": "Error"}, Value: 1}},
		"kube_pod_container_status_last_terminated_exitcode": {{Metric: model.Metric{"pod": "llm-9", "container": "server"}, Value: 139}},
	}}
}

// TestPodOfRemovedNode checks that a pod of a removed node comes from Prometheus, with the fault, the action and the end.
func TestPodOfRemovedNode(t *testing.T) {
	c := newFakeCluster(t, map[string]*fakeNode{"node-a": newNode(time.Now())})
	past := newRemovedNode(time.Now())
	url, config := past.serve(t)
	args := []string{"pod", "llm-9", "-n=serving", "--prometheus=" + url, "--prometheus-config=" + config}
	out, errs, status := c.run(nil, append(args, "-o=wide")...)
	if status != cli.ExitOK || errs != "" {
		t.Errorf("got status %d, %s", status, errs)
	}
	testfile.CheckGolden(t, *update, "testdata/pod_gone_node.txt", out)
	for _, query := range []string{
		`last_over_time(nvidia_gpu_allocation_device_failure_last_timestamp_seconds{namespace="serving",pod=~"llm-9"}[1w])`,
		`last_over_time(nvidia_gpu_unhealthy_info{uuid="GPU-3b5c6c1e-0f6d-4c6a-9d4e-8a1f2b3c4d59",mig_uuid=""}[2m])`,
	} {
		if !strings.Contains(strings.Join(past.queries, "\n"), query) {
			t.Errorf("missing query %s in\n%s", query, strings.Join(past.queries, "\n"))
		}
	}
	delete(c.nodes, "node-a") // no pod of podgauge remains
	out, errs, status = c.run(nil, args...)
	if status != cli.ExitError || !strings.Contains(out, "node-z  3    server     no         unknown") || !strings.HasPrefix(errs, "no pod has the labels") {
		t.Errorf("got status %d, %s%s", status, out, errs)
	}
}

// TestPodOfBothSources checks that a fault from podgauge is not repeated from Prometheus, which adds the end of the container.
func TestPodOfBothSources(t *testing.T) {
	node := newNode(time.Now())
	node.incidents.Incidents[0].Affected[0].Termination = nil
	c := newFakeCluster(t, map[string]*fakeNode{"node-a": node})
	past := newRemovedNode(time.Now())
	for _, samples := range past.families {
		for i := range samples {
			samples[i].Metric["uuid"], samples[i].Metric["node"], samples[i].Metric["pod"] = gpu1, "node-a", "llm-0"
		}
	}
	url, config := past.serve(t)
	out, errs, status := c.run(nil, "pod", "llm-0", "-n=serving", "--no-headers", "--prometheus="+url, "--prometheus-config="+config)
	if status != cli.ExitOK || errs != "" || strings.Count(out, "\n") != 3 || strings.Count(out, "xid_79") != 1 || !strings.Contains(out, "Failed, Error, exit 139") {
		t.Errorf("got status %d, %s%s", status, out, errs)
	}
}

// TestPrometheusErrors checks that an error costs only one line, and keeps podgauge's records.
func TestPrometheusErrors(t *testing.T) {
	c := newFakeCluster(t, map[string]*fakeNode{"node-a": newNode(time.Now())})
	url, config := (&fakePrometheus{families: newRemovedNode(time.Now()).families, failing: "nvidia_gpu_unhealthy_info"}).serve(t)
	for _, row := range []struct {
		args   []string
		status int
		out    string
		errs   string
	}{
		{[]string{"--prometheus=" + url}, cli.ExitError, "xid_79", "Prometheus: client_error: client error: 401"},
		{[]string{"--prometheus=" + url, "--prometheus-config=" + config}, cli.ExitError, "no         unknown", "Prometheus: client_error: client error: 401"},
		{[]string{"--prometheus=http://127.0.0.1:1"}, cli.ExitError, "xid_79", "Prometheus: Post "},
		{[]string{"--prometheus=localhost:9090"}, cli.ExitUsage, "", `error: --prometheus "localhost:9090": expected http://host:port or https://host:port`},
		{[]string{"--prometheus=" + url, "--prometheus-since=1s"}, cli.ExitUsage, "", "error: --prometheus-since 1s: expected at least 1m"},
		{[]string{"--prometheus=" + url, "--prometheus-config=/no/such/file"}, cli.ExitUsage, "", "error: --prometheus-config: open /no/such/file"},
	} {
		out, errs, status := c.run(nil, append([]string{"pod", "llm-0", "-n", "serving"}, row.args...)...)
		if status != row.status || !strings.Contains(out, row.out) || !strings.HasPrefix(errs, row.errs) || strings.Count(errs, "\n") != 1 {
			t.Errorf("%v: got status %d, %s%s", row.args, status, out, errs)
		}
	}
	if _, errs, status := c.run(nil, "pod", "other", "-n=serving"); status != cli.ExitError || errs != "serving/other: no node reports a device of this pod; for pods of deleted nodes, set --prometheus\n" {
		t.Errorf("unknown pod: got status %d, %s", status, errs)
	}
}

// TestFamilies checks that podgauge exports the queried families.
func TestFamilies(t *testing.T) {
	page := testfile.Read(t, "../../../docs/reference/metrics.md")
	families := regexp.MustCompile(`nvidia_gpu_\w+`).FindAllString(testfile.Read(t, "prometheus.go"), -1)
	if len(families) < 4 {
		t.Errorf("queried families: got %q", families)
	}
	for _, name := range families {
		if !strings.Contains(page, "|`"+name+"`<br>") {
			t.Errorf("docs/reference/metrics.md lacks %s", name)
		}
	}
}
