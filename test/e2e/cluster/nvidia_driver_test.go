//go:build cluster

package cluster_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	resource "k8s.io/api/resource/v1"

	"github.com/podgauge/podgauge/test/e2e/cluster"
	"github.com/podgauge/podgauge/test/e2e/node"
)

// TestNVIDIADriver runs the steps of TestDeviceTaints with NVIDIA's DRA driver, which reads the same stand-in as podgauge, and compares
// the driver's own taints with podgauge's.
func TestNVIDIADriver(t *testing.T) {
	checkout := os.Getenv("PODGAUGE_DRA_DRIVER")
	if checkout == "" {
		t.Skip("PODGAUGE_DRA_DRIVER is not a folder with a checkout of github.com/kubernetes-sigs/dra-driver-nvidia-gpu")
	}
	s := newClusterFixture(t, cluster.Options())
	d := &nvidiaDriver{binary: s.Node.Path("gpu-kubelet-plugin")}
	d.build(t, checkout)
	class, err := s.Helm(t.Context(), "template", filepath.Join(checkout, "deployments/helm/dra-driver-nvidia-gpu"), "--namespace=nvidia",
		"--set=gpuResourcesEnabledOverride=true", "--show-only=templates/deviceclass-gpu.yaml", "--api-versions=resource.k8s.io/v1")
	must(t, err)
	s.apply(t, class)
	d.start(t, s)
	s.installBesideDRADriver(t)
	s.runSteps(
		t,
		clusterStep{"claim beside an administrative claim", claimBesideAdminClaim},
		clusterStep{"unhealthy GPU is tainted", taintUnhealthyGPU},
		clusterStep{"new claim of the GPU waits", claimWaits},
		clusterStep{"recovered GPU is allocated", allocateRecoveredGPU},
		clusterStep{"extended resource of the DRA driver", extendedResource},
		clusterStep{"taints of the driver", d.ownTaints},
		clusterStep{"shares of a GPU", d.shares},
	)
}

// nvidiaDriver is NVIDIA's kubelet plugin for GPUs.
type nvidiaDriver struct {
	binary  string
	process *node.Process // of the latest start
}

// build builds the plugin of a checkout.
func (d *nvidiaDriver) build(t *testing.T, checkout string) {
	t.Helper()
	build := exec.CommandContext(t.Context(), "go", "build", "-C", checkout, "-mod=vendor", "-buildvcs=false", "-o", d.binary, "./cmd/gpu-kubelet-plugin")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build NVIDIA's DRA driver: %v\n%s", err, out)
	}
}

// start starts the plugin, as the driver's chart does but for the container, and waits for its devices.
func (d *nvidiaDriver) start(t *testing.T, s *clusterFixture, args ...string) {
	t.Helper()
	// The plugin requires nvidia-smi, and runs it for MPS and time slicing only.
	smi := filepath.Join(s.driver, "usr/bin/nvidia-smi")
	must(t, os.MkdirAll(filepath.Dir(smi), 0o755))
	must(t, os.WriteFile(smi, []byte("#!/bin/sh\n"), 0o755))
	argv := append([]string{
		"/usr/bin/env", "NVML_STANDIN=" + s.Node.Path("machine", "scenario"),
		d.binary, "--kubeconfig=" + s.Kubeconfig, "--node-name=" + node.Name, "--image-name=unused", "--cdi-root=" + cdiDir,
		"--nvidia-driver-root=" + s.driver, "--container-driver-root=" + s.driver, "--nvidia-cdi-hook-path=" + filepath.Join(s.driver, "hook"), "-v=4",
	}, args...)
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	var err error
	d.process, err = s.Node.Start(ctx, "nvidia-dra-driver", argv, s.hasDriverTaints())
	must(t, err)
	// An earlier process may have published the devices.
	await(t, "the plugin follows the health of devices", func(context.Context) error {
		const last = "Current kubelet plugin registration status" // line of its start
		out, err := d.process.Output()
		if err == nil && !strings.Contains(out, last) {
			err = fmt.Errorf("output lacks %q", last)
		}
		return err
	})
}

