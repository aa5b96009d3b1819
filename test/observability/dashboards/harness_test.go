package dashboards

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/podgauge/podgauge/dashboards"
	"github.com/podgauge/podgauge/internal/sim"
	"github.com/podgauge/podgauge/test/helpers/expect"
	"github.com/podgauge/podgauge/test/helpers/program"
	"github.com/podgauge/podgauge/test/helpers/require"
	"github.com/prometheus/client_golang/api"
	prometheus "github.com/prometheus/client_golang/api/prometheus/v1"
)

// exitTimeout limits the exit of a program after SIGTERM.
const exitTimeout = 10 * time.Second

// testProgram is a program that runs during the test.
type testProgram struct {
	*exec.Cmd
	name     string
	output   bytes.Buffer // read after the exit
	stopOnce sync.Once
	err      error
}

// startProgram starts a program and stops it at the end of the test.
func startProgram(t *testing.T, name string, command string, args ...string) *testProgram {
	t.Helper()
	p := &testProgram{Cmd: exec.Command(command, args...), name: name}
	p.Stdout, p.Stderr = &p.output, &p.output
	p.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	p.WaitDelay = exitTimeout
	require.NoError(t, p.Start())
	t.Cleanup(func() {
		expect.NoError(t, p.stop(), name)
		if t.Failed() {
			t.Logf("output of %s:\n%s", name, tail(p.output.String(), 4000))
		}
	})
	return p
}

// stop sends SIGTERM and waits for the exit. After the timeout, stop kills the program.
func (p *testProgram) stop() error {
	p.stopOnce.Do(func() {
		signalErr := p.Process.Signal(syscall.SIGTERM)
		kill := time.AfterFunc(exitTimeout, func() { p.Process.Kill() })
		p.err = errors.Join(signalErr, p.Wait())
		kill.Stop()
	})
	return p.err
}

func tail(text string, n int) string { return text[max(0, len(text)-n):] }

// simNode is a simulated node.
type simNode struct {
	name    string
	cluster string
	script  *sim.Script
	address string
	*testProgram
}

// startNode starts podgauge on a simulated node with the node's script.
func startNode(t *testing.T, cluster, name string, args ...string) *simNode {
	t.Helper()
	file := filepath.Join("testdata", name+".script")
	n := &simNode{name: name, cluster: cluster, script: readScript(t, file), address: program.FreeAddress(t)}
	n.testProgram = startProgram(t, name, "../../../bin/podgauge-sim", append([]string{"--simulate=script:" + file, "--web.listen-address=" + n.address}, args...)...)
	return n
}

func readScript(t *testing.T, file string) *sim.Script {
	t.Helper()
	text, err := os.Open(file)
	require.NoError(t, err)
	defer text.Close()
	script, err := sim.ReadScript(text)
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	return script
}

// waitForMetrics waits until the node's metrics contain the wanted texts, and returns the metrics.
func (n *simNode) waitForMetrics(t *testing.T, wanted ...string) string {
	t.Helper()
	var text string
	program.WaitUntil(t, n.name+" has its metrics", func() bool {
		text = fetch("http://" + n.address + "/metrics")
		for _, w := range wanted {
			if !strings.Contains(text, w) {
				return false
			}
		}
		return text != ""
	})
	return text
}

// fetch returns the body of a response with status 200, otherwise an empty text.
func fetch(url string) string {
	text, err := program.Fetch(context.Background(), &http.Client{Timeout: 5 * time.Second}, url)
	if err != nil {
		return ""
	}
	return text
}

// startPrometheus starts Prometheus with the config in dir and the blocks in data.
func startPrometheus(t *testing.T, dir, data string) (promAPI prometheus.API, url string) {
	t.Helper()
	address := program.FreeAddress(t)
	startProgram(t, "prometheus", "prometheus", "--config.file="+filepath.Join(dir, "prometheus.yml"), "--storage.tsdb.path="+data,
		"--web.listen-address="+address, "--log.level=warn")
	url = "http://" + address
	program.WaitUntil(t, "Prometheus is ready", func() bool { return fetch(url+"/-/ready") != "" })
	client, err := api.NewClient(api.Config{Address: url})
	require.NoError(t, err)
	return prometheus.NewAPI(client), url
}

