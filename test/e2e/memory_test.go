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

// TestMemory has Prometheus scrape podgauge every second, for the time that PODGAUGE_SOAK says (make soak), and watches what it takes.
func TestMemory(t *testing.T) {
	soak(t, 27, newPlainMachine, []string{gpuResource}, nil)
}

// TestMemoryOfEverything is the same with all that podgauge can do, on 56 MIG devices.
func TestMemoryOfEverything(t *testing.T) {
	soak(t, 32, newMIGMachine, []string{smallMIGResource}, []string{
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

// soak lets podgauge run on a machine, with pods that hold one and two of a resource's devices. It may take so many MB (2^20 bytes).
func soak(t *testing.T, most int, made func(*testing.T, *node.RealNode) *simulatedMachine, offered, args []string) {
	long, err := time.ParseDuration(cmp.Or(os.Getenv("PODGAUGE_SOAK"), "20s"))
	if err != nil {
		t.Fatalf("PODGAUGE_SOAK: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), long+2*time.Minute)
	defer cancel()
	n := node.ForTest(ctx, t, node.Options{})
	startKubelet(ctx, t, n)
	backdateKubelet(t, n)
	t.Setenv("PODGAUGE_BIN", copyAsUnpacked(t))
	d := made(t, n).start(t, n, args...)
	for _, resource := range offered {
		await(ctx, t, resource+" can be given away", func(ctx context.Context) error {
			ids, err := n.Allocatable(ctx, resource)
			if len(ids) < defaultGPUs {
				return fmt.Errorf("%d are: %w", len(ids), err)
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

	resident, own, pauses := sampleMemory(ctx, t, d, long)
	quarter := len(own) / 4
	early, late := slices.Max(own[quarter:2*quarter]), slices.Max(own[3*quarter:])
	printMeasurement(t, fmt.Sprintf("resident memory over %s, scraped every second", long),
		fmt.Sprintf("%.1f MB at most; may be %d MB (2^20 bytes each). Of it pages of its own, not of files: %.1f MB at most in the second quarter, %.1f MB in the last",
			megabytes(slices.Max(resident)), most, megabytes(early), megabytes(late)))
	if bytes := slices.Max(resident); bytes > most<<20 {
		t.Errorf("podgauge takes %d bytes", bytes)
	}
	// In its first half minute Go's heap still finds its size. What is mapped of the program's
	// file grows when the kernel finds a huge page for it, and never above the file's size: that
	// is no growth of podgauge's.
	if growth := late - early; growth > 1<<20 && long >= 2*time.Minute {
		t.Errorf("podgauge grew by %d bytes from the second quarter of the time to the last", growth)
	}
	failed, err := failedScrapes(ctx, prometheus, long)
	if err != nil {
		t.Error(err)
	}
	for _, at := range failed {
		if stopped := slices.ContainsFunc(pauses, func(p processPause) bool { return p.overlapsScrape(at) }); stopped {
			t.Logf("the scrape of %s failed while the machine did not run this test either", at.Format(time.TimeOnly))
		} else {
			t.Errorf("the scrape of %s failed", at.Format(time.TimeOnly))
		}
	}
	t.Logf("the machine did not run this test for half a second or more: %v", pauses)
	samples, err := prometheus.Query(ctx, fmt.Sprintf(`count_over_time(up{job=%q}[%dms])`, honorLabelsJob, long.Milliseconds()))
	if err != nil || len(samples) != 1 || float64(samples[0].Value) < 0.9*long.Seconds() {
		t.Errorf("scrapes in that time: %v, %v", samples, err)
	}
}

// copyAsUnpacked is a copy of podgauge, written as containerd unpacks a layer: in pieces of 32 KB. The file as Go's linker leaves it is kept by the
// kernel in huge pages, and all of one counts as resident where a process has touched any of it.
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
	// Either of the two could copy in larger pieces by itself.
	_, err = io.CopyBuffer(struct{ io.Writer }{to}, struct{ io.Reader }{from}, make([]byte, 32<<10))
	if err = errors.Join(err, to.Close(), from.Close()); err != nil {
		t.Fatal(err)
	}
	return path
}

// checkAllScraped says whether Prometheus' scrapes of podgauge have all succeeded.
func checkAllScraped(ctx context.Context, p *node.PrometheusServer) error {
	samples, err := p.Query(ctx, fmt.Sprintf(`min_over_time(up{job=%q}[1h])`, honorLabelsJob))
	if err != nil || len(samples) != 1 || samples[0].Value != 1 {
		return fmt.Errorf("up was %v: %w", samples, err)
	}
	return nil
}

// processPause is a time in which the test's process did not run.
type processPause struct{ begin, end time.Time }

// overlapsScrape reports whether a scrape that began then, and had a second, met the pause or what had to be caught up on after it.
func (p processPause) overlapsScrape(scrape time.Time) bool {
	return scrape.After(p.begin.Add(-time.Second)) && scrape.Before(p.end.Add(time.Second))
}

func (p processPause) String() string {
	return fmt.Sprintf("%s (%s)", p.begin.Format(time.TimeOnly), p.end.Sub(p.begin).Round(100*time.Millisecond))
}

// failedScrapes returns when the scrapes of podgauge began that failed within the last time of that length.
func failedScrapes(ctx context.Context, p *node.PrometheusServer, long time.Duration) (failed []time.Time, err error) {
	now := time.Now()
	all, err := p.QueryRange(ctx, fmt.Sprintf(`min_over_time(up{job=%q}[1s])`, honorLabelsJob), now.Add(-long), now, time.Second)
	if err != nil || len(all) != 1 {
		return nil, fmt.Errorf("up has %d series: %w", len(all), err)
	}
	for _, point := range all[0].Values {
		if point.Value != 1 {
			failed = append(failed, point.Timestamp.Time())
		}
	}
	return failed, nil
}

// sampleMemory looks every quarter of a second: at all that is resident, and at what of it
// is no file's. Pauses are the times in which it could not.
func sampleMemory(ctx context.Context, t *testing.T, d *podgaugeProcess, long time.Duration) (resident, own []int, pauses []processPause) {
	t.Helper()
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	begin := time.Now()
	for last := begin; time.Since(begin) < long && ctx.Err() == nil; <-tick.C {
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
		own = append(own, (pages-files)*os.Getpagesize())
	}
	return resident, own, pauses
}

func megabytes(bytes int) float64 { return float64(bytes) / (1 << 20) }
