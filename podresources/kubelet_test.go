package podresources_test

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/allocation"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/pubsub"
	"github.com/podgauge/podgauge/internal/sim/kubelet"
	"github.com/podgauge/podgauge/podresources"
	"github.com/podgauge/podgauge/test/helpers/background"
	"github.com/podgauge/podgauge/test/helpers/require"
)

// TestResourcesOfPod lists the CPUs, memory and claims of a pod over a socket
// whose path has characters of URLs, beside a proxy, before and after a restart
// of the kubelet.
func TestResourcesOfPod(t *testing.T) {
	t.Setenv("HTTPS_PROXY", "http://127.0.0.1:1")
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	k := background.Kubelet(t, kubelet.Options{
		Dir: filepath.Join(background.Dir(t), "100% ü?#"), RunningSince: time.Now().Add(-time.Hour), ReadPodsAtOnce: true,
	})
	client, err := podresources.New(k.PodResourcesSocket(), podresources.Options{
		Allocations: &pubsub.Value[allocation.Snapshot]{}, Devices: ownDevices(),
		ClaimedDevice: func(claim allocation.Claim) (device.ID, bool) { return "b", claim.Device == "gpu-1" },
	})
	require.NoError(t, err)
	defer client.Close()
	claimed := kubelet.ClaimedDevice{Driver: "gpu.nvidia.com", Pool: "node-a", Device: "gpu-1", CDI: []string{"x/y=gpu-1"}}
	require.NoError(t, k.RunPod(ctx, kubelet.PodSpec{
		Namespace: "team", Name: "one", ExclusiveCPUs: []int64{2},
		Containers: []kubelet.ContainerSpec{{
			Name: "main", ExclusiveCPUs: []int64{4, 3},
			Memory: []kubelet.MemoryBlock{{Type: "memory", Bytes: 12 << 30, NUMANodes: []int64{0, 1}}},
			Claims: []kubelet.ClaimSpec{{Name: "ours", Devices: []kubelet.ClaimedDevice{claimed}}},
		}},
	}))
	pod, main := allocation.Owner{Namespace: "team", Pod: "one"}, newOwner("one")
	want := fmt.Sprintf("%+v", allocation.ResourceSet{
		CPUs:   []allocation.ExclusiveCPUs{{Owner: pod, CPUs: []int64{2}}, {Owner: main, CPUs: []int64{3, 4}}},
		Memory: []allocation.ReservedMemory{{Owner: main, Type: "memory", Bytes: 12 << 30, NUMANodes: []int{0, 1}}},
		Claims: []allocation.Claim{{
			Owner: main, ClaimNamespace: "team", ClaimName: "ours", Driver: "gpu.nvidia.com", Pool: "node-a",
			Device: "gpu-1", CDI: []string{"x/y=gpu-1"},
		}},
	})
	for range 2 {
		a := client.ListAllocations(ctx)
		if got := fmt.Sprintf("%+v", a.Resources.Allocated); a.Err != nil || got != want || stateOf(a, "b") != "one" {
			t.Errorf("resources: got\n%s\nwant\n%s\n%v", got, want, a.Err)
		}
		require.NoError(t, k.Restart(ctx, nil))
	}
}
