package app

import (
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"testing"

	"github.com/podgauge/podgauge/internal/device"
)

// machineOf writes a node as words: "A100" is a GPU, "A100/1g.5gb*7" one with slices.
func machineOf(words string) []device.Status {
	var all []device.Status
	for i, word := range strings.Fields(words) {
		model, slices, partitioned := strings.Cut(word, "/")
		gpu := device.Status{Healthy: true, Device: device.Device{
			ID: device.ID(fmt.Sprint("GPU-", i)), GPU: device.GPU(fmt.Sprint("GPU-", i)), Index: i, MIG: partitioned,
			Slice: -1, GI: -1, CI: -1, Model: "NVIDIA " + model, NUMANode: -1,
		}}
		all = append(all, gpu)
		for part := range strings.SplitSeq(slices, ",") {
			profile, times, _ := strings.Cut(part, "*")
			n := 0
			fmt.Sscan(times, &n) //nolint:errcheck // none is 0
			for range n {
				slice := gpu
				slice.MIG, slice.Profile, slice.Slice = false, profile, len(all)
				slice.ID = device.ID(fmt.Sprint("MIG-", len(all)))
				all = append(all, slice)
			}
		}
	}
	return all
}

// The samples of NVIDIA's README, chart and operator offer what is said beside them.
func TestNvidiasSamplesOfferWhatNvidiaSays(t *testing.T) {
	const eight = "A100 A100 A100 A100 A100 A100 A100 A100"
	const slices = "A100/1g.5gb*7 A100/2g.10gb*3 A100/3g.20gb*2 A100/7g.40gb*1"
	for _, c := range []struct{ file, name, node, want string }{
		{"readme-flags.yaml", "", eight, "nvidia.com/gpu=8"},
		{"readme-timeslicing.yaml", "", eight, "nvidia.com/gpu=80"},
		{"readme-timeslicing-renamed.yaml", "", eight, "nvidia.com/gpu.shared=80"},
		{"readme-mps.yaml", "", eight, "nvidia.com/gpu=80"},
		{"readme-mps-renamed.yaml", "", eight, "nvidia.com/gpu.shared=80"},
		{"readme-two", "config0", eight, "nvidia.com/gpu=8"},
		{"readme-two", "config1", slices + " A100", "nvidia.com/gpu=1 nvidia.com/mig-1g.5gb=7 nvidia.com/mig-2g.10gb=3 nvidia.com/mig-3g.20gb=2 nvidia.com/mig-7g.40gb=1"},
		{"values-map", "mig-single", "A100/1g.5gb*7 A100/1g.5gb*7", "nvidia.com/gpu=14"},
		{"values-map", "mig-mixed", slices, "nvidia.com/mig-1g.5gb=7 nvidia.com/mig-2g.10gb=3 nvidia.com/mig-3g.20gb=2 nvidia.com/mig-7g.40gb=1"},
		{"operator-all", "", "T4 T4", "nvidia.com/gpu=8"},
		{"operator-fine", "tesla-t4", "T4", "nvidia.com/gpu=4"},
		{"operator-fine", "a100-40gb", slices + " A100", "nvidia.com/gpu=8 nvidia.com/mig-1g.5gb=14 nvidia.com/mig-2g.10gb=6 nvidia.com/mig-3g.20gb=6 nvidia.com/mig-7g.40gb=7"},
	} {
		t.Run(c.file+c.name, func(t *testing.T) {
			file := filepath.Join("../../internal/config/testdata/nvidia", c.file)
			o, err := parse(testPlatform{}, []string{"--config-file=" + file, "--config-name=" + c.name, "--mps-root=/run/nvidia/mps"}, nothing, io.Discard)
			if err != nil {
				t.Fatal(err)
			}
			offers, cannot := rules(o.loaded.Settings, nil, nil).Preview(machineOf(c.node))
			var got []string
			for _, offer := range offers {
				got = append(got, fmt.Sprintf("%s=%d", offer.Resource, len(offer.IDs)))
			}
			if strings.Join(got, " ") != c.want || len(cannot) > 0 {
				t.Errorf("offered are %q, not %q; want %s", got, cannot, c.want)
			}
		})
	}
}