// restart replaces the plugin's process.
func (d *nvidiaDriver) restart(t *testing.T, s *clusterFixture, args ...string) {
	t.Helper()
	_, err := d.process.Stop(t.Context(), syscall.SIGTERM)
	must(t, err)
	d.start(t, s, args...)
}

// hasDriverTaints returns an error unless the driver publishes all GPUs with exactly these taints.
func (s *clusterFixture) hasDriverTaints(want ...string) func(context.Context) error {
	return func(ctx context.Context) error {
		var list resource.ResourceSliceList
		if err := s.Get(ctx, "/apis/resource.k8s.io/v1/resourceslices", &list); err != nil {
			return err
		}
		devices, taints := 0, []string{}
		for _, slice := range list.Items {
			devices += len(slice.Spec.Devices)
			for _, device := range slice.Spec.Devices {
				for _, taint := range device.Taints {
					taints = append(taints, fmt.Sprintf("%s %s=%s:%s", device.Name, taint.Key, taint.Value, taint.Effect))
				}
			}
		}
		slices.Sort(taints)
		if devices != gpuCount || !slices.Equal(taints, want) {
			return fmt.Errorf("devices of the driver: got %d with the taints %q, want %d with %q", devices, taints, gpuCount, want)
		}
		return nil
	}
}

// ownTaints lets the driver taint devices too (feature gate NVMLDeviceHealthCheck). Its taints end with its process.
func (d *nvidiaDriver) ownTaints(t *testing.T, s *clusterFixture) {
	s.kubectl(t, "delete", "--namespace="+teamNamespace, "pod/extended", "--wait")
	for i := range gpuCount {
		must(t, s.machine.Reset(i))
	}
	await(t, "no GPU has a taint", s.hasRules())
	const healthCheck = "--feature-gates=NVMLDeviceHealthCheck=true"
	d.restart(t, s, healthCheck)

	begin := time.Now()
	must(t, s.machine.Event(0, "xid 79"))
	await(t, "the driver taints the GPU", s.hasDriverTaints("gpu-0 gpu.nvidia.com/xid=79:NoSchedule"))
	printMeasurement(t, "Xid 79 → taint of NVIDIA's driver", formatSeconds(time.Since(begin)))
	await(t, "podgauge taints the GPU", s.hasRules("gpu.nvidia.com "+node.Name+" gpu-0 podgauge.io/unhealthy=xid_79:NoSchedule"))

	must(t, s.machine.Reset(0))
	await(t, "podgauge's taint is gone", s.hasRules())
	s.kubectl(t, "delete", "--namespace="+teamNamespace, "resourceclaim/next")
	s.createClaim(t, teamNamespace, "next", claimOf(0), "main")
	await(t, "the driver's taint keeps the pod waiting", s.isUnschedulable("next"))
	must(t, s.hasDriverTaints("gpu-0 gpu.nvidia.com/xid=79:NoSchedule")(t.Context()))
	d.restart(t, s, healthCheck)
	s.kubectl(t, "wait", "--namespace="+teamNamespace, "pod/next", "--for=condition=Ready", "--timeout="+waitTimeout.String())
}

// shares allocates three of 48 shares of a GPU, by a claim each (feature gate ConsumableShares).
func (d *nvidiaDriver) shares(t *testing.T, s *clusterFixture) {
	d.restart(t, s, "--feature-gates=ConsumableShares=true", "--consumable-shares=48")
	want := []string{"share-a of share-a", "share-b of share-b", "share-c of share-c"}
	for _, allocation := range want {
		claim, _, _ := strings.Cut(allocation, " ")
		s.applyClaim(t, teamNamespace, claim, claimOf(1), "main")
	}
	await(t, "the GPU has an allocation for each claim", func(ctx context.Context) error {
		all, err := s.series(ctx, "nvidia_gpu_allocation_info")
		got := []string{}
		for _, l := range all {
			if l["uuid"] == uuid(1) {
				got = append(got, l["claim"]+" of "+l["pod"])
			}
		}
		slices.Sort(got)
		if err == nil && !slices.Equal(got, want) {
			err = fmt.Errorf("allocations of the GPU: got %q, want %q", got, want)
		}
		return err
	})
}
