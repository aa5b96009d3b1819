package podresources

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	api "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// claims gives a container devices by a claim, each "driver/name".
func claims(c *api.ContainerResources, claim string, devices ...string) *api.ContainerResources {
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

// claiming has a client find "gpu-a" as the device a, if the inventory has it, by what the
// CDI name says too.
func claiming(c *Client, inventory map[string]device.ID) {
	c.Claimed = func(claim device.Claim) (device.ID, bool) {
		if claim.Driver != "gpu.nvidia.com" || len(claim.CDI) != 1 || !strings.HasSuffix(claim.CDI[0], claim.Device) || claim.Pool != "node-a" {
			return "", false
		}
		id, ok := inventory[claim.Device]
		return id, ok
	}
}

func TestWhoHasTheClaimHoldsTheDevice(t *testing.T) {
	bubble(t, age, func(t *testing.T, k *scripted, c *Client) {
		inventory := map[string]device.ID{"gpu-a": "a", "gpu-b": "b"}
		k.says(podOf("one", claims(container("main"), "mine", "gpu.nvidia.com/gpu-a", "gpu.nvidia.com/gpu-z", "nic.example.com/gpu-a")))
		wantState(t, c.Owners(t.Context()), "a", "idle") // nobody was asked
		claiming(c, inventory)
		h := c.Owners(t.Context())
		want := device.Holding{Resource: "gpu.nvidia.com", Offered: "a", Owner: owner("one")}
		if len(h.Held) != 1 || h.Held[0] != want || len(h.Resources.Claims) != 3 {
			t.Errorf("held are %+v, claims %+v", h.Held, h.Resources.Claims)
		}
		if p, err := c.askPod(t.Context(), podName{"team", "one"}); err != nil || !slices.Equal(c.rowsOf(p), h.Held) {
			t.Errorf("Get names %v, %v", c.rowsOf(p), err)
		}

		inventory["gpu-z"] = "z" // it was not listed before
		wantState(t, c.Owners(t.Context()), "z", "held by one")

		// One claim, two pods; and a device by a claim and by a plugin.
		k.says(podOf("one", claims(container("main"), "ours", "gpu.nvidia.com/gpu-a")),
			podOf("two", claims(container("main"), "ours", "gpu.nvidia.com/gpu-a")), pod("three", "b"))
		h = c.Owners(t.Context())
		wantState(t, h, "a", "shared")
		wantState(t, h, "b", "held by three")
		wantState(t, h, "z", "idle")

		// After a restart the one who is listed later has it still.
		k.says(podOf("two", claims(container("main"), "ours", "gpu.nvidia.com/gpu-a")))
		k.restart()
		h = c.Owners(t.Context())
		wantState(t, h, "a", "shared")
		wantState(t, h, "b", "held by three")
		k.says(podOf("one", container("main")), podOf("two", claims(container("main"), "ours", "gpu.nvidia.com/gpu-a")))
		wantState(t, c.Owners(t.Context()), "a", "held by two")
		k.says(podOf("one", container("main")))
		wantState(t, c.Owners(t.Context()), "a", "idle") // this connection has named two
		time.Sleep(settleAfter)
		wantState(t, c.Owners(t.Context()), "b", "idle")
	})
}

// TestEachRowOfAClaimIsOneDevice: the kubelet adds the CDI names of each row to those of the
// rows before it, and lists a row again where a prepare was tried again.
func TestEachRowOfAClaimIsOneDevice(t *testing.T) {
	rows := func(prepared int, drivers ...string) *api.ContainerResources {
		c := container("main")
		for range prepared {
			claims(c, "pair", drivers...)
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
		bubble(t, age, func(t *testing.T, k *scripted, client *Client) {
			claiming(client, map[string]device.ID{"gpu-a": "a", "gpu-b": "b"})
			p := podOf("one", c)
			k.says(p)
			h := client.Owners(t.Context())
			want := []device.Holding{
				{Resource: "gpu.nvidia.com", Offered: "a", Owner: owner("one")}, {Resource: "gpu.nvidia.com", Offered: "b", Owner: owner("one")},
			}
			if !slices.Equal(h.Held, want) || len(h.Recent) != 2 {
				t.Errorf("%s: held are %+v, recently %+v", name, h.Held, h.Recent)
			}
			rows := client.rowsOf(p)
			slices.SortFunc(rows, device.CompareHoldings)
			if rows = slices.Compact(rows); !slices.Equal(rows, want) {
				t.Errorf("%s: Get names %+v", name, rows)
			}
			for _, claim := range h.Resources.Claims {
				if len(claim.CDI) != 1 || !strings.HasSuffix(claim.CDI[0], claim.Device) {
					t.Errorf("%s: %s has the CDI names %q", name, claim.Device, claim.CDI)
				}
			}
		})
	}
}

// A driver that has no name, or one that a plugin's resource has, is none.
func TestClaimsOfNoDriver(t *testing.T) {
	bubble(t, age, func(t *testing.T, k *scripted, c *Client) {
		c.Claimed = func(device.Claim) (device.ID, bool) { return "a", true }
		p := podOf("two", claims(container("main"), "mine", "x"))
		p.Containers[0].DynamicResources[0].ClaimResources[0].DriverName = gpu
		k.says(p)
		wantState(t, c.Owners(t.Context()), "a", "idle")
		p.Containers[0].DynamicResources[0].ClaimResources[0].DriverName = ""
		wantState(t, c.Owners(t.Context()), "a", "idle")
	})
}
