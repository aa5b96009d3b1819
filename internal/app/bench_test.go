package app

import (
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/podgauge/podgauge/exporter"
	"github.com/podgauge/podgauge/internal/device"
)

// envScraper makes this test binary a Prometheus that scrapes an address a number of times, "<times> <url>", without pauses.
const envScraper = "PODGAUGE_TEST_SCRAPER"

// runScraper scrapes as specified, then returns.
func runScraper(spec string) {
	var times int
	var url string
	if _, err := fmt.Sscan(spec, &times, &url); err != nil {
		panic(err)
	}
	s := &scrapeClient{client: http.DefaultClient}
	s.request, _ = http.NewRequest(http.MethodGet, url, http.NoBody)
	s.request.Header.Set("Accept-Encoding", "gzip")
	for range times {
		if err := s.scrapeOnce(); err != nil {
			panic(err)
		}
	}
}

// scrapeClient is a client of an exporter.
type scrapeClient struct {
	request *http.Request
	client  *http.Client
	series  int
	bytes   int
}

// newScrapeClient scrapes until all allocations and the allocatable devices are exported.
func newScrapeClient(tb testing.TB, url string, allocations int) *scrapeClient {
	tb.Helper()
	s := &scrapeClient{client: http.DefaultClient}
	var err error
	if s.request, err = http.NewRequest(http.MethodGet, url, http.NoBody); err != nil {
		tb.Fatal(err)
	}
	s.request.Header.Set("Accept-Encoding", "gzip")
	waitUntil(tb, "all allocations are exported", func() bool { return strings.Count(s.text(tb), `nvidia_gpu_allocation_info{`) == allocations })
	for line := range strings.Lines(s.text(tb)) {
		if !strings.HasPrefix(line, "#") {
			s.series++
		}
	}
	return s
}

// uncachedHandler makes each scrape start a collection: otherwise scrapes within a second share one.
func uncachedHandler(e *exporter.Exporter, board *device.Inventory, statuses []device.Status, s exporter.HandlerOptions) http.Handler {
	h := e.Handler(s)
	other := slices.Clone(statuses)
	other[0].Flaps++
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		statuses, other = other, statuses
		board.Set(statuses)
		h.ServeHTTP(w, r)
	})
}

func waitUntil(tb testing.TB, event string, done func() bool) {
	tb.Helper()
	poll := time.NewTicker(pollInterval)
	defer poll.Stop()
	for end := time.Now().Add(waitTimeout); !done(); <-poll.C {
		if time.Now().After(end) {
			tb.Fatalf("not within %s: %s", waitTimeout, event)
		}
	}
}

// scrape sends one request and discards the response.
func (s *scrapeClient) scrape(tb testing.TB) {
	if err := s.scrapeOnce(); err != nil {
		tb.Fatal(err)
	}
}

func (s *scrapeClient) scrapeOnce() error {
	resp, err := s.client.Do(s.request)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	n, err := io.Copy(io.Discard, resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Encoding") != "gzip" {
		return fmt.Errorf("status %d, %w, encoding %q", resp.StatusCode, err, resp.Header.Get("Content-Encoding"))
	}
	s.bytes = int(n)
	return nil
}

// scrapeElsewhere scrapes from another process, so that this process does not pay for the client.
func (s *scrapeClient) scrapeElsewhere(tb testing.TB, times int) {
	client := exec.Command(os.Args[0])
	client.Env = append(os.Environ(), fmt.Sprintf("%s=%d %s", envScraper, times, s.request.URL))
	client.Stderr = os.Stderr
	if err := client.Run(); err != nil {
		tb.Fatal(err)
	}
}

func (s *scrapeClient) text(tb testing.TB) string {
	resp, err := s.client.Do(s.request)
	if err != nil {
		tb.Fatal(err)
	}
	defer resp.Body.Close()
	z, err := gzip.NewReader(resp.Body)
	if err != nil {
		tb.Fatal(err)
	}
	text, err := io.ReadAll(z)
	if err != nil {
		tb.Fatal(err)
	}
	return string(text)
}

// cpuTime returns the CPU time of this process.
func cpuTime(tb testing.TB) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		tb.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// basicFamilies are equivalent to dcgm-exporter's default set: 200 series on eight GPUs, as many as in that set.
var basicFamilies = []string{
	"nvidia_gpu_memory_*", "nvidia_gpu_utilization_ratio", "nvidia_gpu_*coder_utilization_ratio",
	"nvidia_gpu_power_watts", "nvidia_gpu_energy_joules_total", "nvidia_gpu_temperature_celsius", "nvidia_gpu_clock_hertz",
	"nvidia_gpu_pcie_*mit_bytes_total", "nvidia_gpu_pcie_receive_bytes_total", "nvidia_gpu_pcie_replays_total",
	"nvidia_gpu_remapped_rows", "nvidia_gpu_row_remap_failure", "nvidia_gpu_healthy", "nvidia_gpu_allocated", "nvidia_gpu_allocation_info",
}

// migFamilies are the families that GPU instances have, and their state: some 1,400 series on 56 MIG devices.
var migFamilies = []string{
	"nvidia_gpu_memory_*", "nvidia_gpu_bar1_*", "nvidia_gpu_graphics_*", "nvidia_gpu_sm_*", "nvidia_gpu_pipe_*", "nvidia_gpu_dram_*",
	"nvidia_gpu_info", "nvidia_gpu_healthy", "nvidia_gpu_allocated", "nvidia_gpu_allocation_info",
}

// benchNodes are the nodes of the scrape measurements.
var benchNodes = []struct {
	name string
	node benchNode
}{
	{"gpus=8/usual", benchNode{Pods: 110, Include: basicFamilies}},
	{"gpus=8/usual/pods=500", benchNode{Pods: 500, Include: basicFamilies}},
	{"gpus=8/default", benchNode{Pods: 110, Processes: true, Set: "default", Runtime: true}},
	{"gpus=64/default", benchNode{GPUs: 64, Pods: 110, Processes: true, Set: "default", Runtime: true}},
	{"gpus=8/all", benchNode{Pods: 110, Processes: true}},
	{"gpus=8/all_with_go_and_process", benchNode{Pods: 110, Processes: true, Runtime: true}},
	{"mig=56/own", benchNode{Pods: 110, MIGDevices: 7, Include: migFamilies}},
	{"mig=56/all", benchNode{Pods: 110, MIGDevices: 7, Processes: true}},
	{"replicas=32/all", benchNode{Pods: 110, Replicas: 4, Processes: true}},
}

// BenchmarkScrape measures a whole scrape over real sockets, with List and gzip. Kubelet and Prometheus are separate processes, so only
// podgauge is measured. cpu-µs/op is its CPU time.
func BenchmarkScrape(b *testing.B) {
	for _, c := range benchNodes {
		b.Run(c.name, func(b *testing.B) {
			s := newBenchClient(b, c.node)
			b.ReportAllocs()
			s.scrape(b)
			b.ResetTimer()
			began := cpuTime(b)
			s.scrapeElsewhere(b, b.N)
			b.ReportMetric(float64((cpuTime(b)-began).Microseconds())/float64(b.N), "cpu-µs/op")
			b.ReportMetric(float64(s.series), "series")
			b.ReportMetric(float64(s.bytes), "bytes")
		})
	}
}
