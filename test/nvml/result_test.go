package nvmltest

import (
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// TestResults checks that functions without simulated behavior return the numbers of the scenario.
func TestResults(t *testing.T) {
	runOnNode(t, func(n *testNode) {
		n.setup("gpus 2", "gpu 0 call nvmlDeviceGetNumFans 2", "gpu 0 call nvmlDeviceGetFanSpeed_v2/1 40")
		first, second := n.gpu(0), n.gpu(1)
		if fans, ret := first.GetNumFans(); fans != 2 || ret != nvml.SUCCESS {
			t.Errorf("got %d fans, %d", fans, ret)
		}
		if speed, ret := first.GetFanSpeed_v2(1); speed != 40 || ret != nvml.SUCCESS {
			t.Errorf("got speed %d, %d", speed, ret)
		}
		if _, ret := first.GetFanSpeed_v2(0); ret != nvml.ERROR_NOT_SUPPORTED {
			t.Errorf("second fan: got %d", ret)
		}
		if _, ret := second.GetNumFans(); ret != nvml.ERROR_NOT_SUPPORTED {
			t.Errorf("second GPU: got %d", ret)
		}
	})
}
