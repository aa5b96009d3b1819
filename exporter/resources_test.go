package exporter

import (
	"testing"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/test/bubble"
)

func TestResources(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		d := newScrapeFixture(1)
		owner := device.Owner{Namespace: "n", Pod: "p", Container: "c"}
		nic := func(id string, nodes ...int) device.ResourceDevice {
			return device.ResourceDevice{Resource: "example.com/nic", ID: id, NUMANodes: nodes}
		}
		d.allocations.Resources = device.NodeResources{
			AllocatableKnown: true,
			Allocatable: device.ResourceSet{
				Devices: []device.ResourceDevice{nic("eth0", 0), nic("eth1", 0), nic("eth2", 0, 1), nic("eth\"3")},
				CPUs:    []device.ExclusiveCPUs{{CPUs: []int64{2, 3, 4, 5, 6, 7}}},
				Memory:  []device.ReservedMemory{{Type: "hugepages-2Mi", Bytes: 4 << 20, NUMANodes: []int{1}}},
			},
			Allocated: device.ResourceSet{
				Devices: []device.ResourceDevice{{Owner: owner, Resource: "example.com/nic", ID: "eth1", NUMANodes: []int{0}}},
				CPUs:    []device.ExclusiveCPUs{{Owner: owner, CPUs: []int64{7, 3, 2}}},
				Memory:  []device.ReservedMemory{{Owner: owner, Type: "memory", Bytes: 1 << 30, NUMANodes: []int{0}}},
				Claims:  []device.Claim{{Owner: owner, ClaimNamespace: "n", ClaimName: "p-gpu", Driver: "gpu.nvidia.com", Pool: "node-a", Device: "gpu-0"}},
			},
		}
		e := New(d.sources(), Options{})
		text := scrape(t, newHandler(e))
		for _, series := range []string{
			`podgauge_resource_allocatable_devices{numa_node="",resource="example.com/nic"} 1`,
			`podgauge_resource_allocatable_devices{numa_node="0",resource="example.com/nic"} 2`,
			`podgauge_resource_allocatable_devices{numa_node="0,1",resource="example.com/nic"} 1`,
			`podgauge_resource_device_info{device_id="eth\"3",numa_node="",resource="example.com/nic"} 1`,
			`podgauge_resource_allocation_info{container="c",device_id="eth1",namespace="n",numa_node="0",pod="p",resource="example.com/nic"} 1`,
			`podgauge_allocatable_cpus 6`, `podgauge_shared_cpus 3`,
			`podgauge_container_exclusive_cpus{container="c",namespace="n",pod="p"} 3`,
			`podgauge_container_exclusive_cpus_info{container="c",cpus="2-3,7",namespace="n",pod="p"} 1`,
			`podgauge_allocatable_memory_bytes{numa_node="1",type="hugepages-2Mi"} 4.194304e+06`,
			`podgauge_container_reserved_memory_bytes{container="c",namespace="n",numa_node="0",pod="p",type="memory"} 1.073741824e+09`,
			`podgauge_claim_info{claim="p-gpu",claim_namespace="n",container="c",device="gpu-0",driver="gpu.nvidia.com",namespace="n",pod="p",pool="node-a",share=""} 1`,
		} {
			assertSeries(t, text, series)
		}

		// Unknown allocatable resources are absent, not 0.
		d.allocations.Resources.AllocatableKnown = false
		d.expireCollection()
		text = scrape(t, newHandler(e))
		assertAbsent(t, text, "podgauge_allocatable_cpus")
		assertAbsent(t, text, "podgauge_resource_device_info")
		assertSeries(t, text, `podgauge_container_exclusive_cpus{container="c",namespace="n",pod="p"} 3`)
	})
}
