package nvmltest

import (
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

func TestPlatform(t *testing.T) {
	runOnNode(t, func(n *testNode) {
		n.setup("gpu 0 model b200", "gpu 0 platform_slot 11", "gpu 0 platform_tray 4", "gpu 0 platform_host 2", "gpu 0 platform_peer 1", "gpu 0 platform_module 3",
			"gpu 0 chassis_serial 1821325191344")
		got, ret := n.gpu(0).GetPlatformInfo()
		n.want(nvml.SUCCESS, ret)
		if got.SlotNumber != 11 || got.TrayIndex != 4 || got.HostId != 2 || got.PeerType != 1 || got.ModuleId != 3 {
			n.Errorf("platform is %+v", got)
		}
		if serial := string(got.ChassisSerialNumber[:]); strings.TrimRight(serial, "\x00") != "1821325191344" {
			n.Errorf("chassis serial is %q", serial)
		}
		n.want(nvml.ERROR_NOT_SUPPORTED, returnOf(n.gpu(1).GetPlatformInfo()))
	})
}

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

func TestConfidentialComputing(t *testing.T) {
	runOnNode(t, func(n *testNode) {
		n.setup()
		for state, want := range map[string]nvml.ConfComputeSystemState{
			"off":      {Environment: 0, CcFeature: 0, DevToolsMode: 0},
			"on":       {Environment: 2, CcFeature: 1, DevToolsMode: 0},
			"devtools": {Environment: 2, CcFeature: 1, DevToolsMode: 1},
		} {
			n.setLines("confidential " + state)
			got, ret := n.SystemGetConfComputeState()
			n.want(nvml.SUCCESS, ret)
			if got != want {
				n.Errorf("%s: %+v", state, got)
			}
			n.want(nvml.SUCCESS, returnOf(n.SystemGetConfComputeCapabilities()))
		}
		n.setLines("confidential none")
		n.want(nvml.ERROR_NOT_SUPPORTED, returnOf(n.SystemGetConfComputeState()))
	})
}
