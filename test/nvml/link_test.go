package nvmltest

import (
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

func TestLinks(t *testing.T) {
	runOnNode(t, func(n *testNode) {
		n.setup("gpu 0 link 0-17 none", "gpu 0 link 0-3 gpu 1", "gpu 0 link 2 off", "gpu 2 link 0-17 none", "gpu 1 pci 0001:3b:00.0")
		direct, none, switched := n.gpu(0), n.gpu(2), n.gpu(7)
		for link, want := range []nvml.EnableState{1, 1, 0, 1} {
			state, ret := direct.GetNvLinkState(link)
			n.want(nvml.SUCCESS, ret)
			if state != want {
				n.Errorf("link %d is %d, want %d", link, state, want)
			}
		}
		n.want(nvml.ERROR_INVALID_ARGUMENT, returnOf(direct.GetNvLinkState(4)))
		n.want(nvml.ERROR_NOT_SUPPORTED, returnOf(none.GetNvLinkState(0)))
		n.want(nvml.SUCCESS, returnOf(switched.GetNvLinkState(17)))
		n.want(nvml.ERROR_INVALID_ARGUMENT, returnOf(switched.GetNvLinkState(18)))

		for gpu, want := range map[nvml.Device]nvml.IntNvLinkDeviceType{direct: nvml.NVLINK_DEVICE_TYPE_GPU, switched: nvml.NVLINK_DEVICE_TYPE_SWITCH} {
			kind, ret := gpu.GetNvLinkRemoteDeviceType(3)
			n.want(nvml.SUCCESS, ret)
			if kind != want {
				n.Errorf("remote type is %d, want %d", kind, want)
			}
		}
		n.want(nvml.ERROR_NOT_SUPPORTED, returnOf(direct.GetNvLinkRemoteDeviceType(2)))
		far, ret := direct.GetNvLinkRemotePciInfo(3)
		n.want(nvml.SUCCESS, ret)
		near, _ := n.gpu(1).GetPciInfo()
		if far.Domain != 1 || far.Bus != 0x3b || far.BusId != near.BusId {
			n.Errorf("remote PCI is %+v, want %+v", far, near)
		}
		if bridge, ret := switched.GetNvLinkRemotePciInfo(3); ret != nvml.SUCCESS || bridge.Bus != 0xc7 {
			n.Errorf("PCI of the switch is %+v, %v", bridge, ret)
		}
	})
}

func TestAncestors(t *testing.T) {
	runOnNode(t, func(n *testNode) {
		n.setup("ancestor 0 1 single", "ancestor 6 * hostbridge")
		for _, c := range []struct {
			a, b int
			want nvml.GpuTopologyLevel
		}{
			{0, 1, nvml.TOPOLOGY_SINGLE},
			{1, 0, nvml.TOPOLOGY_SINGLE},
			{0, 2, nvml.TOPOLOGY_NODE},
			{0, 4, nvml.TOPOLOGY_SYSTEM},
			{0, 6, nvml.TOPOLOGY_HOSTBRIDGE},
		} {
			got, ret := n.gpu(c.a).GetTopologyCommonAncestor(n.gpu(c.b))
			n.want(nvml.SUCCESS, ret)
			if got != c.want {
				n.Errorf("common ancestor of %d and %d is %d, want %d", c.a, c.b, got, c.want)
			}
		}
		healthy, lost := n.gpu(0), n.gpu(2)
		n.setLines("gpu 2 lost")
		n.want(nvml.ERROR_GPU_IS_LOST, returnOf(healthy.GetTopologyCommonAncestor(lost)))
		n.want(nvml.ERROR_GPU_IS_LOST, returnOf(lost.GetTopologyCommonAncestor(healthy)))
	})
}
