package nvmltest

import (
	"fmt"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

func TestEnumeration(t *testing.T) {
	runOnNode(t, func(n *testNode) {
		n.setup()
		version, ret := n.SystemGetDriverVersion()
		n.want(nvml.SUCCESS, ret)
		if version != "580.95.05" {
			n.Errorf("driver %q", version)
		}
		count, ret := n.DeviceGetCount()
		n.want(nvml.SUCCESS, ret)
		if count != 8 {
			n.Fatalf("%d GPUs, want 8", count)
		}
		for i := range count {
			checkIdentity(n, i)
		}
		_, ret = n.DeviceGetHandleByIndex(8)
		n.want(nvml.ERROR_INVALID_ARGUMENT, ret)
		_, ret = n.DeviceGetHandleByUUID("GPU-of-another-node")
		n.want(nvml.ERROR_NOT_FOUND, ret)
		_, ret = n.DeviceGetHandleByPciBusId("0000:99:00.0")
		n.want(nvml.ERROR_NOT_FOUND, ret)
	})
}

func checkIdentity(n *testNode, i int) {
	gpu := n.gpu(i)
	for want, get := range map[string]func() (string, nvml.Return){
		fmt.Sprintf("GPU-00000000-0000-4000-8000-%012d", i): gpu.GetUUID,
		fmt.Sprintf("16500000%05d", i):                      gpu.GetSerial,
		"NVIDIA H100 80GB HBM3":                             gpu.GetName,
		"96.00.74.00.01":                                    gpu.GetVbiosVersion,
	} {
		got, ret := get()
		n.want(nvml.SUCCESS, ret)
		if got != want {
			n.Errorf("GPU %d: got %q, want %q", i, got, want)
		}
	}
	for _, get := range []func() (int, nvml.Return){gpu.GetIndex, gpu.GetMinorNumber} {
		got, ret := get()
		n.want(nvml.SUCCESS, ret)
		if got != i {
			n.Errorf("GPU %d: index or minor number is %d", i, got)
		}
	}
	pci, ret := gpu.GetPciInfo()
	n.want(nvml.SUCCESS, ret)
	if pci.Bus != uint32(0x10+i) || pci.PciDeviceId != 0x233010DE {
		n.Errorf("GPU %d: PCI is %+v", i, pci)
	}
	for _, address := range []string{fmt.Sprintf("0000:%02x:00.0", 0x10+i), fmt.Sprintf("00000000:%02X:00.0", 0x10+i)} {
		found, ret := n.DeviceGetHandleByPciBusId(address)
		n.want(nvml.SUCCESS, ret)
		if found != gpu {
			n.Errorf("%s is not GPU %d", address, i)
		}
	}
	uuid, _ := gpu.GetUUID()
	if found, ret := n.DeviceGetHandleByUUID(uuid); ret != nvml.SUCCESS || found != gpu {
		n.Errorf("%s is not GPU %d: %v", uuid, i, ret)
	}
}

func TestGPUCountChanges(t *testing.T) {
	runOnNode(t, func(n *testNode) {
		n.setup("gpus 2", "gpu 1 uuid GPU-of-mine", "gpu * name A GPU with a long name")
		last := n.gpu(1)
		uuid, _ := last.GetUUID()
		name, _ := last.GetName()
		if uuid != "GPU-of-mine" || name != "A GPU with a long name" {
			n.Errorf("GPU 1 is %q, %q", uuid, name)
		}
		n.setLines("gpus 1")
		if count, _ := n.DeviceGetCount(); count != 1 {
			n.Errorf("%d GPUs, want 1", count)
		}
		_, ret := last.GetUUID()
		n.want(nvml.ERROR_INVALID_ARGUMENT, ret)
		n.setLines("gpus 16")
		_, ret = last.GetUUID()
		n.want(nvml.SUCCESS, ret)
		n.gpu(15)
	})
}

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
