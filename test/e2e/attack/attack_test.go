// Package attack overloads podgauge's HTTP server, and its client of the kubelet, under the chart's memory limit.
package attack

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/util/cert"

	"github.com/podgauge/podgauge/internal/sim/kubelet"
	"github.com/podgauge/podgauge/test/e2e/node"
	"github.com/podgauge/podgauge/test/helpers/expect"
	"github.com/podgauge/podgauge/test/helpers/program"
	"github.com/podgauge/podgauge/test/helpers/require"
	"github.com/podgauge/podgauge/test/helpers/testfile"
	nvmltest "github.com/podgauge/podgauge/test/nvml"
)

const (
	// memoryLimit and probeTimeout are values of the chart; TestChart compares them.
	memoryLimit  = 96 << 20
	probeTimeout = 5 * time.Second
	// maxProbe is the maximum response time of a probe, four times as long unless strict (make e2e-all).
	maxProbe = time.Second

	gpus, migDevicesPerGPU = 8, 7
	connectionCount        = 200 // fewer than the server's limit
	roundCount             = 30
)

// libraryDir is the folder of the NVML stand-in.
var libraryDir string

func TestMain(m *testing.M) {
	var err error
	if libraryDir, err = os.MkdirTemp("", "podgauge-attack-"); err == nil {
		_, err = nvmltest.Build(libraryDir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "attack:", err)
		os.Exit(1)
	}
	status := m.Run()
	os.RemoveAll(libraryDir)
	os.Exit(status)
}

// TestSlowReaders runs 200 clients that request all pages in all formats and read no response. It checks that probes and scrapes
// succeed, and that memory remains below the chart's limit.
func TestSlowReaders(t *testing.T) {
	t.Run("HTTP", func(t *testing.T) { slowReaders(t, "http") })
	t.Run("TLS", func(t *testing.T) {
		slowReaders(t, "https", "--web.config.file="+webConfig(t), "--web.probe-address=127.0.0.1:0")
	})
}

func slowReaders(t *testing.T, scheme string, args ...string) {
	cgroup := newMemoryCgroup(t)
	podgauge := startPodgauge(t, cgroup, scheme, append(args, "--metrics.set=full", "--metrics.nvlink-links", "--metrics.dcgm", "--mig-strategy=mixed", "--metrics.pod-uid")...)
	podgauge.waitForDevices(t)

	attack, stop := context.WithCancel(t.Context())
	var attackers sync.WaitGroup
	for i := range connectionCount {
		attackers.Go(func() { podgauge.requestWithoutReading(attack, i) })
	}
	defer attackers.Wait()
	defer stop()

	var probes, scrapes []time.Duration
	for tick := time.NewTicker(time.Second); len(probes) < roundCount; <-tick.C {
		probes = append(probes, measure(t, podgauge.probes, probeTimeout, "ok\n"))
		scrapes = append(scrapes, measure(t, podgauge.metrics, 10*time.Second, "podgauge_build_info"))
	}
	t.Logf("figure: a probe among %d slow readers: %s; limit %s", connectionCount, formatSpread(probes), maxProbe)
	t.Logf("figure: a scrape among %d slow readers: %s", connectionCount, formatSpread(scrapes))
	limit := node.Tolerance() * maxProbe
	if longest := slices.Max(probes); longest > limit {
		t.Errorf("longest probe: got %s, want at most %s", longest, limit)
	}
	if peak := podgauge.checkMemory(t, cgroup); peak >= memoryLimit && cgroup.separateSockets {
		t.Errorf("peak memory of podgauge and its sockets: got %d bytes, want less than %d", peak, memoryLimit)
	}
}

// TestMemoryLimit checks that the garbage collector uses the cgroup's memory limit, unless GOMEMLIMIT is set.
func TestMemoryLimit(t *testing.T) {
	cgroup := newMemoryCgroup(t)
	for environment, want := range map[string]string{"": "\ngo_gc_gomemlimit_bytes 7.5497472e+07\n", "50MiB": "\ngo_gc_gomemlimit_bytes 5.24288e+07\n"} {
		t.Run(environment, func(t *testing.T) {
			if environment != "" {
				t.Setenv("GOMEMLIMIT", environment)
			}
			podgauge := startPodgauge(t, cgroup, "http", "--metrics.include=go_gc_gomemlimit_bytes")
			measure(t, podgauge.metrics, 10*time.Second, want)
		})
	}
}

