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

// scraper, in the environment, has it be a Prometheus that scrapes the address so
// often, "<times> <url>", as fast as it is answered.
const scraper = "PODGAUGE_TEST_SCRAPER"

// beScraper scrapes and ends.
func beScraper(order string) {
	var times int
	var url string
	if _, err := fmt.Sscan(order, &times, &url); err != nil {
		panic(err)
	}
	s := &scraped{client: http.DefaultClient}
	s.request, _ = http.NewRequest(http.MethodGet, url, http.NoBody)
	s.request.Header.Set("Accept-Encoding", "gzip")
	for range times {
		if err := s.scrapeOnce(); err != nil {
			panic(err)
		}
	}
}

// scraped is a client of an exporter.
type scraped struct {
	request *http.Request
	client  *http.Client
	series  int
	bytes   int
}

// newScraper asks until so many holdings are shown, and what the kubelet would give away.
func newScraper(tb testing.TB, url string, holdings int) *scraped {
	tb.Helper()
	s := &scraped{client: http.DefaultClient}
	var err error
	if s.request, err = http.NewRequest(http.MethodGet, url, http.NoBody); err != nil {
		tb.Fatal(err)
	}
	s.request.Header.Set("Accept-Encoding", "gzip")
	until(tb, "the holders are shown", func() bool { return strings.Count(s.text(tb), `nvidia_gpu_allocation_info{`) == holdings })
	for line := range strings.Lines(s.text(tb)) {
		if !strings.HasPrefix(line, "#") {
			s.series++
		}
	}
	return s
}

// fresh makes each scrape fly: one within a second of another would share.
func fresh(e *exporter.Exporter, board *device.Board, statuses []device.Status, s exporter.Server) http.Handler {
	h := e.Handler(s)
	other := slices.Clone(statuses)
	other[0].Flaps++
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		statuses, other = other, statuses
		board.Post(statuses)
		h.ServeHTTP(w, r)
	})
}

func until(tb testing.TB, what string, is func() bool) {
	tb.Helper()
	poll := time.NewTicker(pollGap)
	defer poll.Stop()
	for end := time.Now().Add(deadline); !is(); <-poll.C {
		if time.Now().After(end) {
			tb.Fatalf("not within %s: %s", deadline, what)
		}
	}
}

// scrape asks once and drops the answer as it comes.
func (s *scraped) scrape(tb testing.TB) {
	if err := s.scrapeOnce(); err != nil {
		tb.Fatal(err)
	}
}

func (s *scraped) scrapeOnce() error {
	answer, err := s.client.Do(s.request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	n, err := io.Copy(io.Discard, answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK || answer.Header.Get("Content-Encoding") != "gzip" {
		return fmt.Errorf("status %d, %w, encoding %q", answer.StatusCode, err, answer.Header.Get("Content-Encoding"))
	}
	s.bytes = int(n)
	return nil
}

// scrapeElsewhere has another process scrape, so that the client costs this one
// nothing.
func (s *scraped) scrapeElsewhere(tb testing.TB, times int) {
	client := exec.Command(os.Args[0])
	client.Env = append(os.Environ(), fmt.Sprintf("%s=%d %s", scraper, times, s.request.URL))
	client.Stderr = os.Stderr
	if err := client.Run(); err != nil {
		tb.Fatal(err)
	}
}

func (s *scraped) text(tb testing.TB) string {
	answer, err := s.client.Do(s.request)
	if err != nil {
		tb.Fatal(err)
	}
	defer answer.Body.Close()
	z, err := gzip.NewReader(answer.Body)
	if err != nil {
		tb.Fatal(err)
	}
	text, err := io.ReadAll(z)
	if err != nil {
		tb.Fatal(err)
	}
	return string(text)
}

// cpu is what this process has used.
func cpu(tb testing.TB) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		tb.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// usual are the families that stand for dcgm-exporter's default set: on eight GPUs they
// are 200 series, as many as that has.
var usual = []string{
	"nvidia_gpu_memory_*", "nvidia_gpu_utilization_ratio", "nvidia_gpu_*coder_utilization_ratio",
	"nvidia_gpu_power_watts", "nvidia_gpu_energy_joules_total", "nvidia_gpu_temperature_celsius", "nvidia_gpu_clock_hertz",
	"nvidia_gpu_pcie_*mit_bytes_total", "nvidia_gpu_pcie_receive_bytes_total", "nvidia_gpu_pcie_replays_total",
	"nvidia_gpu_remapped_rows", "nvidia_gpu_row_remap_failure", "nvidia_gpu_healthy", "nvidia_gpu_allocated", "nvidia_gpu_allocation_info",
}

// ofSlices are what GPU instances have of their own, and their state: on 56 slices some
// 1,400 series.
var ofSlices = []string{
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
	{"gpus=8/usual", benchNode{Pods: 110, Include: usual}, 600},
	{"gpus=8/usual/pods=500", benchNode{Pods: 500, Include: usual}, 600},
	{"gpus=8/all", benchNode{Pods: 110, Processes: true}, 700},
	{"gpus=8/all_with_go_and_process", benchNode{Pods: 110, Processes: true, Runtime: true}, 1800},
	{"slices=56/own", benchNode{Pods: 110, Slices: 7, Include: ofSlices}, 600},
	{"slices=56/all", benchNode{Pods: 110, Slices: 7, Processes: true}, 700},
	{"replicas=32/all", benchNode{Pods: 110, Replicas: 4, Processes: true}, 700},
}

// BenchmarkScrape is a whole scrape over real sockets, with List and gzip. Kubelet and
// Prometheus are processes of their own; what is left is podgauge's, its CPU time as
// cpu-µs/op.
func BenchmarkScrape(b *testing.B) {
	for _, c := range benchNodes {
		b.Run(c.name, func(b *testing.B) {
			s := newScraped(b, c.node)
			b.ReportAllocs()
			s.scrape(b)
			b.ResetTimer()
			began := cpu(b)
			s.scrapeElsewhere(b, b.N)
			b.ReportMetric(float64((cpu(b)-began).Microseconds())/float64(b.N), "cpu-µs/op")
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
			s := newScraped(t, c.node)
			n := testing.AllocsPerRun(100, func() { s.scrape(t) })
			if t.Logf("%d series, %d bytes, %.0f allocations", s.series, s.bytes, n); n > c.mostAllocations {
				t.Errorf("a scrape of %d series makes %.0f allocations, want %.0f at most", s.series, n, c.mostAllocations)
			}
		})
	}
}
