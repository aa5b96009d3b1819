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

// newerSymbols are functions that older drivers lack. Podgauge calls an older function instead, if one exists.
var newerSymbols = []string{
	"nvmlInit_v2", "nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetMemoryInfo_v2",
	"nvmlEventSetWait_v2", "nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetSupportedClocksEventReasons",
	"nvmlDeviceGetMigMode", "nvmlDeviceGetCudaComputeCapability", "nvmlSystemGetCudaDriverVersion_v2", "nvmlDeviceGetFieldValues",
}

// TestOldDriver compares podgauge's metrics with a driver without newerSymbols to its metrics with a current driver.
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
		t.Errorf("unsupported families with a current driver: got %v, want none", found)
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
	unsupported := []string{}
	for _, sample := range s.series["podgauge_family_unsupported"] {
		unsupported = append(unsupported, sample.Labels["family"])
	}
	slices.Sort(unsupported)
	// Families with fewer series are unsupported as well, and families that the GPU does not support with any driver.
	absent, reduced := missingFamilies(full, s)
	complete := slices.DeleteFunc(slices.Clone(unsupported), func(f string) bool { return len(s.series[f]) == 0 || slices.Contains(reduced, f) })
	if len(absent) == 0 || !containsAll(unsupported, absent) || len(complete) > 0 {
		t.Errorf("unsupported families: got %q, want all absent %q, perhaps reduced %q, but not complete %q", unsupported, absent, reduced, complete)
	}
	if lines := d.logLines(t, append(absent, "level=")...); len(lines) != 1 {
		t.Errorf("log lines with the families %q: got %q, want one", absent, lines)
	}
	printMeasurement(t, fmt.Sprintf("families absent with a driver without %d functions, of %d", len(newerSymbols), countHardwareFamilies(full)),
		fmt.Sprintf("%d (%s); families with fewer series: %d (%s)", len(absent), strings.Join(absent, " "), len(reduced), strings.Join(reduced, " ")))
}

// missingFamilies returns the sorted hardware families that are absent or have fewer series in the second scrape.
func missingFamilies(full, s metricsScrape) (absent, reduced []string) {
	for _, name := range slices.Sorted(maps.Keys(full.series)) {
		switch was, is := len(full.series[name]), len(s.series[name]); {
		case !strings.HasPrefix(name, "nvidia_gpu_") || is >= was:
		case is == 0:
			absent = append(absent, name)
		default:
			reduced = append(reduced, name)
		}
	}
	return absent, reduced
}

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
