package migrate_test

import (
	"context"
	"fmt"
	"maps"
	"math"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/dcgm"
	"github.com/podgauge/podgauge/test/helpers/program"
	"github.com/podgauge/podgauge/test/helpers/require"
	"github.com/prometheus/client_golang/api"
	prometheus "github.com/prometheus/client_golang/api/prometheus/v1"
	"github.com/prometheus/common/model"
)

// collectTime is how long Prometheus scrapes before the queries: windows of rates are shorter.
const collectTime = 75 * time.Second

// variables are the values of Grafana's variables in the queries of testdata/public.txt.
var variables = strings.NewReplacer("[$__rate_interval]", "[30s]", "[$__range", "[1m", `"$hostname:9400"`, `"node-a:9400"`,
	`"$hostname"`, `"node-a"`, `"$Hostname"`, `"node-a"`, "${uuid}", "GPU-0000a100-5eed-4000-8000-000000000000", "${project}", "team-a")

var (
	labelValues   = regexp.MustCompile(`^label_values\((.*), (\w+)\)$`)
	otherVariable = regexp.MustCompile(`"\$[a-zA-Z_]\w*"`)
	threshold     = regexp.MustCompile(`[<>] *[\d.]+`)
)

// withoutResults are queries of testdata/public.txt that join series of other exporters.
var withoutResults = []string{"kube_pod_status_phase"}

// TestResultsInPrometheus runs the queries of testdata/public.txt, and of each field alone, with their translations in
// a Prometheus that scrapes a simulated node, and compares the results. The series of dcgm-exporter are podgauge's own,
// with --metrics.dcgm.
func TestResultsInPrometheus(t *testing.T) {
	if os.Getenv("PODGAUGE_DASHBOARDS") == "" {
		t.Skip("set PODGAUGE_DASHBOARDS=1: needs prometheus and bin/podgauge-sim, and takes two minutes")
	}
	for name, mig := range map[string]bool{"whole": false, "partitioned": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := startPrometheus(t, "testdata/"+name+".script")
			for _, d := range append(publicQueries(t), dashboardSource{name: fieldsAlone, queries: fieldQueries()}) {
				compared, without := 0, 0
				for _, q := range translate(t, mig, d.queries...).Queries {
					if q.Translation == "" {
						continue
					}
					hasResults, err := server.compare(t, q.Text, q.Translation)
					mayLack := func(text string) bool { return strings.Contains(q.Text, text) }
					switch {
					case err != nil:
						t.Errorf("%s:\n- %s\n+ %s\n%v", d.name, q.Text, q.Translation, err)
					case hasResults:
						compared++
					case d.name == fieldsAlone || slices.ContainsFunc(withoutResults, mayLack):
						without++
						t.Logf("no series: %s", q.Text)
					default:
						t.Errorf("%s: no series:\n- %s\n+ %s", d.name, q.Text, q.Translation)
					}
				}
				t.Logf("%s: %d queries have equal results, %d have no series", d.name, compared, without)
			}
		})
	}
}

const fieldsAlone = "fields alone"

// fieldNames returns the fields of dcgm-exporter 4.8 and 4.9 that podgauge exports.
func fieldNames() (all []dcgm.Name) {
	for _, f := range dcgm.Fields() {
		for g, n := range f.Names {
			isRepeated := g == int(dcgm.V49) && n.Name == f.Names[dcgm.V48].Name
			if n.Name != "" && n.Type != dcgm.Label && f.Missing == "" && !isRepeated {
				all = append(all, n)
			}
		}
	}
	return all
}

// fieldQueries returns a query of each field.
func fieldQueries() (queries []string) {
	for _, n := range fieldNames() {
		if n.Type == dcgm.Counter {
			queries = append(queries, "increase("+n.Name+"[30s])")
		} else {
			queries = append(queries, n.Name)
		}
	}
	return queries
}

type testPrometheus struct {
	prometheus.API
	at time.Time
}

// startPrometheus starts a simulated node with a script, and a Prometheus that scrapes it.
func startPrometheus(t *testing.T, script string) *testPrometheus {
	node, address := program.FreeAddress(t), program.FreeAddress(t)
	dir := t.TempDir()
	counters := filepath.Join(dir, "counters.csv")
	var lines strings.Builder
	for _, n := range fieldNames() {
		fmt.Fprintf(&lines, "%s, %s, Help.\n", n.Name, n.Type)
	}
	require.NoError(t, os.WriteFile(counters, []byte(lines.String()), 0o600))
	start(t, []string{"NODE_NAME=node-a"}, "../../../bin/podgauge-sim", "--simulate=script:"+script, "--metrics.dcgm=4.8",
		"--metrics.dcgm-counters="+counters, "--metrics.set=full", "--metrics.nvlink-links",
		"--web.listen-address="+node, "--log.level=error")
	config := fmt.Sprintf(`
global: {scrape_interval: 2s, scrape_timeout: 2s, evaluation_interval: 4s}
scrape_configs:
  - job_name: podgauge
    honor_labels: true
    static_configs: [{targets: [%q], labels: {node: node-a, instance: "node-a:9400"}}]
`, node)
	file := filepath.Join(dir, "prometheus.yml")
	require.NoError(t, os.WriteFile(file, []byte(config), 0o600))
	start(t, nil, "prometheus", "--config.file="+file, "--storage.tsdb.path="+filepath.Join(dir, "data"),
		"--web.listen-address="+address, "--log.level=warn")
	client, err := api.NewClient(api.Config{Address: "http://" + address})
	require.NoError(t, err)
	server := &testPrometheus{API: prometheus.NewAPI(client)}
	web := &http.Client{Timeout: 5 * time.Second}
	begin := time.Now()
	program.WaitUntil(t, "Prometheus is ready", func() bool {
		_, err := program.Fetch(t.Context(), web, "http://"+address+"/-/ready")
		return err == nil
	})
	time.Sleep(time.Until(begin.Add(collectTime)))
	server.at = time.Now().Add(-3 * time.Second)
	return server
}

