package plugin_test

import (
	"context"
	"log/slog"
	"testing"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/sim/kubelet"
	"github.com/podgauge/podgauge/plugin"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// startNode runs a kubelet and a plugin until the end of the benchmark.
func startNode(b *testing.B, inventory *device.Inventory, rules plugin.Rules) (*kubelet.Kubelet, string) {
	b.Helper()
	dir := shortDir(b)
	k := kubelet.New(kubelet.Options{Dir: dir})
	p := plugin.New(plugin.Options{
		Dir: dir + "/device-plugins", DeviceSource: &plugin.FakeSource{GetStatuses: inventory.Get, GetRules: constantRules(rules)}, Log: slog.New(slog.DiscardHandler),
		Hooks: &hookRecorder{},
	})
	ctx, cancel := context.WithCancel(b.Context())
	ended := make(chan error, 2)
	go func() { ended <- k.Run(ctx) }()
	go func() { ended <- p.Run(ctx) }()
	b.Cleanup(func() {
		cancel()
		for range 2 {
			if err := <-ended; err != nil {
				b.Error(err)
			}
		}
	})
	return k, dir
}

func allocatable(b *testing.B, k *kubelet.Kubelet, n int) {
	b.Helper()
	if err := k.Wait(b.Context(), func(s kubelet.KubeletState) bool { return s.Resources[resource].Allocatable == n }); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkStart measures the time from the start of kubelet and plugin to allocatable devices, including the poll interval of 100 ms.
func BenchmarkStart(b *testing.B) {
	inventory := &device.Inventory{}
	inventory.Set(statuses(8))
	for b.Loop() {
		func() {
			k, _ := startNode(b, inventory, plugin.Rules{})
			allocatable(b, k, 8)
		}()
	}
}

// BenchmarkHealthChange measures the time from the inventory to the kubelet's count, with 64 replicas of 8 GPUs, half of them failing and
// recovering.
func BenchmarkHealthChange(b *testing.B) {
	inventory := &device.Inventory{}
	healthy, failed := statuses(8), statuses(8)
	for i := range 4 {
		failed = unhealthy(failed, i, "lost")
	}
	inventory.Set(healthy)
	k, _ := startNode(b, inventory, sharedRules(64))
	allocatable(b, k, 8*64)
	for b.Loop() {
		inventory.Set(failed)
		allocatable(b, k, 4*64)
		inventory.Set(healthy)
		allocatable(b, k, 8*64)
	}
}

// BenchmarkPreferredAllocation measures a call over the socket.
func BenchmarkPreferredAllocation(b *testing.B) {
	inventory := &device.Inventory{}
	inventory.Set(statuses(8))
	k, dir := startNode(b, inventory, plugin.Rules{})
	allocatable(b, k, 8)
	conn, err := grpc.NewClient("unix://"+dir+"/device-plugins/"+k.Resource(resource).Sockets[0], grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close() //nolint:errcheck // end of the benchmark
	client := api.NewDevicePluginClient(conn)
	var all []string
	for i := range 8 {
		all = append(all, string(gpuID(i)))
	}
	request := &api.PreferredAllocationRequest{ContainerRequests: []*api.ContainerPreferredAllocationRequest{{AvailableDeviceIDs: all, AllocationSize: 3}}}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := client.GetPreferredAllocation(b.Context(), request); err != nil {
			b.Fatal(err)
		}
	}
}
