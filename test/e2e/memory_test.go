package e2e

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/podgauge/podgauge/test/e2e/node"
)

// TestMemory measures podgauge's memory during scrapes every second. PODGAUGE_SOAK is the duration (make soak).
func TestMemory(t *testing.T) {
	soak(t, 34, newPlainMachine, []string{gpuResource}, nil)
}

// TestMemoryOfEverything is TestMemory with 56 MIG devices and all optional metrics.
func TestMemoryOfEverything(t *testing.T) {
	soak(t, 42, newMIGMachine, []string{smallMIGResource}, []string{
		"--mig-strategy=mixed", "--metrics.set=full", "--metrics.dcgm", "--metrics.nvlink-links", "--metrics.pod-uid", "--metrics.labels-allowlist=*",
	})
}

func newPlainMachine(t *testing.T, n *node.RealNode) *simulatedMachine {
	return newMachine(t, n, "gpu * utilization 0~100/20s", "gpu * power 70000~700000/30s")
}

func newMIGMachine(t *testing.T, n *node.RealNode) *simulatedMachine {
	m := newPlainMachine(t, n)
	for i := range defaultGPUs {
		m.setLines(t, scenarioLines(newMIGDevices(i, slices.Repeat([]string{"1g.10gb"}, 7)...))...)
	}
	return m
}