func start(t *testing.T, env []string, name string, args ...string) {
	c := exec.Command(name, args...)
	c.Env = append(os.Environ(), env...)
	c.Stderr = os.Stderr
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	require.NoError(t, c.Start())
	t.Cleanup(func() {
		c.Process.Kill()
		c.Wait()
	})
}

// optionalLabels are dcgm-exporter's names of the labels that a translation may lack if the query does not name them:
// those of nvidia_gpu_info, and owners, which limits and faults of a device lack.
var optionalLabels = map[string]string{
	"namespace": "namespace", "pod": "pod", "container": "container",
	"gi": "GPU_I_ID", "mig_profile": "GPU_I_PROFILE", "minor": "device", "model": "modelName", "pci_bus_id": "pci_bus_id",
}

// compare reports whether both queries have results, which are equal.
func (p *testPrometheus) compare(t *testing.T, before, after string) (bool, error) {
	// With honor_labels, dcgm-exporter's owner labels have no prefix. Up to 4.8, hostname is Hostname.
	before, after = withoutVariables(strings.ReplaceAll(before, "exported_", "")), withoutVariables(after)
	if !strings.Contains(before, "Hostname") {
		before = strings.ReplaceAll(before, "hostname", "Hostname")
	}
	want, err := p.values(t.Context(), before)
	if err != nil {
		return false, err
	}
	got, err := p.values(t.Context(), after)
	if err != nil || len(want) == 0 && len(got) == 0 {
		return false, err
	}
	tolerance := 1e-9
	if strings.Contains(after, "rate(") || strings.Contains(after, "increase(") {
		tolerance = 0.07 // a scrape in a window of 30 s
	}
	var names, lost []string
	gotNames := commonLabels(got)
	for _, name := range commonLabels(want) {
		switch original, isOptional := optionalLabels[name]; {
		case slices.Contains(gotNames, name):
			names = append(names, name)
		case !isOptional || strings.Contains(before, original):
			lost = append(lost, name)
		}
	}
	wantValues, gotValues := byLabels(want, names), byLabels(got, names)
	equal := maps.EqualFunc(wantValues, gotValues, func(a, b []float64) bool {
		return slices.EqualFunc(a, b, func(x, y float64) bool { return math.Abs(x-y) <= tolerance*max(math.Abs(x), math.Abs(y)) })
	})
	if !equal || len(lost) > 0 {
		return false, fmt.Errorf("lost labels %v, labels %v\ndcgm-exporter: %v\npodgauge: %v", lost, names, wantValues, gotValues)
	}
	return true, nil
}

// withoutVariables returns a query with values of variables, and with thresholds that each value exceeds.
func withoutVariables(query string) string {
	query = otherVariable.ReplaceAllString(variables.Replace(query), `".*"`)
	return threshold.ReplaceAllString(query, "> -1")
}

// values returns the result of a query. A query_result is its query, and label_values are the groups by the label.
func (p *testPrometheus) values(ctx context.Context, query string) (model.Vector, error) {
	if inner, ok := strings.CutPrefix(query, "query_result("); ok {
		query = strings.TrimSuffix(inner, ")")
	}
	query = labelValues.ReplaceAllString(query, "group by ($2) ($1)")
	value, _, _, err := p.Query(ctx, query, p.at)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", query, err)
	}
	vector, ok := value.(model.Vector)
	if !ok {
		return nil, fmt.Errorf("%s: got a %s", query, value.Type())
	}
	for _, s := range vector {
		for from, to := range map[model.LabelName]model.LabelName{
			"Hostname": "node", "hostname": "node", "UUID": "uuid", "modelName": "model", "GPU_I_ID": "gi", "GPU_I_PROFILE": "mig_profile",
		} {
			if value, ok := s.Metric[from]; ok {
				s.Metric[to] = value
			}
			delete(s.Metric, from)
		}
		if value, ok := s.Metric["device"]; ok {
			s.Metric["minor"] = model.LabelValue(strings.TrimPrefix(string(value), "nvidia"))
		}
		delete(s.Metric, "device")
		if value := s.Metric["pci_bus_id"]; len(value) == len("00000000:1A:00.0") {
			s.Metric["pci_bus_id"] = model.LabelValue(strings.ToLower(string(value[4:])))
		}
	}
	return vector, nil
}

// commonLabels returns the names of the labels that each series has.
func commonLabels(v model.Vector) (names []string) {
	for i, s := range v {
		var own []string
		for name := range s.Metric {
			own = append(own, string(name))
		}
		if i == 0 {
			names = own
		}
		names = slices.DeleteFunc(names, func(name string) bool { return name == "__name__" || !slices.Contains(own, name) })
	}
	slices.Sort(names)
	return names
}

// byLabels returns the sorted values by the values of these labels.
func byLabels(v model.Vector, names []string) map[string][]float64 {
	all := map[string][]float64{}
	for _, s := range v {
		key := ""
		for _, name := range names {
			key += fmt.Sprintf("%s=%s ", name, s.Metric[model.LabelName(name)])
		}
		all[key] = append(all[key], float64(s.Value))
		slices.Sort(all[key])
	}
	return all
}
