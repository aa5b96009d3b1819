package podresources_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/podgauge/podgauge/internal/allocation"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/podresources"
	api "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// addClaims gives a container devices of a claim, each as "driver/name".
func addClaims(c *api.ContainerResources, claim string, devices ...string) *api.ContainerResources {
	d := &api.DynamicResource{ClaimName: claim, ClaimNamespace: "team"}
	for _, of := range devices {
		driver, name, _ := strings.Cut(of, "/")
		d.ClaimResources = append(d.ClaimResources, &api.ClaimResource{
			DriverName: driver, PoolName: "node-a", DeviceName: name,
			CdiDevices: []*api.CDIDevice{{Name: "k8s." + driver + "/claim=uid-" + name}},
		})
	}
	c.DynamicResources = append(c.DynamicResources, d)
	return c
}

// ownDevices are the devices a to d.
func ownDevices() *device.Inventory {
	devices := &device.Inventory{}
	var statuses []device.Status
	for _, id := range []device.ID{"a", "b", "c", "d"} {
		statuses = append(statuses, device.Status{Device: device.Device{ID: id}})
	}
	devices.Set(statuses)
	return devices
}

// byName finds the device a by the name gpu-a and its CDI name.
func byName(claim allocation.Claim) (device.ID, bool) {
	name, found := strings.CutPrefix(claim.Device, "gpu-")
	return device.ID(name), found && claim.Driver == "gpu.nvidia.com" && claim.Pool == "node-a" &&
		len(claim.CDI) == 1 && strings.HasSuffix(claim.CDI[0], claim.Device)
}

func TestClaims(t *testing.T) {
	inBubble(t, longAgo, podresources.Options{Devices: ownDevices(), ClaimedDevice: byName}, func(k *scriptedKubelet) {
		const mine = "gpu.nvidia.com/gpu-a"
		claims := []string{mine, "nic.example.com/gpu-a", "gpu.nvidia.com/x"}
		k.setPods(newPodWith("one", addClaims(newContainer("main"), "mine", claims...)))
		k.wantListed("a", "one")
		want := allocation.Allocation{Resource: "gpu.nvidia.com", DeviceID: "a", Owner: newOwner("one"), Claim: "mine"}
		if a := k.published(); !slices.Equal(a.All, []allocation.Allocation{want}) || len(a.Resources.Allocated.Claims) != 3 {
			t.Errorf("got allocations %v, claims %v", a.All, a.Resources.Allocated.Claims)
		}
		// A claim of two pods, of which the restarted kubelet lists the second first.
		one := newPodWith("one", addClaims(newContainer("main"), "ours", mine))
		two := newPodWith("two", addClaims(newContainer("main"), "ours", mine))
		k.setPods(one, two, newPod("three", "b"))
		k.wantListed("a", "shared", "b", "three")
		k.restart(two)
		k.wantListed("a", "shared", "b", "three")
		k.setPods(two, newPod("one"))
		k.wantListed("a", "two")
		k.setPods(newPod("one"))
		k.wantListed("a", "unallocated")
		for _, driver := range []string{"", gpu} { // invalid names
			k.setPods(newPodWith("one", addClaims(newContainer("main"), "mine", mine)))
			k.pods[0].Containers[0].DynamicResources[0].ClaimResources[0].DriverName = driver
			k.wantListed("a", "unallocated")
		}
	})
}

