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

// envScraper, in the environment, has it be a Prometheus that scrapes the address so
// often, "<times> <url>", as fast as it is answered.
const envScraper = "PODGAUGE_TEST_SCRAPER"

// runScraper scrapes and ends.
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

// uncachedHandler makes each scrape fly: one within a second of another would share.
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

func waitUntil(tb testing.TB, what string, done func() bool) {
	tb.Helper()
	poll := time.NewTicker(pollInterval)
	defer poll.Stop()
	for end := time.Now().Add(waitTimeout); !done(); <-poll.C {
		if time.Now().After(end) {
			tb.Fatalf("not within %s: %s", waitTimeout, what)
		}
	}
}

// scrape asks once and drops the answer as it comes.
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

// scrapeElsewhere has another process scrape, so that the client costs this one
// nothing.
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

// cpuTime is what this process has used.
func cpuTime(tb testing.TB) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		tb.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// basicFamilies are the families that stand for dcgm-exporter's default set: on eight GPUs they
// are 200 series, as many as that has.
var basicFamilies = []string{
	"nvidia_gpu_memory_*", "nvidia_gpu_utilization_ratio", "nvidia_gpu_*coder_utilization_ratio",
	"nvidia_gpu_power_watts", "nvidia_gpu_energy_joules_total", "nvidia_gpu_temperature_celsius", "nvidia_gpu_clock_hertz",
	"nvidia_gpu_pcie_*mit_bytes_total", "nvidia_gpu_pcie_receive_bytes_total", "nvidia_gpu_pcie_replays_total",
	"nvidia_gpu_remapped_rows", "nvidia_gpu_row_remap_failure", "nvidia_gpu_healthy", "nvidia_gpu_allocated", "nvidia_gpu_allocation_info",
}

// migFamilies are what GPU instances have of their own, and their state: on 56 slices some
// 1,400 series.
var migFamilies = []string{
	"nvidia_gpu_memory_*", "nvidia_gpu_bar1_*", "nvidia_gpu_graphics_*", "nvidia_gpu_sm_*", "nvidia_gpu_pipe_*", "nvidia_gpu_dram_*",
	"nvidia_gpu_info", "nvidia_gpu_healthy", "nvidia_gpu_allocated", "nvidia_gpu_allocation_info",
}

// benchNodes are the nodes whose scrapes are measured, and what one of them allocates at
// most, HTTP's on both sides and gRPC's included.
var benchNodes = []struct {
	name            string
	node            benchNode
	mostAllocations float64
}{
	{"gpus=8/usual", benchNode{Pods: 110, Include: basicFamilies}, 600},
	{"gpus=8/usual/pods=500", benchNode{Pods: 500, Include: basicFamilies}, 600},
	{"gpus=8/default", benchNode{Pods: 110, Processes: true, Set: "default", Runtime: true}, 700},
	{"gpus=8/all", benchNode{Pods: 110, Processes: true}, 700},
	{"gpus=8/all_with_go_and_process", benchNode{Pods: 110, Processes: true, Runtime: true}, 1800},
	{"slices=56/own", benchNode{Pods: 110, MIGDevices: 7, Include: migFamilies}, 600},
	{"slices=56/all", benchNode{Pods: 110, MIGDevices: 7, Processes: true}, 700},
	{"replicas=32/all", benchNode{Pods: 110, Replicas: 4, Processes: true}, 700},
}

// BenchmarkScrape is a whole scrape over real sockets, with List and gzip. Kubelet and
// Prometheus are processes of their own; what is left is podgauge's, its CPU time as
// cpu-µs/op.
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

// TestScrapeAllocations pins what a scrape allocates.
func TestScrapeAllocations(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates too; make test runs this one without it")
	}
	for _, c := range benchNodes {
		t.Run(c.name, func(t *testing.T) {
			s := newBenchClient(t, c.node)
			n := testing.AllocsPerRun(100, func() { s.scrape(t) })
			if t.Logf("%d series, %d bytes, %.0f allocations", s.series, s.bytes, n); n > c.mostAllocations {
				t.Errorf("a scrape of %d series makes %.0f allocations, want %.0f at most", s.series, n, c.mostAllocations)
			}
		})
	}
}
