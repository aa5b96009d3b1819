package rules_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/podgauge/podgauge/internal/config"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/rules"
	"github.com/podgauge/podgauge/test/helpers/require"
	"github.com/spf13/pflag"
)

// parseStatuses parses a node from words: "A100" is a GPU, "A100/1g.5gb*7" a GPU with MIG devices.
func parseStatuses(words string) []device.Status {
	var all []device.Status
	for i, word := range strings.Fields(words) {
		model, slices, partitioned := strings.Cut(word, "/")
		gpu := device.Status{Healthy: true, Device: device.Device{
			ID: device.ID(fmt.Sprint("GPU-", i)), GPU: device.GPU(fmt.Sprint("GPU-", i)), Index: i, MIGEnabled: partitioned,
			MIGDeviceIndex: -1, GI: -1, CI: -1, Model: "NVIDIA " + model, NUMANode: -1,
		}}
		all = append(all, gpu)
		for profiles := range strings.SplitSeq(slices, ",") {
			profile, times, _ := strings.Cut(profiles, "*")
			n := 0
			fmt.Sscan(times, &n) //nolint:errcheck // missing: 0
			for range n {
				migDevice := gpu
				migDevice.MIGEnabled, migDevice.Profile, migDevice.MIGDeviceIndex = false, profile, len(all)
				migDevice.ID = device.ID(fmt.Sprint("MIG-", len(all)))
				all = append(all, migDevice)
			}
		}
	}
	return all
}

// TestNvidiaSamples checks that the samples of NVIDIA's README, chart and operator result in the documented device lists.
func TestNvidiaSamples(t *testing.T) {
	const eightGPUs = "A100 A100 A100 A100 A100 A100 A100 A100"
	const migGPUs = "A100/1g.5gb*7 A100/2g.10gb*3 A100/3g.20gb*2 A100/7g.40gb*1"
	for _, c := range []struct{ file, name, node, want string }{
		{"readme-flags.yaml", "", eightGPUs, "nvidia.com/gpu=8"},
		{"readme-timeslicing.yaml", "", eightGPUs, "nvidia.com/gpu=80"},
		{"readme-timeslicing-renamed.yaml", "", eightGPUs, "nvidia.com/gpu.shared=80"},
		{"readme-mps.yaml", "", eightGPUs, "nvidia.com/gpu=80"},
		{"readme-mps-renamed.yaml", "", eightGPUs, "nvidia.com/gpu.shared=80"},
		{"readme-two", "config0", eightGPUs, "nvidia.com/gpu=8"},
		{"readme-two", "config1", migGPUs + " A100", "nvidia.com/gpu=1 nvidia.com/mig-1g.5gb=7 nvidia.com/mig-2g.10gb=3 nvidia.com/mig-3g.20gb=2 nvidia.com/mig-7g.40gb=1"},
		{"values-map", "mig-single", "A100/1g.5gb*7 A100/1g.5gb*7", "nvidia.com/gpu=14"},
		{"values-map", "mig-mixed", migGPUs, "nvidia.com/mig-1g.5gb=7 nvidia.com/mig-2g.10gb=3 nvidia.com/mig-3g.20gb=2 nvidia.com/mig-7g.40gb=1"},
		{"operator-all", "", "T4 T4", "nvidia.com/gpu=8"},
		{"operator-fine", "tesla-t4", "T4", "nvidia.com/gpu=4"},
		{"operator-fine", "a100-40gb", migGPUs + " A100", "nvidia.com/gpu=8 nvidia.com/mig-1g.5gb=14 nvidia.com/mig-2g.10gb=6 nvidia.com/mig-3g.20gb=6 nvidia.com/mig-7g.40gb=7"},
	} {
		t.Run(c.file+c.name, func(t *testing.T) {
			b := config.NewBuilder(func(string) (string, bool) { return "", false })
			f := pflag.NewFlagSet("", pflag.ContinueOnError)
			b.AddFlags(f)
			file := filepath.Join("../config/testdata/nvidia", c.file)
			require.NoError(t, f.Parse([]string{"--config-file=" + file, "--config-name=" + c.name, "--mps-root=/run/nvidia/mps"}))
			loaded, err := b.Load()
			require.NoError(t, err)
			lists, warnings := rules.Preview(loaded.Settings, nil).Preview(parseStatuses(c.node))
			var got []string
			for _, list := range lists {
				got = append(got, fmt.Sprintf("%s=%d", list.Name, len(list.IDs)))
			}
			if strings.Join(got, " ") != c.want || len(warnings) > 0 {
				t.Errorf("device lists: got %q, warnings %q, want %s", got, warnings, c.want)
			}
		})
	}
}