// TestChart compares the constants of these tests with the chart.
func TestChart(t *testing.T) {
	const chart = "../../../deploy/helm/podgauge/"
	for file, want := range map[string]string{
		chart + "values.yaml":              fmt.Sprintf("  limits:\n    memory: %dMi\n", memoryLimit>>20),
		chart + "templates/daemonset.yaml": fmt.Sprintf("periodSeconds: 20\n            timeoutSeconds: %d\n", int(probeTimeout.Seconds())),
	} {
		if text, err := os.ReadFile(file); err != nil || !strings.Contains(string(text), want) {
			t.Errorf("%s lacks %q: %v", file, want, err)
		}
	}
}

// webConfig writes a web config with TLS and returns its path.
func webConfig(t *testing.T) string {
	t.Helper()
	certificate, key, err := cert.GenerateSelfSignedCertKey("localhost", nil, nil)
	require.NoError(t, err)
	dir := t.TempDir()
	for name, content := range map[string][]byte{
		"tls.key": key, "tls.crt": certificate, "web.yaml": []byte("tls_server_config: {cert_file: tls.crt, key_file: tls.key}\n"),
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), content, 0o600))
	}
	return filepath.Join(dir, "web.yaml")
}

func formatSpread(times []time.Duration) string {
	const unit = time.Millisecond / 10
	slices.Sort(times)
	return fmt.Sprintf("p50 %s, max %s (n=%d)", times[len(times)/2].Round(unit), times[len(times)-1].Round(unit), len(times))
}

// podgaugeUnderAttack is a podgauge process in a memory cgroup.
type podgaugeUnderAttack struct {
	*exec.Cmd
	address         string
	metrics, probes string // URLs
}

// startPodgauge runs podgauge in a cgroup until the test ends, on a node with 56 MIG devices. The exit status must be 0.
func startPodgauge(t *testing.T, in memoryCgroup, scheme string, args ...string) *podgaugeUnderAttack {
	t.Helper()
	binary, err := filepath.Abs(cmp.Or(os.Getenv("PODGAUGE_BIN"), "../../../bin/podgauge"))
	require.NoError(t, err)
	dir := program.ShortDir(t)
	simulated := kubelet.New(kubelet.Options{Dir: dir, RunningSince: time.Now().Add(-time.Hour)})
	go simulated.Run(t.Context())
	scenario := filepath.Join(dir, "scenario")
	require.NoError(t, nvmltest.NewScenario(scenario).Set(scenarioLines()...))
	// The shell joins the cgroup before it executes podgauge, so that the cgroup accounts for all memory.
	p := &podgaugeUnderAttack{Cmd: exec.Command("/bin/sh", append([]string{
		"-c", `echo $$ >"$0" && exec "$@"`, in.file("cgroup.procs"), binary,
		"--web.listen-address=127.0.0.1:0", "--kubelet-dir=" + dir, "--device-plugin-dir=" + filepath.Join(dir, "device-plugins"), "--state-dir=" + t.TempDir(),
	}, args...)...)}
	p.Env = append(os.Environ(), "LD_LIBRARY_PATH="+libraryDir, nvmltest.EnvScenario+"="+scenario)
	p.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	log, err := p.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, p.Start())
	lines := bufio.NewReader(log)
	for p.metrics == "" || p.probes == "" {
		line, err := lines.ReadString('\n')
		if err != nil {
			t.Fatalf("podgauge exited at start: %v, %v", err, p.Wait())
		}
		if _, after, found := strings.Cut(line, " listen="); found {
			p.address, _, _ = strings.Cut(after, " ")
			p.metrics = scheme + "://" + p.address + "/metrics"
			if scheme == "http" {
				p.probes = "http://" + p.address + "/healthz"
			}
		}
		if _, after, found := strings.Cut(line, "serving probes\" address="); found {
			p.probes = "http://" + strings.TrimSpace(after) + "/healthz"
		}
	}
	exited := make(chan struct{})
	go func() {
		io.Copy(io.Discard, lines) //nolint:errcheck // returns when podgauge exits
		close(exited)
	}()
	t.Cleanup(func() {
		p.Process.Signal(syscall.SIGTERM) //nolint:errcheck // podgauge may have exited
		<-exited
		expect.NoError(t, p.Wait(), "podgauge")
	})
	return p
}

