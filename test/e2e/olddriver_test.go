package e2e

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/test/e2e/node"
)

// newerSymbols are a dozen functions that drivers of a few years ago lack: what each gives is then to be had from an older one, or not at all.
var newerSymbols = []string{
	"nvmlInit_v2", "nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetMemoryInfo_v2",
	"nvmlEventSetWait_v2", "nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetSupportedClocksEventReasons",
	"nvmlDeviceGetMigMode", "nvmlDeviceGetCudaComputeCapability", "nvmlSystemGetCudaDriverVersion_v2", "nvmlDeviceGetFieldValues",
}

// TestOldDriver compares what podgauge shows on a driver that lacks them with what it shows on a new one.
func TestOldDriver(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	old, err := buildLibrary("old", newerSymbols...)
	if err != nil {
		t.Fatal(err)
	}
	n := node.ForTest(ctx, t, node.Options{})
	startKubelet(ctx, t, n)
	backdateKubelet(t, n)
	m := newMachine(t, n)
	d := m.start(t, n)
	waitForAllocatable(ctx, t, n, uuids(defaultGPUs)...)
	full := d.nextScrape(ctx, t)
	if found := full.series["podgauge_family_unsupported"]; len(found) > 0 {
		t.Errorf("on a new driver there is %v", found)
	}
	d.stop(t)
	waitForAllocatable(ctx, t, n)

	m.libraryDir = old
	m.setLines(t, "driver 450.51.05")
	d = m.start(t, n)
	waitForAllocatable(ctx, t, n, uuids(defaultGPUs)...)
	pod := podWithGPUs("train", 1)
	runPod(ctx, t, n, pod)
	s := d.nextScrape(ctx, t)
	if err := s.checkNoWrongOwner(map[string]node.OwnerKey{allocatedGPU(ctx, t, n, pod): mainContainer(pod)}); err != nil {
		t.Error(err)
	}
	said := []string{}
	for _, sample := range s.series["podgauge_family_unsupported"] {
		said = append(said, sample.Labels["family"])
	}
	slices.Sort(said)
	// A family that has lost some of its series is called unsupported as well, and so is one that this GPU has on no driver.
	absent, poorer := missingFamilies(full, s)
	whole := slices.DeleteFunc(slices.Clone(said), func(family string) bool { return len(s.series[family]) == 0 || slices.Contains(poorer, family) })
	if len(absent) == 0 || !containsAll(said, absent) || len(whole) > 0 {
		t.Errorf("it says that it cannot have %q; %q are not there, %q are poorer, and %q are whole", said, absent, poorer, whole)
	}
	if lines := d.logLines(t, append(absent, "level=")...); len(lines) != 1 {
		t.Errorf("of %q it logs %q", absent, lines)
	}
	printMeasurement(t, fmt.Sprintf("families of %d that are absent on a driver that lacks %d functions", countHardwareFamilies(full), len(newerSymbols)),
		fmt.Sprintf("%d (%s), poorer %d (%s)", len(absent), strings.Join(absent, " "), len(poorer), strings.Join(poorer, " ")))
}

// missingFamilies are the hardware families that only the first scrape has, and those of which the second has fewer series; sorted.
func missingFamilies(full, s metricsScrape) (absent, poorer []string) {
	for _, name := range slices.Sorted(maps.Keys(full.series)) {
		switch was, is := len(full.series[name]), len(s.series[name]); {
		case !strings.HasPrefix(name, "nvidia_gpu_") || is >= was:
		case is == 0:
			absent = append(absent, name)
		default:
			poorer = append(poorer, name)
		}
	}
	return absent, poorer
}

// countHardwareFamilies counts the hardware families.
func countHardwareFamilies(s metricsScrape) (count int) {
	for name := range s.series {
		if strings.HasPrefix(name, "nvidia_gpu_") {
			count++
		}
	}
	return count
}

func containsAll(all, some []string) bool {
	return !slices.ContainsFunc(some, func(s string) bool { return !slices.Contains(all, s) })
}