// soak runs podgauge on a machine, with pods that have one and two devices of each resource. limitMB is in units of 2^20 bytes.
func soak(t *testing.T, limitMB int, makeMachine func(*testing.T, *node.RealNode) *simulatedMachine, resources, args []string) {
	duration, err := time.ParseDuration(cmp.Or(os.Getenv("PODGAUGE_SOAK"), "20s"))
	if err != nil {
		t.Fatalf("PODGAUGE_SOAK: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), duration+2*time.Minute)
	defer cancel()
	n := node.ForTest(ctx, t, node.Options{})
	startKubelet(ctx, t, n)
	backdateKubelet(t, n)
	t.Setenv("PODGAUGE_BIN", copyAsUnpacked(t))
	d := makeMachine(t, n).start(t, n, args...)
	for _, resource := range resources {
		await(ctx, t, resource+" is allocatable", func(ctx context.Context) error {
			ids, err := n.Allocatable(ctx, resource)
			if len(ids) < defaultGPUs {
				return fmt.Errorf("allocatable devices: got %d, want at least %d, %w", len(ids), defaultGPUs, err)
			}
			return nil
		})
		runPod(ctx, t, n, podWithResource("one", resource, 1))
		runPod(ctx, t, n, podWithResource("two", resource, 2))
	}
	prometheus, err := runPrometheus(ctx, n, scrapeTarget{
		Job: honorLabelsJob, Address: fmt.Sprintf("127.0.0.1:%d", defaultPort), HonorLabels: true, Interval: time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	await(ctx, t, "Prometheus has scraped podgauge", func(ctx context.Context) error { return checkAllScraped(ctx, prometheus) })

	resident, anonymous, pauses := sampleMemory(ctx, t, d, duration)
	quarter := len(anonymous) / 4
	early, late := slices.Max(anonymous[quarter:2*quarter]), slices.Max(anonymous[3*quarter:])
	printMeasurement(t, fmt.Sprintf("maximum resident memory over %s, scraped every second", duration),
		fmt.Sprintf("%.1f MB (2^20 bytes); limit %d MB. Anonymous memory: maximum %.1f MB in the second quarter, %.1f MB in the last",
			megabytes(slices.Max(resident)), limitMB, megabytes(early), megabytes(late)))
	limit := limitMB << 20
	if timeoutFactor() > 1 { // on a busy machine, the kernel maps more pages of the program's file at once
		limit += limit / 10
	}
	if bytes := slices.Max(resident); bytes > limit {
		t.Errorf("resident memory: got %d bytes, want at most %d", bytes, limit)
	}
	// Go's heap grows in the first half minute. Pages of the program's file do not count: they grow if the kernel maps huge pages.
	if growth := late - early; growth > 1<<20 && duration >= 2*time.Minute {
		t.Errorf("growth of anonymous memory from the second to the last quarter: got %d bytes, want at most %d", growth, 1<<20)
	}
	failed, err := failedScrapes(ctx, prometheus, duration)
	if err != nil {
		t.Error(err)
	}
	for _, at := range failed {
		if paused := slices.ContainsFunc(pauses, func(p processPause) bool { return p.overlapsScrape(at) }); paused {
			t.Logf("scrape at %s failed during a pause of the machine", at.Format(time.TimeOnly))
		} else {
			t.Errorf("scrape at %s failed", at.Format(time.TimeOnly))
		}
	}
	t.Logf("pauses of the test process of at least half a second: %v", pauses)
	samples, err := prometheus.Query(ctx, fmt.Sprintf(`count_over_time(up{job=%q}[%dms])`, honorLabelsJob, duration.Milliseconds()))
	if err != nil || len(samples) != 1 || float64(samples[0].Value) < 0.9*duration.Seconds() {
		t.Errorf("number of scrapes: got %v, %v, want at least %.0f", samples, err, 0.9*duration.Seconds())
	}
}

// copyAsUnpacked returns a copy of podgauge, written in blocks of 32 KB as containerd unpacks a layer. The kernel keeps the file of Go's
// linker in huge pages, and a huge page counts as resident as a whole.
func copyAsUnpacked(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "podgauge")
	to, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	from, err := os.Open(commandLine(t)[0])
	if err != nil {
		t.Fatal(err)
	}
	// The anonymous structs hide WriteTo and ReadFrom, which would copy larger blocks.
	_, err = io.CopyBuffer(struct{ io.Writer }{to}, struct{ io.Reader }{from}, make([]byte, 32<<10))
	if err = errors.Join(err, to.Close(), from.Close()); err != nil {
		t.Fatal(err)
	}
	return path
}

// checkAllScraped returns an error unless all scrapes of podgauge have succeeded.
func checkAllScraped(ctx context.Context, p *node.PrometheusServer) error {
	samples, err := p.Query(ctx, fmt.Sprintf(`min_over_time(up{job=%q}[1h])`, honorLabelsJob))
	if err != nil || len(samples) != 1 || samples[0].Value != 1 {
		return fmt.Errorf("minimum of up: got %v, %w", samples, err)
	}
	return nil
}

// processPause is a time during which the test process did not run.
type processPause struct{ begin, end time.Time }

// overlapsScrape reports whether a scrape with a timeout of a second overlaps the pause or the second after it.
func (p processPause) overlapsScrape(scrape time.Time) bool {
	return scrape.After(p.begin.Add(-time.Second)) && scrape.Before(p.end.Add(time.Second))
}

func (p processPause) String() string {
	return fmt.Sprintf("%s (%s)", p.begin.Format(time.TimeOnly), p.end.Sub(p.begin).Round(100*time.Millisecond))
}

// failedScrapes returns the times of failed scrapes of podgauge during the last period of this length.
func failedScrapes(ctx context.Context, p *node.PrometheusServer, duration time.Duration) (failed []time.Time, err error) {
	now := time.Now()
	all, err := p.QueryRange(ctx, fmt.Sprintf(`min_over_time(up{job=%q}[1s])`, honorLabelsJob), now.Add(-duration), now, time.Second)
	if err != nil || len(all) != 1 {
		return nil, fmt.Errorf("number of series of up: got %d, %w", len(all), err)
	}
	for _, point := range all[0].Values {
		if point.Value != 1 {
			failed = append(failed, point.Timestamp.Time())
		}
	}
	return failed, nil
}

// sampleMemory samples podgauge's resident memory and its anonymous part four times a second. It also returns pauses between samples.
func sampleMemory(ctx context.Context, t *testing.T, d *podgaugeProcess, duration time.Duration) (resident, anonymous []int, pauses []processPause) {
	t.Helper()
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	begin := time.Now()
	for last := begin; time.Since(begin) < duration && ctx.Err() == nil; <-tick.C {
		now := time.Now()
		if now.Sub(last) > 750*time.Millisecond {
			pauses = append(pauses, processPause{last, now})
		}
		last = now
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", d.PID))
		if err != nil {
			t.Fatal(err)
		}
		var size, pages, files int // proc_pid_statm(5)
		if _, err := fmt.Sscan(string(b), &size, &pages, &files); err != nil {
			t.Fatal(err)
		}
		resident = append(resident, pages*os.Getpagesize())
		anonymous = append(anonymous, (pages-files)*os.Getpagesize())
	}
	return resident, anonymous, pauses
}

func megabytes(bytes int) float64 { return float64(bytes) / (1 << 20) }
