package podresources

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	api "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// addClaims gives a container devices of a claim, each as "driver/name".
func addClaims(c *api.ContainerResources, claim string, devices ...string) *api.ContainerResources {
	d := &api.DynamicResource{ClaimName: claim, ClaimNamespace: "team"}
	for _, of := range devices {
		driver, name, _ := strings.Cut(of, "/")
		d.ClaimResources = append(d.ClaimResources, &api.ClaimResource{
			DriverName: driver, PoolName: "node-a", DeviceName: name, CdiDevices: []*api.CDIDevice{{Name: "k8s." + driver + "/claim=uid-" + name}},
		})
	}
	c.DynamicResources = append(c.DynamicResources, d)
	return c
}

// resolveClaims makes the client find claimed devices by name and CDI name.
func resolveClaims(c *Client, inventory map[string]device.ID) {
	c.options.Devices = claimIndex(func(claim device.Claim) (device.ID, bool) {
		if claim.Driver != "gpu.nvidia.com" || len(claim.CDI) != 1 || !strings.HasSuffix(claim.CDI[0], claim.Device) || claim.Pool != "node-a" {
			return "", false
		}
		id, ok := inventory[claim.Device]
		return id, ok
	})
}

// claimIndex is a DeviceIndex of a node with the devices a to d.
type claimIndex func(device.Claim) (device.ID, bool)

func (claimIndex) DeviceIDs() []device.ID { return []device.ID{"a", "b", "c", "d"} }

func (f claimIndex) ClaimedDevice(claim device.Claim) (device.ID, bool) { return f(claim) }

func TestClaimAllocatesDevice(t *testing.T) {
	runScripted(t, kubeletAgeInTests, func(t *testing.T, k *scriptedKubelet, c *Client) {
		inventory := map[string]device.ID{"gpu-a": "a", "gpu-b": "b"}
		k.setPods(newPodWith("one", addClaims(newContainer("main"), "mine", "gpu.nvidia.com/gpu-a", "gpu.nvidia.com/gpu-z", "nic.example.com/gpu-a")))
		wantDevice(t, c.ListAllocations(t.Context()), "a", "unallocated") // without a DeviceIndex
		resolveClaims(c, inventory)
		h := c.ListAllocations(t.Context())
		want := device.Allocation{Resource: "gpu.nvidia.com", DeviceID: "a", Owner: newOwner("one")}
		if len(h.All) != 1 || h.All[0] != want || len(h.Resources.Allocated.Claims) != 3 {
			t.Errorf("allocations: %+v, claims: %+v", h.All, h.Resources.Allocated.Claims)
		}

		inventory["gpu-z"] = "z" // missing before
		wantDevice(t, c.ListAllocations(t.Context()), "z", "allocated to one")

		// A claim of two pods, and a device both claimed and allocated by a plugin.
		k.setPods(newPodWith("one", addClaims(newContainer("main"), "ours", "gpu.nvidia.com/gpu-a")),
			newPodWith("two", addClaims(newContainer("main"), "ours", "gpu.nvidia.com/gpu-a")), newPod("three", "b"))
		h = c.ListAllocations(t.Context())
		wantDevice(t, h, "a", "shared")
		wantDevice(t, h, "b", "allocated to three")
		wantDevice(t, h, "z", "unallocated")

		// After a restart, the owner listed later is retained.
		k.setPods(newPodWith("two", addClaims(newContainer("main"), "ours", "gpu.nvidia.com/gpu-a")))
		k.restart()
		h = c.ListAllocations(t.Context())
		wantDevice(t, h, "a", "shared")
		wantDevice(t, h, "b", "allocated to three")
		k.setPods(newPodWith("one", newContainer("main")), newPodWith("two", addClaims(newContainer("main"), "ours", "gpu.nvidia.com/gpu-a")))
		wantDevice(t, c.ListAllocations(t.Context()), "a", "allocated to two")
		k.setPods(newPodWith("one", newContainer("main")))
		wantDevice(t, c.ListAllocations(t.Context()), "a", "unallocated") // this connection has listed two
		time.Sleep(settleTimeout)
		wantDevice(t, c.ListAllocations(t.Context()), "b", "unallocated")
	})
}

