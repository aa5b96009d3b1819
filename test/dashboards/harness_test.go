package dashboards

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/sim"
	"github.com/prometheus/client_golang/api"
	prometheus "github.com/prometheus/client_golang/api/prometheus/v1"
)

// waitTimeout is how long a test waits for what must happen, on the busiest machine.
const waitTimeout = time.Minute

// exitTimeout is how long a program may take to end when it is told to.
const exitTimeout = 10 * time.Second

// testProgram is one that runs beside the test.
type testProgram struct {
	*exec.Cmd
	name     string
	output   bytes.Buffer // read once it has ended
	stopOnce sync.Once
	err      error
	patience time.Duration // to end; zero: exitTimeout
}

// startProgram starts a program, and ends it with the test.
func startProgram(t *testing.T, name string, command string, args ...string) *testProgram {
	t.Helper()
	p := &testProgram{Cmd: exec.Command(command, args...), name: name}
	p.Stdout, p.Stderr = &p.output, &p.output
	p.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	p.WaitDelay = exitTimeout
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.stop(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if t.Failed() {
			t.Logf("%s said:\n%s", name, tail(p.output.String(), 4000))
		}
	})
	return p
}

// stop has it end, and waits until it has. What does not want to is killed.
func (p *testProgram) stop() error {
	p.stopOnce.Do(func() {
		signalled := p.Process.Signal(syscall.SIGTERM)
		late := time.AfterFunc(cmp.Or(p.patience, exitTimeout), func() { p.Process.Kill() })
		p.err = errors.Join(signalled, p.Wait())
		late.Stop()
	})
	return p.err
}

func tail(text string, n int) string { return text[max(0, len(text)-n):] }

// freeAddress is an address of this machine on which nobody listens.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// simNode is one simulated node.
type simNode struct {
	name    string
	cluster string
	script  *sim.Script
	address string
	*testProgram
}

// startNode has a podgauge on a node on which its script happens.
func startNode(t *testing.T, cluster, name string, args ...string) *simNode {
	t.Helper()
	file := filepath.Join("testdata", name+".script")
	n := &simNode{name: name, cluster: cluster, script: readScript(t, file), address: freeAddress(t)}
	n.testProgram = startProgram(t, name, "../../bin/podgauge-sim", append([]string{"--simulate=script:" + file, "--web.listen-address=" + n.address}, args...)...)
	return n
}

func readScript(t *testing.T, file string) *sim.Script {
	t.Helper()
	text, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer text.Close()
	script, err := sim.ReadScript(text)
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	return script
}

// waitForMetrics waits until the node's metrics have what is wanted, and returns them.
func (n *simNode) waitForMetrics(t *testing.T, wanted ...string) string {
	t.Helper()
	var text string
	waitUntil(t, n.name+" lives", func() bool {
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

// fetch is what an address answers; nothing when it does not, or not well.
func fetch(url string) string {
	client := http.Client{Timeout: 5 * time.Second}
	answer, err := client.Get(url)
	if err != nil {
		return ""
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK {
		return ""
	}
	return string(text)
}

// waitUntil waits for what must happen.
func waitUntil(t *testing.T, what string, is func() bool) {
	t.Helper()
	end := time.Now().Add(waitTimeout)
	poll := time.NewTicker(200 * time.Millisecond)
	defer poll.Stop()
	for !is() {
		if time.Now().After(end) {
			t.Fatalf("%s: not within %s", what, waitTimeout)
		}
		<-poll.C
	}
}

// startPrometheus has one over the blocks in data, which scrapes and evaluates what the config
// in dir says.
func startPrometheus(t *testing.T, dir, data string) (asks prometheus.API, url string) {
	t.Helper()
	address := freeAddress(t)
	startProgram(t, "prometheus", "prometheus", "--config.file="+filepath.Join(dir, "prometheus.yml"), "--storage.tsdb.path="+data,
		"--web.listen-address="+address, "--log.level=warn")
	url = "http://" + address
	waitUntil(t, "Prometheus is ready", func() bool { return fetch(url+"/-/ready") != "" })
	client, err := api.NewClient(api.Config{Address: url})
	if err != nil {
		t.Fatal(err)
	}
	return prometheus.NewAPI(client), url
}

// writePrometheusConfig writes Prometheus' config: what docs/how-to/monitor.md says, without a cluster to find
// the targets in.
func writePrometheusConfig(t *testing.T, dir string, nodes []*simNode, kubeStateMetrics map[string]string) {
	t.Helper()
	var targets, exporters strings.Builder
	for _, n := range nodes {
		fmt.Fprintf(&targets, "      - {targets: [%q], labels: {cluster: %q, node: %q}}\n", n.address, n.cluster, n.name)
	}
	for cluster, address := range kubeStateMetrics {
		fmt.Fprintf(&exporters, "      - {targets: [%q], labels: {cluster: %q}}\n", address, cluster)
	}
	absolute := func(name string) string {
		path, err := filepath.Abs(name)
		if err != nil {
			t.Fatal(err)
		}
		return path
	}
	text := fmt.Sprintf(`
global: {scrape_interval: %[1]s, scrape_timeout: %[1]s, evaluation_interval: %[1]s}
rule_files: [%[2]q, %[3]q]
scrape_configs:
  - job_name: podgauge
    honor_labels: true
    static_configs:
%[4]s
    metric_relabel_configs: # one node with another version
      - {source_labels: [__name__, node], regex: podgauge_build_info;node-c, target_label: version, replacement: older}
  - job_name: kube-state-metrics
    honor_labels: true
    static_configs:
%[5]s
`, scrapeInterval, absolute(rulesFile), absolute(recordingsFile), targets.String(), exporters.String())
	if err := os.WriteFile(filepath.Join(dir, "prometheus.yml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// sleepUntil lets time pass: the scripts have theirs.
func sleepUntil(ctx context.Context, at time.Time) {
	timer := time.NewTimer(time.Until(at))
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