// scrapeConfig is how a Prometheus treats the labels of podgauge's series, and the rules for it.
type scrapeConfig struct {
	honorLabels  bool
	targetLabels string // of podgauge's pods
	rules        []string
	scrapes      time.Duration // interval; zero: scrapeInterval
	evaluations  time.Duration // interval; zero: scrapeInterval
}

// honoring is the configuration of docs/how-to/monitor.md.
var honoring = scrapeConfig{honorLabels: true, rules: []string{rulesFile, recordingsFile, reliabilityFile, costFile, pricesFile}}

// fasterJobRules returns the rules for jobs with all times divided by twelve, because a run is shorter than their ten minutes: the interval is
// that of the scrapes. Rules of the name and windows of 10 s have two scrapes, as those of two minutes at a usual interval.
func fasterJobRules(t *testing.T, dir, ownerLabelPrefix string) string {
	t.Helper()
	text, err := os.ReadFile(jobsFile)
	require.NoError(t, err)
	faster := regexp.MustCompile(`\[(\d+)m\]|interval: 1m|time\(\) - 600`).ReplaceAllStringFunc(string(text), func(found string) string {
		var minutes int
		switch _, err := fmt.Sscanf(found, "[%dm]", &minutes); {
		case err == nil:
			return fmt.Sprintf("[%ds]", 5*minutes)
		case strings.HasPrefix(found, "interval"):
			return "interval: 5s"
		default:
			return "time() - 50"
		}
	})
	if strings.Count(faster, "s]") < 30 {
		t.Fatalf("the rules for jobs have other times:\n%s", faster)
	}
	rules, err := dashboards.Rules([]byte(faster), ownerLabelPrefix)
	require.NoError(t, err)
	file := filepath.Join(dir, filepath.Base(jobsFile))
	require.NoError(t, os.WriteFile(file, rules, 0o600))
	return file
}

// writePrometheusConfig writes Prometheus' config with static targets.
func writePrometheusConfig(t *testing.T, dir string, s scrapeConfig, nodes []*simNode, kubeStateMetrics map[string]string) {
	t.Helper()
	var targets, exporters, rules strings.Builder
	for _, n := range nodes {
		fmt.Fprintf(&targets, "      - {targets: [%q], labels: {cluster: %q, node: %q%s}}\n", n.address, n.cluster, n.name, s.targetLabels)
	}
	for cluster, address := range kubeStateMetrics {
		fmt.Fprintf(&exporters, "      - {targets: [%q], labels: {cluster: %q}}\n", address, cluster)
	}
	for _, file := range s.rules {
		path, err := filepath.Abs(file)
		require.NoError(t, err)
		fmt.Fprintf(&rules, "%q, ", path)
	}
	text := fmt.Sprintf(`
global: {scrape_interval: %[1]s, scrape_timeout: %[1]s, evaluation_interval: %[6]s}
rule_files: [%[2]s]
scrape_configs:
  - job_name: podgauge
    honor_labels: %[3]t
    static_configs:
%[4]s
    metric_relabel_configs: # another version on a node
      - {source_labels: [__name__, node], regex: podgauge_build_info;node-c, target_label: version, replacement: older}
  - job_name: kube-state-metrics
    honor_labels: true
    static_configs:
%[5]s
`, cmp.Or(s.scrapes, scrapeInterval), rules.String(), s.honorLabels, targets.String(), exporters.String(), cmp.Or(s.evaluations, scrapeInterval))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "prometheus.yml"), []byte(text), 0o600))
}

// sleepUntil sleeps until a time or the end of the context.
func sleepUntil(ctx context.Context, at time.Time) {
	timer := time.NewTimer(time.Until(at))
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
