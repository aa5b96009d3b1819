package kubelet_test

import (
	"context"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/podgauge/podgauge/internal/sim/kubelet"
	"github.com/podgauge/podgauge/test/helpers/background"
	"github.com/podgauge/podgauge/test/helpers/deviceplugin"
	"github.com/podgauge/podgauge/test/helpers/require"
)

const gpuResource = "nvidia.com/gpu"

var socketCount atomic.Int32 // makes the names of the plugins unique

// registerPlugin starts a plugin and waits until the kubelet has its GPUs.
func registerPlugin(t testing.TB, k *kubelet.Kubelet, b deviceplugin.Behavior, ids ...string) *deviceplugin.Plugin {
	t.Helper()
	dir, socket := filepath.Dir(k.RegistrationSocket()), fmt.Sprintf("plugin-%d.sock", socketCount.Add(1))
	p := deviceplugin.Start(t, dir, socket, b, deviceplugin.Healthy(ids...)...)
	require.NoError(t, p.Register(t.Context(), gpuResource))
	background.Wait(t, k, func(s kubelet.KubeletState) bool { return s.Resources[gpuResource].Allocatable == len(ids) })
	return p
}

// podWithGPUs returns a pod of the API server with a container that requests n
// GPUs.
func podWithGPUs(name string, n int) kubelet.PodSpec {
	main := kubelet.ContainerSpec{Name: "main", Limits: map[string]int{gpuResource: n}}
	return kubelet.PodSpec{Name: name, Containers: []kubelet.ContainerSpec{main}}
}

func runPod(t testing.TB, k *kubelet.Kubelet, p kubelet.PodSpec) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	require.NoError(t, k.RunPod(ctx, p))
}

// list returns the ids of List by "namespace/pod/container". It makes a new
// connection, without the backoff of an earlier kubelet.
func list(t testing.TB, k *kubelet.Kubelet) map[string][]string {
	t.Helper()
	conn, err := grpc.NewClient("unix:"+k.PodResourcesSocket(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer conn.Close() //nolint:errcheck // of a test
	client := podresources.NewPodResourcesListerClient(conn)
	resp, err := client.List(t.Context(), &podresources.ListPodResourcesRequest{})
	require.NoError(t, err)
	all := map[string][]string{}
	for _, p := range resp.PodResources {
		for _, c := range p.Containers {
			key := p.Namespace + "/" + p.Name + "/" + c.Name
			all[key] = []string{}
			for _, d := range c.Devices {
				all[key] = append(all[key], d.DeviceIds...)
			}
		}
	}
	return all
}
