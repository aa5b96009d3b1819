// Package attack overloads podgauge's HTTP server, and its client of the kubelet, under the chart's memory limit.
package attack

import (
	"bufio"
	"cmp"
	"compress/gzip"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/sim/kubelet"
	nvmltest "github.com/podgauge/podgauge/test/nvml"
)

const (
	// memoryLimit and probeTimeout are values of the chart; TestChart compares them.
	memoryLimit  = 96 << 20
	probeTimeout = 5 * time.Second
	// maxProbe is the maximum response time of a probe, four times as long unless strict.
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

// isStrict reports whether skipped tests fail and limits are not multiplied (make e2e-all).
func isStrict() bool { return os.Getenv("PODGAUGE_STRICT") != "" }

// skip skips a test that the machine cannot run, or fails the test if strict.
func skip(t *testing.T, args ...any) {
	t.Helper()
	if isStrict() {
		t.Fatal(args...)
	}
	t.Skip(args...)
}

// TestSlowReaders runs 200 clients that request all pages in all formats and read no response. It checks that probes and scrapes
// succeed, and that memory remains below the chart's limit.
func TestSlowReaders(t *testing.T) {
	t.Run("HTTP", func(t *testing.T) { slowReaders(t) })
	t.Run("TLS", func(t *testing.T) {
		slowReaders(t, "--web.config.file="+webConfig(t), "--web.probe-address=127.0.0.1:0")
	})
}

func slowReaders(t *testing.T, args ...string) {
	cgroup := newMemoryCgroup(t, memoryLimit)
	podgauge := startPodgauge(t, cgroup, append(args, "--metrics.set=full", "--metrics.nvlink-links", "--metrics.dcgm", "--mig-strategy=mixed", "--metrics.pod-uid")...)
	podgauge.waitForDevices(t, gpus+gpus*migDevicesPerGPU) // the GPUs and their MIG devices

	attack, stop := context.WithCancel(t.Context())
	var attackers sync.WaitGroup
	for i := range connectionCount {
		attackers.Go(func() { podgauge.requestWithoutReading(attack, i) })
	}
	defer attackers.Wait()
	defer stop()

	var probes, scrapes []time.Duration
	for tick := time.NewTicker(time.Second); len(probes) < roundCount; <-tick.C {
		probes = append(probes, podgauge.measureProbe(t, "/healthz", probeTimeout, "ok\n"))
		scrapes = append(scrapes, podgauge.measureProbe(t, "/metrics", 10*time.Second, "podgauge_build_info"))
	}
	t.Logf("figure: a probe among %d slow readers: %s; limit %s", connectionCount, formatSpread(probes), maxProbe)
	limit := 4 * maxProbe
	if isStrict() {
		limit = maxProbe
	}
	if longest := slices.Max(probes); longest > limit {
		t.Errorf("longest probe: got %s, want at most %s", longest, limit)
	}
	t.Logf("figure: a scrape among %d slow readers: %s", connectionCount, formatSpread(scrapes))
	peak := cgroup.peak(t)
	t.Logf("figure: peak memory of the cgroup, including sockets and page cache: %.1f of %d MiB; peak resident memory: %s",
		float64(peak)/(1<<20), memoryLimit>>20, podgauge.peakResident(t))
	if peak >= memoryLimit {
		t.Errorf("peak memory of podgauge and its sockets: got %d bytes, want less than %d", peak, memoryLimit)
	}
	if killed := cgroup.killed(t); killed != "0" {
		t.Errorf("processes killed by the OOM killer: got %s, want 0", killed)
	}
}

// TestMemoryLimit checks that the garbage collector uses the cgroup's memory limit, unless GOMEMLIMIT is set.
func TestMemoryLimit(t *testing.T) {
	cgroup := newMemoryCgroup(t, memoryLimit)
	for environment, want := range map[string]string{"": "\ngo_gc_gomemlimit_bytes 7.5497472e+07\n", "50MiB": "\ngo_gc_gomemlimit_bytes 5.24288e+07\n"} {
		t.Run(environment, func(t *testing.T) {
			if environment != "" {
				t.Setenv("GOMEMLIMIT", environment)
			}
			startPodgauge(t, cgroup, "--metrics.include=go_gc_gomemlimit_bytes").measureProbe(t, "/metrics", 10*time.Second, want)
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
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	template := x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	certificate, err := x509.CreateCertificate(rand.Reader, &template, &template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, content := range map[string][]byte{
		"tls.key":  pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}),
		"tls.crt":  pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate}),
		"web.yaml": []byte("tls_server_config: {cert_file: tls.crt, key_file: tls.key}\n"),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
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
	address string
	tls     bool          // the address requires TLS
	probes  string        // address for probes
	exited  chan struct{} // closed at the end of the process
}

// startPodgauge runs podgauge in a cgroup until the test ends, on a node with 56 MIG devices. The exit status must be 0.
func startPodgauge(t *testing.T, in *memoryCgroup, args ...string) *podgaugeUnderAttack {
	t.Helper()
	binary, err := filepath.Abs(cmp.Or(os.Getenv("PODGAUGE_BIN"), "../../../bin/podgauge"))
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "pg") // short, for the sockets below it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	startKubelet(t, dir)
	scenario := filepath.Join(dir, "scenario")
	if err := nvmltest.NewScenario(scenario).Set(scenarioLines()...); err != nil {
		t.Fatal(err)
	}
	// The shell joins the cgroup before it executes podgauge, so that the cgroup accounts for all memory.
	p := &podgaugeUnderAttack{Cmd: exec.Command("/bin/sh", append([]string{
		"-c", `echo $$ >"$0" && exec "$@"`, in.procs(), binary,
		"--web.listen-address=127.0.0.1:0", "--kubelet-dir=" + dir, "--device-plugin-dir=" + filepath.Join(dir, "device-plugins"), "--state-dir=" + t.TempDir(),
	}, args...)...), tls: slices.ContainsFunc(args, func(arg string) bool { return strings.HasPrefix(arg, "--web.config.file=") }), exited: make(chan struct{})}
	p.Env = append(os.Environ(), "LD_LIBRARY_PATH="+libraryDir, nvmltest.EnvScenario+"="+scenario)
	p.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	log, err := p.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(log)
	for p.address == "" || p.probes == "" {
		line, err := lines.ReadString('\n')
		if err != nil {
			t.Fatalf("podgauge exited at start: %v, %v", err, p.Wait())
		}
		if _, after, found := strings.Cut(line, " listen="); found {
			p.address, _, _ = strings.Cut(after, " ")
		}
		if _, after, found := strings.Cut(line, "serving probes\" address="); found {
			p.probes = strings.TrimSpace(after)
		}
		if !p.tls {
			p.probes = p.address
		}
	}
	go func() {
		io.Copy(io.Discard, lines) //nolint:errcheck // returns when podgauge exits
		close(p.exited)
	}()
	t.Cleanup(func() {
		p.Process.Signal(syscall.SIGTERM) //nolint:errcheck // podgauge may have exited
		<-p.exited
		if err := p.Wait(); err != nil {
			t.Errorf("podgauge: %v", err)
		}
	})
	return p
}

// startKubelet runs a simulated kubelet with its sockets in dir until the test ends.
func startKubelet(t *testing.T, dir string) {
	t.Helper()
	k := kubelet.New(kubelet.Options{Dir: dir, RunningSince: time.Now().Add(-time.Hour)})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- k.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("kubelet: %v", err)
		}
	})
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
		if p.tls {
			to = tls.Client(conn, &tls.Config{InsecureSkipVerify: true})
		}
		fmt.Fprintf(to, "GET %s\r\nHost: a\r\n\r\n", attackRequests[i%len(attackRequests)])
		p.waitForClose(ctx, conn)
	}
}

