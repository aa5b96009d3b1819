package doctor

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/dra"
	"github.com/podgauge/podgauge/internal/text"
	resourcesapi "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// extendedResourceClaim is in the names of claims that the scheduler makes for
// an extended resource of a DRA driver.
const extendedResourceClaim = "-extended-resources-"

// checkAllocators finds out who allocates the node's GPUs: device plugins by the
// kubelet's resources, and NVIDIA's DRA driver by its socket and its claims.
func checkAllocators(ctx context.Context, e *examination) Finding {
	pods := e.pods.Load()
	if pods == nil {
		return skipped("the kubelet does not list pods")
	}
	kubelet, conn, err := connectPodResources(filepath.Join(e.KubeletDir, "pod-resources", "kubelet.sock"))
	if err != nil {
		return failure("%v", err)
	}
	defer conn.Close() //nolint:errcheck // the answer was read
	allocatable, err := kubelet.GetAllocatableResources(ctx, &resourcesapi.AllocatableResourcesRequest{})
	if err != nil {
		return skipped("the kubelet does not list allocatable devices: %v", err)
	}
	var allocators []string
	resources := e.gpuResources(allocatable.GetDevices())
	if len(resources) > 0 {
		allocators = append(allocators, fmt.Sprintf("%s (%s)", e.pluginName(ctx), text.JoinFirst(resources)))
	}
	claiming, extended := claimingPods(pods.GetPodResources())
	if claiming > 0 || e.hasDRADriver(ctx) {
		name := "NVIDIA's DRA driver (claims of " + text.Plural(claiming, "pod")
		if extended > 0 {
			name += fmt.Sprintf(", %d for an extended resource", extended)
		}
		allocators = append(allocators, name+")")
	}
	switch len(allocators) {
	case 0:
		return ok("no device plugin and no DRA driver has registered GPUs")
	case 1:
		return ok("%s", allocators[0])
	}
	return warning("%s and %s", allocators[0], allocators[1])
}

// gpuResources returns the names of the device plugins' resources that have
// GPUs.
func (e *examination) gpuResources(rows []*resourcesapi.ContainerDevices) []string {
	names := map[string]bool{}
	for _, row := range rows {
		name := row.GetResourceName()
		if strings.HasPrefix(name, "nvidia.com/gpu") || strings.HasPrefix(name, "nvidia.com/mig-") ||
			slices.ContainsFunc(row.GetDeviceIds(), e.isDevice) {
			names[name] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}

func (e *examination) isDevice(advertised string) bool {
	id := device.AdvertisedID(advertised).Device()
	return slices.ContainsFunc(e.driver.devices, func(d device.Device) bool { return d.ID == id })
}

// pluginName returns podgauge's device plugin, if it runs.
func (e *examination) pluginName(ctx context.Context) string {
	if e.hasSocket(ctx, e.DevicePluginDir, socketPrefix, "") {
		return "podgauge's device plugin"
	}
	return "another device plugin"
}

// hasDRADriver reports whether NVIDIA's DRA driver for GPUs is registered. A
// container sees the socket only if the folder is mounted.
func (e *examination) hasDRADriver(ctx context.Context) bool {
	return e.hasSocket(ctx, filepath.Join(e.KubeletDir, "plugins_registry"), dra.Driver+"-", "reg.sock")
}

// hasSocket reports whether a process listens on a socket with such a name.
func (e *examination) hasSocket(ctx context.Context, dir, prefix, suffix string) bool {
	entries, _ := os.ReadDir(dir)
	return slices.ContainsFunc(entries, func(entry os.DirEntry) bool {
		name := entry.Name()
		return strings.HasPrefix(name, prefix) && strings.HasSuffix(name, suffix) &&
			e.dialSocket(ctx, filepath.Join(dir, name)) == nil
	})
}

// claimingPods returns the number of pods with claims of NVIDIA's DRA driver,
// and of those with an extended resource.
func claimingPods(pods []*resourcesapi.PodResources) (claiming, extended int) {
	for _, pod := range pods {
		claims, forExtended := false, false
		for _, c := range pod.GetContainers() {
			for _, claim := range c.GetDynamicResources() {
				if !slices.ContainsFunc(claim.GetClaimResources(), isNVIDIA) {
					continue
				}
				claims = true
				forExtended = forExtended || strings.Contains(claim.GetClaimName(), extendedResourceClaim)
			}
		}
		if claims {
			claiming++
		}
		if forExtended {
			extended++
		}
	}
	return claiming, extended
}

func isNVIDIA(r *resourcesapi.ClaimResource) bool { return r.GetDriverName() == dra.Driver }