// TestSharesOfOneGPU has a container with two claims of a GPU, one of them with
// two shares, and another pod with a third claim.
func TestSharesOfOneGPU(t *testing.T) {
	inBubble(t, longAgo, podresources.Options{Devices: ownDevices(), ClaimedDevice: byName}, func(k *scriptedKubelet) {
		const gpuA = "gpu.nvidia.com/gpu-a"
		c := addClaims(addClaims(newContainer("main"), "first", gpuA, gpuA), "second", gpuA)
		for i, r := range c.DynamicResources[0].ClaimResources {
			r.ShareId = new(fmt.Sprint(i))
		}
		k.setPods(newPodWith("one", c), newPodWith("two", addClaims(newContainer("main"), "third", gpuA)))
		k.wantListed("a", "shared")
		var got []string
		for _, a := range k.published().All {
			got = append(got, a.Owner.Pod+" "+a.Claim)
		}
		if !slices.Equal(got, []string{"one first", "one second", "two third"}) || len(k.published().Resources.Allocated.Claims) != 4 {
			t.Errorf("got allocations %v, claims %v", got, k.published().Resources.Allocated.Claims)
		}
		k.setPods(newPodWith("one", c))
		k.wantListed("a", "one")
	})
}

// TestClaimRowsAreSingleDevices removes the CDI names that the kubelet accumulates,
// and duplicate rows after a repeated prepare.
func TestClaimRowsAreSingleDevices(t *testing.T) {
	const one, two, nic = "gpu.nvidia.com/gpu-a", "gpu.nvidia.com/gpu-b", "nic.example.com/eth0"
	for name, devices := range map[string][]string{
		"in order":        {one, two, nic},
		"in other order":  {two, nic, one},
		"repeated":        {one, two, one, two, one, two},
		"one of repeated": {one, one, two},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, longAgo, podresources.Options{Devices: ownDevices(), ClaimedDevice: byName}, func(k *scriptedKubelet) {
				c := addClaims(newContainer("main"), "pair", devices...)
				names := map[string][]*api.CDIDevice{}
				for _, r := range c.DynamicResources[0].ClaimResources {
					names[r.DriverName] = append(names[r.DriverName], r.CdiDevices...)
					r.CdiDevices = slices.Clone(names[r.DriverName])
				}
				k.setPods(newPodWith("one", c))
				a := k.list()
				if len(a.All) != 2 || len(a.Recent) != 2 {
					t.Errorf("got allocations %v, history %v", a.All, a.Recent)
				}
				for _, claim := range a.Resources.Allocated.Claims {
					if len(claim.CDI) != 1 || !strings.HasSuffix(claim.CDI[0], claim.Device) {
						t.Errorf("CDI names of %s: got %q", claim.Device, claim.CDI)
					}
				}
			})
		})
	}
}

// TestTwoPodsOfSameName lists a pod and its replacement together: an owner has one
// row of each kind, since two would be duplicate series.
func TestTwoPodsOfSameName(t *testing.T) {
	scripted(t, func(k *scriptedKubelet) {
		of := func(size uint64, cpus ...int64) *api.PodResources {
			p := newPodWith("p", addClaims(newContainer("main", "7"), "mine", "example.com/gpu-0"))
			p.Containers[0].CpuIds = cpus
			p.Containers[0].Memory = []*api.ContainerMemory{{MemoryType: "memory", Size: size}}
			p.CpuIds = cpus
			return p
		}
		k.setPods(of(5, 4, 1), of(6, 2), of(7, 1))
		r := k.list().Resources.Allocated
		if len(r.Devices) != 1 || len(r.CPUs) != 2 || len(r.Memory) != 1 || len(r.Claims) != 1 {
			t.Errorf("resources: got %+v", r)
		}
		if r.CPUs[0].Container != "" || r.CPUs[1].Container != "main" || r.Memory[0].Bytes != 5 {
			t.Errorf("resources: got %+v", r)
		}
	})
}

// TestResourcesWithSameID has an id of two resources: two allocations of a device.
func TestResourcesWithSameID(t *testing.T) {
	scripted(t, func(k *scriptedKubelet) {
		mig := newPod("two", "a")
		mig.Containers[0].Devices[0].ResourceName = "nvidia.com/mig"
		k.setPods(newPod("one", "a"), mig)
		k.wantListed("a", "shared")
		k.allocate("a")
		if a := k.published().All; len(a) != 2 || a[0].Owner != (allocation.Owner{}) || a[1].Owner != newOwner("two") {
			t.Errorf("after Allocate of one of them: got %v", a)
		}
	})
}