// scenarioLines returns a scenario of eight H100 GPUs with seven MIG devices each.
func scenarioLines() []string {
	lines := []string{fmt.Sprint("gpus ", gpus)}
	for gpu := range gpus {
		lines = append(lines, fmt.Sprintf("gpu %d model h100", gpu), fmt.Sprintf("gpu %d mig_mode 1", gpu))
		for i := range migDevicesPerGPU {
			lines = append(lines, fmt.Sprintf("gpu %d slice %d 1g.10gb gi %d ci 0", gpu, i, i+3))
		}
	}
	return lines
}

// attackRequests has a request for each kind of response that needs memory.
var attackRequests = []string{
	"/metrics HTTP/1.1\r\nAccept: text/plain",
	"/metrics HTTP/1.1\r\nAccept: text/plain\r\nAccept-Encoding: gzip",
	"/metrics HTTP/1.1\r\nAccept: application/openmetrics-text;version=1.0.0",
	"/metrics HTTP/1.1\r\nAccept: application/openmetrics-text;version=1.0.0\r\nAccept-Encoding: gzip",
	"/ HTTP/1.1",
	"/api/v1/devices HTTP/1.1",
	"/metrics HTTP/1.1\r\nX-Prometheus-Scrape-Timeout-Seconds: 0.000001",
	"/metrics HTTP/1.1\r\nCookie: " + strings.Repeat("a", 64<<10), // 431
	"/metrics HTTP/1.1\r\nContent-Length: 1000000000",
}

// requestWithoutReading sends requests on one connection after another, not from the kubelet's address, and reads no response.
func (p *podgaugeUnderAttack) requestWithoutReading(ctx context.Context, i int) {
	from := net.Dialer{
		LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)},
		// A small receive window keeps the response in podgauge's memory.
		Control: func(_, _ string, c syscall.RawConn) error {
			return c.Control(func(fd uintptr) { syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, 4096) }) //nolint:errcheck // optional
		},
	}
	for pause := time.Duration(0); ; pause = time.Second {
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		conn, err := from.DialContext(ctx, "tcp", p.address)
		if err != nil {
			continue
		}
		conn.SetDeadline(time.Now().Add(time.Minute)) //nolint:errcheck // podgauge closes hanging connections as well
		to := conn
		if strings.HasPrefix(p.metrics, "https:") {
			to = tls.Client(conn, &tls.Config{InsecureSkipVerify: true})
		}
		fmt.Fprintf(to, "GET %s\r\nHost: a\r\n\r\n", attackRequests[i%len(attackRequests)])
		waitForClose(ctx, conn)
	}
}

// waitForClose waits until podgauge closes the connection, without reading.
func waitForClose(ctx context.Context, conn net.Conn) {
	defer conn.Close()
	raw, err := conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		return
	}
	for tick := time.NewTicker(100 * time.Millisecond); ctx.Err() == nil; <-tick.C {
		var state byte
		err := raw.Control(func(fd uintptr) {
			if info, err := syscall.GetsockoptInt(int(fd), syscall.IPPROTO_TCP, syscall.TCP_INFO); err == nil {
				state = byte(info) // the first field of tcp_info is the state
			}
		})
		if err != nil || state != 1 /* established */ {
			return
		}
	}
}

// measure sends a request on a new connection, as kubelets do, and returns the response time.
func measure(t *testing.T, url string, timeout time.Duration, want string) time.Duration {
	t.Helper()
	began := time.Now()
	text, err := get(t, url, timeout)
	if err != nil || !strings.Contains(text, want) {
		t.Errorf("%s after %s: got %d bytes and error %v, want %q", url, time.Since(began), len(text), err, want)
	}
	return time.Since(began)
}

// get returns a response with status 200, which Go's client requests in gzip.
func get(t *testing.T, url string, timeout time.Duration) (string, error) {
	t.Helper()
	return program.Fetch(t.Context(), &http.Client{Timeout: timeout, Transport: &http.Transport{
		DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
	}}, url)
}