// waitForClose waits until podgauge closes the connection, without reading.
func (*podgaugeUnderAttack) waitForClose(ctx context.Context, conn net.Conn) {
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

// measureProbe sends a request on a new connection, as kubelets do, and returns the response time.
func (p *podgaugeUnderAttack) measureProbe(t *testing.T, path string, timeout time.Duration, want string) time.Duration {
	t.Helper()
	select {
	case <-p.exited:
		t.Fatal("podgauge exited")
	default:
	}
	began := time.Now()
	text, err := p.get(t.Context(), path, timeout)
	if err != nil || !strings.Contains(text, want) {
		t.Errorf("%s after %s: got %d bytes and error %v, want %q", path, time.Since(began), len(text), err, want)
	}
	return time.Since(began)
}

func (p *podgaugeUnderAttack) get(ctx context.Context, path string, timeout time.Duration) (string, error) {
	client := http.Client{Timeout: timeout, Transport: &http.Transport{
		DisableKeepAlives: true, DisableCompression: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
	}}
	url := "http://" + p.address + path
	if p.tls {
		url = "https://" + p.address + path
	}
	if path == "/healthz" {
		url = "http://" + p.probes + path
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return "", err
	}
	if path == "/metrics" {
		r.Header.Set("Accept-Encoding", "gzip")
	}
	response, err := client.Do(r)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body := io.Reader(response.Body)
	if response.Header.Get("Content-Encoding") == "gzip" {
		if body, err = gzip.NewReader(body); err != nil {
			return "", err
		}
	}
	text, err := io.ReadAll(body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("status %s", response.Status)
	}
	return string(text), err
}

// waitForDevices waits until a scrape has the number of GPUs and MIG devices.
func (p *podgaugeUnderAttack) waitForDevices(t *testing.T, devices int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for tick := time.NewTicker(100 * time.Millisecond); ; {
		text, err := p.get(ctx, "/metrics", time.Minute)
		if strings.Count(text, "\nnvidia_gpu_memory_used_bytes{") == devices {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("no scrape with %d devices: %v\n%s", devices, err, text)
		}
	}
}

// peakResident returns the peak resident memory of the process.
func (p *podgaugeUnderAttack) peakResident(t *testing.T) string {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(status), "VmHWM:")
	value, _, _ := strings.Cut(after, "\n")
	return strings.Join(strings.Fields(value), " ")
}
