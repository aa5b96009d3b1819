//go:build cluster

package cluster_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	resource "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	cdi "tags.cncf.io/container-device-interface/specs-go"
)

const (
	draDriverName = "gpu.nvidia.com"
	cdiKind       = "k8s." + draDriverName + "/claim"
	cdiDir        = "/var/run/cdi"
)

// draDriverCommand is the first argument with which this test binary is the DRA driver.
const draDriverCommand = "dradriver"

// runDRADriver runs a DRA driver for the GPUs of the NVML stand-in, with the kubelet plugin helper of real drivers. NVIDIA's own
// driver is built from a checkout.
//
// Devices and CDI devices have the names of NVIDIA's driver since v0.4 (kubernetes-sigs/dra-driver-nvidia-gpu,
// cmd/gpu-kubelet-plugin/deviceinfo.go and cdi.go): gpu-<minor number> and k8s.gpu.nvidia.com/claim=<claim UID>-<device>.
//
// The arguments are the kubeconfig, the node's name and the GPUs' UUIDs by minor number.
func runDRADriver(args []string) error {
	kubeconfig, node, uuids := args[0], args[1], strings.Split(args[2], ",")
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return fmt.Errorf("read kubeconfig: %w", err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("create client: %w", err)
	}
	if err := errors.Join(
		os.MkdirAll(cdiDir, 0o755), os.MkdirAll(filepath.Join(kubeletplugin.KubeletPluginsDir, draDriverName), 0o755),
	); err != nil {
		return err
	}
	helper, err := kubeletplugin.Start(ctx, claimDriver{},
		kubeletplugin.DriverName(draDriverName), kubeletplugin.NodeName(node), kubeletplugin.KubeClient(client),
		kubeletplugin.HealthService(false))
	if err != nil {
		return fmt.Errorf("start kubelet plugin: %w", err)
	}
	defer helper.Stop()
	if err := helper.PublishResources(ctx, driverResources(node, uuids)); err != nil {
		return fmt.Errorf("publish devices: %w", err)
	}
	<-ctx.Done()
	return nil
}

// driverResources returns a pool with a device for each GPU.
func driverResources(node string, uuids []string) resourceslice.DriverResources {
	kind := "gpu"
	devices := []resource.Device{}
	for minor, uuid := range uuids {
		devices = append(devices, resource.Device{
			Name: fmt.Sprintf("gpu-%d", minor),
			Attributes: map[resource.QualifiedName]resource.DeviceAttribute{
				"type": {StringValue: &kind},
				"uuid": {StringValue: &uuid},
			},
		})
	}
	return resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{
		node: {Slices: []resourceslice.Slice{{Devices: devices}}},
	}}
}

// claimDriver prepares each claim with a CDI spec.
type claimDriver struct{}

// PrepareResourceClaims writes the CDI specs of claims and returns the devices.
func (claimDriver) PrepareResourceClaims(_ context.Context, claims []*resource.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	results := map[types.UID]kubeletplugin.PrepareResult{}
	for _, claim := range claims {
		devices, err := prepareClaim(claim)
		results[claim.UID] = kubeletplugin.PrepareResult{Devices: devices, Err: err}
	}
	return results, nil
}

func prepareClaim(claim *resource.ResourceClaim) (devices []kubeletplugin.Device, err error) {
	spec := cdi.Spec{Version: "0.6.0", Kind: cdiKind}
	for _, r := range claim.Status.Allocation.Devices.Results {
		if r.Driver != draDriverName {
			continue
		}
		name := string(claim.UID) + "-" + r.Device
		path := "/dev/nvidia" + strings.TrimPrefix(r.Device, "gpu-")
		spec.Devices = append(spec.Devices, cdi.Device{
			Name:           name,
			ContainerEdits: cdi.ContainerEdits{DeviceNodes: []*cdi.DeviceNode{{Path: path}}},
		})
		devices = append(devices, kubeletplugin.Device{
			Requests: []string{r.Request}, PoolName: r.Pool, DeviceName: r.Device, CDIDeviceIDs: []string{cdiKind + "=" + name},
		})
	}
	content, err := json.Marshal(spec)
	if err != nil {
		return nil, err
	}
	// The runtime reads the folder at any time: a file must be complete.
	temporary := claimSpecFile(claim.UID) + ".tmp"
	return devices, errors.Join(os.WriteFile(temporary, content, 0o644), os.Rename(temporary, claimSpecFile(claim.UID)))
}

func claimSpecFile(claim types.UID) string {
	return filepath.Join(cdiDir, fmt.Sprintf("k8s.%s-claim_%s.json", draDriverName, claim))
}

// UnprepareResourceClaims removes the claims' CDI specs.
func (claimDriver) UnprepareResourceClaims(_ context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	results := map[types.UID]error{}
	for _, claim := range claims {
		results[claim.UID] = nil
		if err := os.Remove(claimSpecFile(claim.UID)); err != nil && !errors.Is(err, os.ErrNotExist) {
			results[claim.UID] = err
		}
	}
	return results, nil
}

// HandleError logs the background errors of the helper.
func (claimDriver) HandleError(_ context.Context, err error, msg string) {
	log.Printf("%s: %v", msg, err)
}

// WatchHealthStatus reports nothing: the driver serves no health.
func (claimDriver) WatchHealthStatus(context.Context, chan<- kubeletplugin.DeviceHealthReport) error {
	return kubeletplugin.ErrHealthNotSupported
}
