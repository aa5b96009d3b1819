package podresources

import (
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"unsafe"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/sim/kubelet"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// All that a node has, whoever's plugin and driver it is of, as a kubelet says it.
func TestAllThatANodeGivesAway(t *testing.T) {
	k := kubeletOn(t, kubelet.Options{
		CPUs:     []int64{2, 3, 4, 5},
		Memory:   []kubelet.MemoryBlock{{Type: "memory", Bytes: 8 << 30, Node: 0}, {Type: "memory", Bytes: 8 << 30, Node: 1}},
		PodLevel: true,
		EmptyFor: -1, RestAfter: -1,
	})
	devices := healthy("nic-0", "nic-1", "nic-2")
	devices[0].Topology = &pluginapi.TopologyInfo{Nodes: []*pluginapi.NUMANode{{ID: 1}, {ID: 0}}}
	devices[1].Topology = devices[0].Topology
	devices[2].Health = pluginapi.Unhealthy
	offersSome(t, k, "example.com/nic", 2, devices...)
	offers(t, k, gpu, healthy("a", "b")...)
	c := clientOf(t, k.PodResourcesSocket(), Trace{})
	c.Claimed = func(claim device.Claim) (device.ID, bool) { return "b", claim.Device == "gpu-1" }
	claim := kubelet.Claim{Name: "ours", Devices: []kubelet.ClaimedDevice{{Driver: "gpu.nvidia.com", Pool: "node-a", Device: "gpu-1", CDI: []string{"x/y=gpu-1"}}}}
	runs(t, k, kubelet.Pod{
		Namespace: "team", Name: "one", CPUs: 1, Memory: map[string]uint64{"memory": 2 << 30},
		Containers: []kubelet.Container{
			{Name: "main", Limits: map[string]int{"example.com/nic": 2, gpu: 1}, CPUs: 2, Memory: map[string]uint64{"memory": 12 << 30}, Claims: []kubelet.Claim{claim}},
			{Name: "plain"},
		},
	})
	h := c.Owners(t.Context())
	c.askAllocatable(t.Context())
	r := c.known().Resources
	mine := h.Held[0].Offered // the kubelet chose one
	want := fmt.Sprintf("{Known:true "+
		"Devices:[{Resource:example.com/nic ID:nic-0 NUMANodes:[0 1]} {Resource:example.com/nic ID:nic-1 NUMANodes:[0 1]} {Resource:nvidia.com/gpu ID:a NUMANodes:[]} {Resource:nvidia.com/gpu ID:b NUMANodes:[]}] "+
		"CPUs:[2 3 4 5] Memory:[{Type:memory Bytes:8589934592 NUMANodes:[0]} {Type:memory Bytes:8589934592 NUMANodes:[1]}] "+
		"HeldDevices:[{Owner:{Namespace:team Pod:one Container:main} ResourceDevice:{Resource:example.com/nic ID:nic-0 NUMANodes:[0 1]}} "+
		"{Owner:{Namespace:team Pod:one Container:main} ResourceDevice:{Resource:example.com/nic ID:nic-1 NUMANodes:[0 1]}} "+
		"{Owner:{Namespace:team Pod:one Container:main} ResourceDevice:{Resource:nvidia.com/gpu ID:%s NUMANodes:[]}}] "+
		"HeldCPUs:[{Owner:{Namespace:team Pod:one Container:} CPUs:[2]} {Owner:{Namespace:team Pod:one Container:main} CPUs:[3 4]}] "+
		"HeldMemory:[{Owner:{Namespace:team Pod:one Container:} Memory:{Type:memory Bytes:2147483648 NUMANodes:[0]}} "+
		"{Owner:{Namespace:team Pod:one Container:main} Memory:{Type:memory Bytes:12884901888 NUMANodes:[0 1]}}] "+
		"Claims:[{Owner:{Namespace:team Pod:one Container:main} ClaimNamespace:team ClaimName:ours Driver:gpu.nvidia.com Pool:node-a Device:gpu-1 Share: CDI:[x/y=gpu-1]}] Dropped:[] DroppedHeld:[]}", mine)
	if got := fmt.Sprintf("%+v", r); got != want {
		t.Errorf("resources are\n%s\nwant\n%s", got, want)
	}
	wantHolding := device.Holding{Resource: "gpu.nvidia.com", Offered: "b", Owner: device.Owner{Namespace: "team", Pod: "one", Container: "main"}}
	if !slices.Contains(h.Held, wantHolding) {
		t.Errorf("held are %v", h.Held)
	}

	// Through a restart all of it stands, and is never anything else.
	static, rest := make(chan struct{}), make(chan struct{})
	k.Trouble(kubelet.Trouble{HoldStatic: static, HoldRest: rest})
	same := func(when string) {
		t.Helper()
		now := c.Owners(t.Context()).Resources
		if unsafe.SliceData(now.HeldDevices) != unsafe.SliceData(r.HeldDevices) || unsafe.SliceData(now.HeldCPUs) != unsafe.SliceData(r.HeldCPUs) ||
			unsafe.SliceData(now.HeldMemory) != unsafe.SliceData(r.HeldMemory) || unsafe.SliceData(now.Claims) != unsafe.SliceData(r.Claims) {
			t.Errorf("%s they are %v", when, now)
		}
	}
	if err := k.Restart(t.Context(), kubelet.RestartOptions{While: func() { same("while it is away") }}); err != nil {
		t.Fatal(err)
	}
	same("before it has read its pods")
	close(static)
	close(rest)
	await(t, k, func(s kubelet.State) bool { return s.PodsRead })
	same("when it has")
	c.askAllocatable(t.Context())
	if now := c.known().Resources; !now.Known || len(now.Devices) > 0 || unsafe.SliceData(now.CPUs) != unsafe.SliceData(r.CPUs) {
		t.Errorf("before its plugins have come back it would give away %v", now)
	}
	if err := k.EndPod(kubelet.Pod{Namespace: "team", Name: "one"}); err != nil {
		t.Fatal(err)
	}
	if got := has(c.Owners(t.Context()).Resources); len(got) > 0 {
		t.Errorf("when its pod has ended there are %q", got)
	}
}

// The whole way of a pod that is told of: Get names it, and no List is asked for.
func TestANewcomerOfTheSimulatedKubelet(t *testing.T) {
	for name, trouble := range map[string]error{"with Get": nil, "without": status.Error(codes.Unimplemented, "unknown method Get")} {
		t.Run(name, func(t *testing.T) {
			k := kubeletOn(t, kubelet.Options{})
			o := offers(t, k, gpu, healthy("a")...)
			k.Trouble(kubelet.Trouble{Get: trouble})
			c := clientOf(t, k.PodResourcesSocket(), Trace{})
			c.Checkpoint = filepath.Join(filepath.Dir(k.RegistrationSocket()), CheckpointFile)
			o.granted = func(resource string, ids []device.OfferedID) {
				c.Arrived("team", "one")
				c.Allocated(resource, ids)
			}
			defer c.runs(t)()
			// Ten seconds after the first answer Run looks at the checkpoint no more.
			waitFor(t, c, func(h device.Holders) bool { return !h.At.IsZero() })
			c.mu.Lock()
			c.memory.caughtUp = true
			c.mu.Unlock()
			before := k.State().Calls
			runs(t, k, podOn("one", 1))
			waitFor(t, c, func(h device.Holders) bool { return state(h, "a") == "held by one" })
			after := k.State().Calls
			lists, gets := after["List"]-before["List"], after["Get"]-before["Get"]
			if gets != 1 || trouble == nil && lists > 1 || trouble != nil && lists == 0 {
				t.Errorf("there were %d lists and %d gets", lists, gets)
			}
		})
	}
}

// offersSome is offers where not all devices are healthy.
func offersSome(t testing.TB, k *kubelet.Kubelet, resource string, healthy int, devices ...*pluginapi.Device) {
	t.Helper()
	o := offers(t, k, resource)
	o.lists <- devices
	await(t, k, func(s kubelet.State) bool { return s.Resources[resource].Allocatable == healthy })
}
