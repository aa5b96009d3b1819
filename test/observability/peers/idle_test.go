package peers

import (
	"bufio"
	"cmp"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	nvmltest "github.com/podgauge/podgauge/test/nvml"
)

// quietGap separates two wake-ups in a trace.
const quietGap = 0.02 // seconds

// idleFunctions are the functions of NVML that an idle process calls.
var idleFunctions = []string{
	"nvmlDeviceGetCount_v2", "nvmlDeviceGetFieldValues", "nvmlDeviceGetGpuFabricInfoV", "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetMigMode",
	"nvmlDeviceGetSramEccErrorStatus", "nvmlDeviceGetUnrepairableMemoryFlag_v1", "nvmlEventSetWait_v2", "nvmlGpmMetricsGet", "nvmlGpmSampleGet",
}

// TestIdleMinute logs context switches and NVML calls of podgauge in a minute without pods and scrapes and, if strace is installed,
// wake-ups and system calls. PODGAUGE_IDLE has further flags of podgauge, or "default".
func TestIdleMinute(t *testing.T) {
	flags := os.Getenv("PODGAUGE_IDLE")
	if flags == "" {
		t.Skip("PODGAUGE_IDLE is not set: make bench-idle")
	}
	c := &comparison{podgauge: copyAsUnpacked(t, "../../../bin/podgauge", t.TempDir()), library: nvmlLibrary(t), idle: time.Minute}
	if testing.Short() {
		c.idle = 20 * time.Second
	}
	n := newMachine(t, c.library, gpuCount)
	command := c.podgaugeCommand(n, "127.0.0.1:0")
	if flags != "default" {
		command = append(command, strings.Fields(flags)...)
	}
	p := startProcess(t, n, command...)
	n.waitForHealthy(t, gpuCount)
	time.Sleep(c.idle * 5 / 4) // podgauge takes GPM samples in the first minute
	before, callsBefore := p.usage(t), readCalls(t, p)
	time.Sleep(c.idle)
	u, calls := p.usage(t).since(before), readCalls(t, p).Since(callsBefore)
	seconds := c.idle.Seconds()
	t.Logf("CPU %.3f %%, %.1f context switches a second, %.2f NVML calls a second",
		100*u.cpu.Seconds()/seconds, float64(u.contextSwitches)/seconds, float64(u.nvmlCalls)/seconds)
	for _, name := range idleFunctions {
		count := uint64(0)
		for gpu := range nvmltest.NoGPU + 1 {
			count += calls.Count(name, gpu)
		}
		if count > 0 {
			t.Logf("%6d %s", count, name)
		}
	}
	traceIdle(t, p, filepath.Join(n.dir, "trace"), c.idle)
}

func readCalls(t *testing.T, p *process) nvmltest.CallCounts {
	t.Helper()
	calls, err := nvmltest.ReadCalls(p.callsFile)
	if err != nil {
		t.Fatal(err)
	}
	return calls
}

// traceIdle logs the wake-ups and system calls of a process.
func traceIdle(t *testing.T, p *process, file string, d time.Duration) {
	t.Helper()
	strace, err := exec.LookPath("strace")
	if err != nil {
		t.Log("strace is not installed")
		return
	}
	tracer := exec.Command(strace, "-f", "-ttt", "-o", file, "-p", strconv.Itoa(p.Process.Pid))
	if err := tracer.Start(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(d)
	tracer.Process.Signal(syscall.SIGINT)
	tracer.Wait()
	trace, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer trace.Close()
	line := regexp.MustCompile(`^\d+ +(\d+\.\d+) (<\.\.\. )?(\w+)(?:\(.*?"(/[^"]+)")?`)
	var wakeUps int
	var last float64
	seen, calls := map[string]bool{}, map[string]int{}
	inWakeUps := map[string]int{}
	for lines := bufio.NewScanner(trace); lines.Scan(); {
		m := line.FindStringSubmatch(lines.Text())
		if m == nil {
			continue
		}
		at, _ := strconv.ParseFloat(m[1], 64)
		if at-last > quietGap {
			wakeUps++
			clear(seen)
		}
		last = at
		if m[2] != "" { // the end of a call that is already counted
			continue
		}
		name := strings.TrimSpace(m[3] + " " + m[4])
		calls[name]++
		if !seen[name] {
			seen[name] = true
			inWakeUps[name]++
		}
	}
	t.Logf("%d wake-ups in %s", wakeUps, d)
	for _, name := range slices.SortedFunc(maps.Keys(calls), func(a, b string) int { return cmp.Compare(calls[b], calls[a]) }) {
		t.Logf("%6d in %4d wake-ups: %s", calls[name], inWakeUps[name], name)
	}
}
