package nvmltest

import (
	"fmt"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

func TestValuesOverTime(t *testing.T) {
	runOnNode(t, func(n *testNode) {
		begin := time.Now().Add(-time.Hour)
		n.setup(fmt.Sprintf("epoch %.6f", float64(begin.UnixNano())/1e9),
			"gpu 0 energy 5000+1000/s", "gpu 0 temperature 40~60/0.02s")
		gpu := n.gpu(0)
		since := func(t time.Time) uint64 { return 5000 + uint64(t.Sub(begin).Milliseconds()) }
		seen := map[uint32]bool{}
		var last uint64
		n.waitUntil("the temperature has more than 10 values", func() bool {
			before := time.Now()
			energy, ret := gpu.GetTotalEnergyConsumption()
			n.want(nvml.SUCCESS, ret)
			// The stand-in extrapolates the clock, so that values may differ a little.
			const slack = 100
			if energy < last || energy < since(before)-slack || energy > since(time.Now())+slack {
				n.Fatalf("energy is %d after %d, want about %d", energy, last, since(before))
			}
			last = energy
			celsius, ret := gpu.GetTemperature(nvml.TEMPERATURE_GPU)
			n.want(nvml.SUCCESS, ret)
			if celsius < 40 || celsius > 60 {
				n.Fatalf("temperature %d is not between 40 and 60", celsius)
			}
			seen[celsius] = true
			return len(seen) > 10
		})
	})
}
