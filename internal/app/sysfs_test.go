package app_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/podgauge/podgauge/internal/sim"
	"github.com/podgauge/podgauge/internal/sim/kubelet"
	"github.com/podgauge/podgauge/test/helpers/require"
)

// TestRDMA checks the ports of a pod's NIC, by a DRA driver's claim and a folder of sysfs.
func TestRDMA(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	port := filepath.Join(folder, "devices/0000:3b:00.0/infiniband/mlx5_0/ports/1")
	require.NoError(t, os.MkdirAll(port, 0o700))
	require.NoError(t, os.MkdirAll(filepath.Join(folder, "class/infiniband"), 0o700))
	require.NoError(t, os.Symlink("../../devices/0000:3b:00.0/infiniband/mlx5_0", filepath.Join(folder, "class/infiniband/mlx5_0")))
	require.NoError(t, os.Symlink("../../../0000:3b:00.0", filepath.Join(folder, "devices/0000:3b:00.0/infiniband/mlx5_0/device")))
	require.NoError(t, os.WriteFile(filepath.Join(port, "state"), []byte("4: ACTIVE\n"), 0o600))
	w := newTestAppWith(t, testSetup{machine: newMachine(sim.T4)}, "--metrics.rdma", "--path.sysfs="+folder)
	w.waitLine(`podgauge_rdma_port_up{container="",device="mlx5_0",namespace="",pod="",port="1"}`, " 1")
	claim := kubelet.ClaimSpec{Name: "nic", Devices: []kubelet.ClaimedDevice{{Driver: "dra.net", Pool: "node-a", Device: "pci-0000-3b-00-0"}}}
	w.runPod(kubelet.PodSpec{
		Namespace: "research", Name: "train", Containers: []kubelet.ContainerSpec{{Name: "main", Claims: []kubelet.ClaimSpec{claim}}},
	})
	w.waitLine(`podgauge_rdma_port_up{container="main",device="mlx5_0",namespace="research",pod="train",port="1"}`, " 1")
}
