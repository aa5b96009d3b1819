package e2e

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/podgauge/podgauge/test/e2e/node"
	"github.com/podgauge/podgauge/test/helpers/testfile"
)

// TestMemory measures podgauge's memory during scrapes every second. PODGAUGE_SOAK is the duration (make soak).
func TestMemory(t *testing.T) { soak(t, 34, gpuResource, nil) }

// TestMemoryOfEverything is TestMemory with 56 MIG devices and all optional metrics.
func TestMemoryOfEverything(t *testing.T) {
	lines := []string{}
	for i := range defaultGPUs {
		lines = append(lines, scenarioLines(newMIGDevices(i, slices.Repeat([]string{"1g.10gb"}, 7)...))...)
	}
	soak(t, 42, smallMIGResource, lines, "--mig-strategy=mixed", "--metrics.dcgm", "--metrics.nvlink-links", "--metrics.pod-uid", "--metrics.labels-allowlist=*")
}

// soak runs podgauge with pods that have one and two devices of the resource. limitMB is in units of 2^20 bytes.
func soak(t *testing.T, limitMB int, resource string, lines []string, args ...string) {
	duration, err := time.ParseDuration(cmp.Or(os.Getenv("PODGAUGE_SOAK"), "20s"))
	must(t, err)
	n := startNode(t, node.Options{})
	t.Setenv("PODGAUGE_BIN", testfile.CopyUnpacked(t, commandLine(t)[0], t.TempDir()))
	m := newMachine(t, n, append([]string{"gpu * utilization 0~100/20s", "gpu * power 70000~700000/30s"}, lines...)...)
	d := m.start(t, n, args...)
	await(t, resource+" is allocatable", func(ctx context.Context) error {
		ids, err := n.Allocatable(ctx, resource)
		if len(ids) < defaultGPUs {
			return fmt.Errorf("allocatable devices: got %d, want at least %d, %w", len(ids), defaultGPUs, err)
		}
		return nil
	})
	runPod(t, n, podWithResource("one", resource, 1))
	runPod(t, n, podWithResource("two", resource, 2))
	scrapes := watchScrapes(t, d, time.Second, func(metricsScrape) error { return nil })
	resident, anonymous := sampleMemory(t, d, duration)
	if count := scrapes.stop(t); float64(count) < 0.9*duration.Seconds() {
		t.Errorf("number of scrapes in %s: got %d", duration, count)
	}
	quarter := len(anonymous) / 4
	early, late := slices.Max(anonymous[quarter:2*quarter]), slices.Max(anonymous[3*quarter:])
	printMeasurement(t, fmt.Sprintf("maximum resident memory over %s, scraped every second", duration),
		fmt.Sprintf("%.1f MB (2^20 bytes); limit %d MB. Anonymous memory: maximum %.1f MB in the second quarter, %.1f MB in the last",
			megabytes(slices.Max(resident)), limitMB, megabytes(early), megabytes(late)))
	limit := limitMB << 20
	if node.Tolerance() > 1 { // on a busy machine, the kernel maps more pages of the program's file at once
		limit += limit / 10
	}
	if bytes := slices.Max(resident); bytes > limit {
		t.Errorf("resident memory: got %d bytes, want at most %d", bytes, limit)
	}
	// Go's heap grows in the first half minute. Pages of the program's file do not count: they grow if the kernel maps huge pages.
	if growth := late - early; growth > 1<<20 && duration >= 2*time.Minute {
		t.Errorf("growth of anonymous memory from the second to the last quarter: got %d bytes, want at most %d", growth, 1<<20)
	}
}

// sampleMemory samples podgauge's resident memory and its anonymous part four times a second.
func sampleMemory(t *testing.T, d *podgaugeProcess, duration time.Duration) (resident, anonymous []int) {
	t.Helper()
	for end := time.Now().Add(duration); time.Now().Before(end); waitUntil(t, time.Now().Add(250*time.Millisecond)) {
		b := testfile.Read(t, fmt.Sprintf("/proc/%d/statm", d.PID))
		var size, pages, files int // proc_pid_statm(5)
		_, err := fmt.Sscan(b, &size, &pages, &files)
		must(t, err)
		resident = append(resident, pages*os.Getpagesize())
		anonymous = append(anonymous, (pages-files)*os.Getpagesize())
	}
	return resident, anonymous
}

func megabytes(bytes int) float64 { return float64(bytes) / (1 << 20) }
