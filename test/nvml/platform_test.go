package nvmltest

import (
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

func TestFabricBeforeItsVersions(t *testing.T) {
	runOnNode(t, func(n *testNode) {
		n.setup("gpu 0 fabric_state 2", "gpu 0 fabric_health 5")
		old, ret := n.gpu(0).GetGpuFabricInfoV().V2()
		n.want(nvml.SUCCESS, ret)
		oldest, ret := n.gpu(0).GetGpuFabricInfoV().V1()
		n.want(nvml.SUCCESS, ret)
		if old.State != 2 || old.HealthMask != 5 || oldest.State != 2 {
			n.Errorf("got %+v and %+v", old, oldest)
		}
	})
}
