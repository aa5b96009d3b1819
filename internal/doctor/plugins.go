package doctor

import (
	"context"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/podgauge/podgauge/internal/device"
)

// socketPrefix is how the names of podgauge's sockets begin.
const socketPrefix = "podgauge-"

// otherPluginPrefixes are how the names of other NVIDIA plugins' sockets begin: NVIDIA's own has the
// resource's name after it, GKE's the time.
var otherPluginPrefixes = [...]string{"nvidia-", "nvidiaGPU-"}

// checkOtherPlugins looks for somebody who offers the same GPUs.
func checkOtherPlugins(ctx context.Context, r *report) Finding {
	entries, err := os.ReadDir(r.DevicePluginDir)
	if err != nil {
		return skipped("the folder of plugins cannot be read")
	}
	var live, stale []string
	others := 0
	for _, entry := range entries {
		name := entry.Name()
		if entry.Type() != fs.ModeSocket || name == "kubelet.sock" || strings.HasPrefix(name, socketPrefix) {
			continue
		}
		others++
		if !slices.ContainsFunc(otherPluginPrefixes[:], func(prefix string) bool { return strings.HasPrefix(name, prefix) }) {
			continue
		}
		if _, err := r.dialSocket(ctx, filepath.Join(r.DevicePluginDir, name)); err == nil {
			live = append(live, name)
		} else {
			stale = append(stale, name)
		}
	}
	switch {
	case len(live) > 0 && !r.DevicePlugin:
		return ok("%s serves, and podgauge only looks on", joinFirst(live))
	case len(live) > 0:
		return failure(joinFirst(live)+": another plugin for NVIDIA GPUs serves",
			"Two plugins of one resource overwrite each other's list, and with two resources two pods can be given the same GPU.",
			"Remove one from this node: NVIDIA's DaemonSet (in the GPU operator devicePlugin.enabled=false), or have podgauge only measure (--device-plugin=false).")
	case len(stale) > 0:
		return ok("%s of others; nobody listens on %s, which the next kubelet removes", plural(others, "socket"), joinFirst(stale))
	}
	return ok("%s of others, none for NVIDIA GPUs", plural(others, "socket"))
}

// checkAllocatable compares what the kubelet would give away with what podgauge offers.
func checkAllocatable(ctx context.Context, r *report) Finding {
	switch {
	case r.kubelet.err != nil:
		return skipped("the kubelet does not answer")
	case r.kubelet.allocatableErr != nil:
		return skipped("the kubelet does not say: %v", r.kubelet.allocatableErr)
	case !r.DevicePlugin:
		return skipped("the devices are not offered (--device-plugin=false)")
	case !r.driver.isUp():
		return skipped("not compared: which devices there are is not known")
	}
	listed := r.ListedIDs(r.driver.devices)
	var unknown, counts []string
	for _, resource := range slices.Sorted(maps.Keys(listed)) {
		ids := r.kubelet.allocatable[resource]
		for _, id := range ids {
			if !slices.ContainsFunc(listed[resource], func(o device.AdvertisedID) bool { return o.Device() == device.AdvertisedID(id).Device() }) {
				unknown = append(unknown, resource+" "+id)
			}
		}
		if len(ids) > 0 {
			counts = append(counts, fmt.Sprintf("%d %s", len(ids), resource))
		}
	}
	switch {
	case len(unknown) > 0:
		return failure("not podgauge's: "+joinFirst(unknown), "Somebody else offers devices under the same resource: the kubelet gives away what podgauge does not know.",
			"Find whose they are (the sockets in "+r.DevicePluginDir+"), and remove that plugin from the node or give podgauge's resource another name.")
	case len(counts) > 0:
		return ok("%s", joinFirst(counts))
	case len(listed) > 0 && r.isServing(ctx):
		return warning("podgauge serves, and the kubelet has none of "+joinFirst(slices.Sorted(maps.Keys(listed))), "No pod that asks for one is let in on this node.",
			"See what is wrong with the devices (podgauge status), and with the registration (podgauge's log, the kubelet's log).")
	}
	return ok("none: podgauge does not serve")
}

// isServing tells whether a podgauge serves the kubelet.
func (r *report) isServing(ctx context.Context) bool {
	entries, err := os.ReadDir(r.DevicePluginDir)
	if err != nil {
		return false
	}
	return slices.ContainsFunc(entries, func(entry fs.DirEntry) bool {
		if !strings.HasPrefix(entry.Name(), socketPrefix) {
			return false
		}
		_, err := r.dialSocket(ctx, filepath.Join(r.DevicePluginDir, entry.Name()))
		return err == nil
	})
}