// waitForScrape scrapes until a scrape fulfills a condition.
func (p *podgaugeUnderAttack) waitForScrape(t *testing.T, condition string, holds func(text string) bool) string {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		text, err := get(t, p.metrics, time.Minute)
		if holds(text) {
			return text
		}
		if time.Now().After(end) {
			t.Fatalf("no scrape with %s: %v\n%s", condition, err, text)
		}
	}
}

// waitForDevices waits until a scrape has all GPUs and MIG devices, and returns the scrape.
func (p *podgaugeUnderAttack) waitForDevices(t *testing.T) string {
	t.Helper()
	return p.waitForScrape(t, "all devices", func(text string) bool {
		return strings.Count(text, "\nnvidia_gpu_memory_used_bytes{") == gpus+gpus*migDevicesPerGPU
	})
}

// checkMemory logs the peak memory and checks that no process was killed. It returns the peak of the cgroup.
func (p *podgaugeUnderAttack) checkMemory(t *testing.T, cgroup memoryCgroup) (peak int) {
	t.Helper()
	status := testfile.Read(t, fmt.Sprintf("/proc/%d/status", p.Process.Pid))
	_, resident, _ := strings.Cut(status, "VmHWM:")
	resident, _, _ = strings.Cut(resident, "\n")
	peak = cgroup.peak(t)
	t.Logf("figure: peak memory of the cgroup, including sockets and page cache: %.1f of %d MiB; peak resident memory: %s",
		float64(peak)/(1<<20), memoryLimit>>20, strings.TrimSpace(resident))
	cgroup.checkKilled(t)
	return peak
}

// memoryCgroup is a memory cgroup with the chart's limit, like the cgroup of a container.
type memoryCgroup struct {
	parent string
	limits map[string]int // by file
	peaks  []string
	events string // has the number of killed processes
	dir    string
	// separateSockets is set with cgroup v1. With v2, one limit includes sockets and page cache: the kernel reclaims memory at the limit.
	separateSockets bool
}

// newMemoryCgroup creates a memory cgroup in the machine's hierarchy of cgroup v1 or v2.
func newMemoryCgroup(t *testing.T) memoryCgroup {
	t.Helper()
	c := memoryCgroup{
		parent: "/sys/fs/cgroup", limits: map[string]int{"memory.max": memoryLimit}, peaks: []string{"memory.peak"}, events: "memory.events",
	}
	if _, err := os.Stat("/sys/fs/cgroup/memory"); err == nil {
		// cgroup v1 counts the memory of sockets separately, and only with a separate limit, which containers lack.
		c = memoryCgroup{
			parent: "/sys/fs/cgroup/memory", limits: map[string]int{"memory.limit_in_bytes": memoryLimit, "memory.kmem.tcp.limit_in_bytes": 1 << 40},
			peaks: []string{"memory.max_usage_in_bytes", "memory.kmem.tcp.max_usage_in_bytes"}, events: "memory.oom_control",
			separateSockets: true,
		}
	}
	c.dir = fmt.Sprintf("%s/podgauge-attack-%d", c.parent, os.Getpid())
	require.NoError(t, os.Mkdir(c.dir, 0o755))
	t.Cleanup(func() {
		expect.NoError(t, os.Remove(c.dir), "remove the cgroup")
	})
	for file, limit := range c.limits {
		require.NoError(t, os.WriteFile(c.file(file), []byte(strconv.Itoa(limit)), 0o644))
	}
	return c
}

func (c memoryCgroup) file(name string) string { return filepath.Join(c.dir, name) }

// read returns the content of a file of the cgroup.
func (c memoryCgroup) read(t *testing.T, name string) string {
	t.Helper()
	text := testfile.Read(t, c.file(name))
	return strings.TrimSpace(text)
}

// peak returns the peak memory in bytes, including page cache and sockets.
func (c memoryCgroup) peak(t *testing.T) (sum int) {
	t.Helper()
	for _, file := range c.peaks {
		n, err := strconv.Atoi(c.read(t, file))
		require.NoError(t, err)
		sum += n
	}
	return sum
}

// checkKilled checks that the OOM killer killed no process.
func (c memoryCgroup) checkKilled(t *testing.T) {
	t.Helper()
	if events := c.read(t, c.events); !strings.Contains(events+"\n", "oom_kill 0\n") {
		t.Errorf("processes killed by the OOM killer: got %q, want none", events)
	}
}
