package podresources_test

import (
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/allocation"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/podresources"
	api "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// googleNode has a lost GPU, GPUs whose minor numbers differ from their indices,
// and MIG devices of a GPU, two of them in one GPU instance.
func googleNode() []device.Status {
	status := func(id device.ID, gpu device.GPU, minor, gi, ci int) device.Status {
		return device.Status{Device: device.Device{ID: id, GPU: gpu, Minor: minor, GI: gi, CI: ci}}
	}
	lost := status("lost", "lost", 2, -1, -1)
	lost.Gone = true
	return []device.Status{
		lost, status("first", "first", 2, -1, -1), status("second", "second", 0, -1, -1), status("unknown", "unknown", -1, -1, -1),
		status("third", "third", 1, -1, -1), status("mig-3", "third", 1, 3, 0), status("mig-4", "third", 1, 4, 0),
		status("mig-4-1", "third", 1, 4, 1),
	}
}

// inGoogleBubble runs a test with the node's inventory, beside Google's plugin if foreign is set.
func inGoogleBubble(t *testing.T, foreign bool, test func(k *scriptedKubelet, devices *device.Inventory)) {
	t.Helper()
	devices := &device.Inventory{}
	devices.Set(googleNode())
	options := podresources.Options{Devices: devices, ForeignPlugin: foreign, OwnPod: ownPod}
	inBubble(t, longAgo, options, func(k *scriptedKubelet) { test(k, devices) })
}

func TestGoogleIDs(t *testing.T) {
	for id, want := range map[string]allocation.Allocation{
		"nvidia2":           {DeviceID: "first"},
		"nvidia0":           {DeviceID: "second"},
		"nvidia1":           {DeviceID: "third"},
		"nvidia1/gi3":       {DeviceID: "mig-3"},
		"nvidia1/gi4":       {DeviceID: "mig-4"}, // Google's plugin gives compute instance 0
		"nvidia0/vgpu0":     {DeviceID: "second::0"},
		"nvidia0/vgpu47":    {DeviceID: "second::47"},
		"nvidia1/gi3/vgpu1": {DeviceID: "mig-3::1"},
		"first::1":          {DeviceID: "first::1"}, // of NVIDIA's plugin
		// Unknown ids stay, as of any plugin.
		"nvidia9": {DeviceID: "nvidia9"}, "nvidia1/gi9": {DeviceID: "nvidia1/gi9"}, "nvidia-1": {DeviceID: "nvidia-1"},
		"nvidia0/vgpu": {DeviceID: "nvidia0/vgpu"}, "nvidia0/vgpu-1": {DeviceID: "nvidia0/vgpu-1"},
		"nvidia0/vgpu1/vgpu1": {DeviceID: "nvidia0/vgpu1/vgpu1"}, "nvidia02": {DeviceID: "nvidia02"},
	} {
		inGoogleBubble(t, true, func(k *scriptedKubelet, _ *device.Inventory) {
			k.setPods(newPod("one", id))
			want.Resource, want.Owner = gpu, newOwner("one")
			if all := k.list().All; len(all) != 1 || all[0] != want {
				t.Errorf("allocations of %s: got %v, want %v", id, all, want)
			}
		})
	}
}

// TestGoogleIDsElsewhere leaves ids of other resources, and all ids beside podgauge's own plugin.
func TestGoogleIDsElsewhere(t *testing.T) {
	for name, foreign := range map[string]bool{"other resource": true, "own plugin": false} {
		t.Run(name, func(t *testing.T) {
			inGoogleBubble(t, foreign, func(k *scriptedKubelet, _ *device.Inventory) {
				pod := newPod("one", "nvidia0")
				if foreign {
					pod.Containers[0].Devices[0].ResourceName = "example.com/gpu"
				}
				k.setPods(pod, newPod(ownPod))
				k.wantListed("second", "unallocated")
			})
		})
	}
}

// TestGoogleIDsAfterKubeletRestart keeps owners by the checkpoint, which has Google's ids too, and finds an allocation that only
// the checkpoint has.
func TestGoogleIDsAfterKubeletRestart(t *testing.T) {
	inGoogleBubble(t, true, func(k *scriptedKubelet, _ *device.Inventory) {
		k.writeCheckpoint("nvidia2", "a", "nvidia1/gi3/vgpu1", "b")
		k.setPods(newPod(ownPod), newPod("one", "nvidia2"), newPod("two", "nvidia1/gi3/vgpu1"))
		k.wantListed("first", "one", "mig-3", "two", "second", "unallocated")
		time.Sleep(time.Second)
		k.stop()
		k.writeCheckpoint("nvidia2", "a", "nvidia1/gi3/vgpu1", "b", "nvidia0", "c")
		k.setPods()
		k.start(0)
		k.wantListed("first", "one", "mig-3", "two", "second", "pending", "third", "unallocated")
	})
}

// TestGoogleIDsAfterRepartition moves an id to the MIG device that now has the GPU instance's id, and to a GPU that is listed late.
func TestGoogleIDsAfterRepartition(t *testing.T) {
	inGoogleBubble(t, true, func(k *scriptedKubelet, devices *device.Inventory) {
		k.writeCheckpoint("nvidia1/gi3", "a", "nvidia7", "b")
		k.setPods(newPod(ownPod), newPod("one", "nvidia1/gi3"), newPod("late", "nvidia7"))
		k.wantListed("mig-3", "one", "seventh", "unallocated")
		statuses := googleNode()
		statuses[5].Gone = true
		statuses = append(statuses, statuses[5], statuses[1])
		statuses[8].ID, statuses[8].Gone = "mig-new", false
		statuses[9].ID, statuses[9].GPU, statuses[9].Minor = "seventh", "seventh", 7
		devices.Set(statuses)
		k.wantListed("mig-3", "unallocated", "mig-new", "one", "seventh", "late")
		k.restart()
		k.wantListed("mig-new", "one", "seventh", "late") // the unchanged checkpoint has the new devices
	})
}

// TestGoogleIDsAreAllocatable lists the healthy devices by the same ids as the allocations.
func TestGoogleIDsAreAllocatable(t *testing.T) {
	inGoogleBubble(t, true, func(k *scriptedKubelet, _ *device.Inventory) {
		k.set(func() {
			k.allocatable = &api.AllocatableResourcesResponse{Devices: newContainer("", "nvidia0/vgpu0", "nvidia1/gi3").Devices}
		})
		defer k.run()()
		time.Sleep(time.Second)
		if d := k.published().Resources.Allocatable.Devices; len(d) != 2 || d[0].ID != "mig-3" || d[1].ID != "second::0" {
			t.Errorf("allocatable devices: got %+v", d)
		}
	})
}