// TestClaimRowsAreSingleDevices checks the removal of the kubelet's accumulated CDI names, and of duplicate rows after a repeated prepare.
func TestClaimRowsAreSingleDevices(t *testing.T) {
	rows := func(prepared int, drivers ...string) *api.ContainerResources {
		c := newContainer("main")
		for range prepared {
			addClaims(c, "pair", drivers...)
		}
		of := c.DynamicResources[0]
		for _, more := range c.DynamicResources[1:] {
			of.ClaimResources = append(of.ClaimResources, more.ClaimResources...)
		}
		c.DynamicResources = c.DynamicResources[:1]
		return c
	}
	cumulative := func(c *api.ContainerResources) *api.ContainerResources {
		driver, names := "", []*api.CDIDevice(nil)
		for _, r := range c.DynamicResources[0].ClaimResources {
			if r.DriverName != driver {
				driver, names = r.DriverName, nil
			}
			names = append(names, r.CdiDevices...)
			r.CdiDevices = slices.Clone(names)
		}
		return c
	}
	const one, two, nic = "gpu.nvidia.com/gpu-a", "gpu.nvidia.com/gpu-b", "nic.example.com/eth0"
	for name, c := range map[string]*api.ContainerResources{
		"each row by itself":               rows(1, one, two, nic),
		"cumulative":                       cumulative(rows(1, one, two, nic)),
		"the other driver first":           cumulative(rows(1, nic, one, two)),
		"the devices in the other order":   cumulative(rows(1, two, one, nic)),
		"repeated":                         rows(2, one, two),
		"repeated and cumulative":          cumulative(rows(3, one, two)),
		"one device repeated, cumulative":  cumulative(rows(2, one, one, two)),
		"an extended resource's, repeated": cumulative(rows(2, two, one)),
	} {
		runScripted(t, kubeletAgeInTests, func(t *testing.T, k *scriptedKubelet, client *Client) {
			resolveClaims(client, map[string]device.ID{"gpu-a": "a", "gpu-b": "b"})
			p := newPodWith("one", c)
			k.setPods(p)
			h := client.ListAllocations(t.Context())
			want := []device.Allocation{
				{Resource: "gpu.nvidia.com", DeviceID: "a", Owner: newOwner("one")}, {Resource: "gpu.nvidia.com", DeviceID: "b", Owner: newOwner("one")},
			}
			if !slices.Equal(h.All, want) || len(h.Recent) != 2 {
				t.Errorf("%s: allocations: %+v, history: %+v", name, h.All, h.Recent)
			}
			for _, claim := range h.Resources.Allocated.Claims {
				if len(claim.CDI) != 1 || !strings.HasSuffix(claim.CDI[0], claim.Device) {
					t.Errorf("%s: CDI names of %s: %q", name, claim.Device, claim.CDI)
				}
			}
		})
	}
}

// TestClaimsWithInvalidDriver checks that claims of a driver without a name, or with the name of a resource, are ignored.
func TestClaimsWithInvalidDriver(t *testing.T) {
	runScripted(t, kubeletAgeInTests, func(t *testing.T, k *scriptedKubelet, c *Client) {
		c.options.Devices = claimIndex(func(device.Claim) (device.ID, bool) { return "a", true })
		p := newPodWith("two", addClaims(newContainer("main"), "mine", "x"))
		p.Containers[0].DynamicResources[0].ClaimResources[0].DriverName = gpu
		k.setPods(p)
		wantDevice(t, c.ListAllocations(t.Context()), "a", "unallocated")
		p.Containers[0].DynamicResources[0].ClaimResources[0].DriverName = ""
		wantDevice(t, c.ListAllocations(t.Context()), "a", "unallocated")
	})
}
