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

// ourSockets is how the names of podgauge's sockets begin.
const ourSockets = "podgauge-"

// rivals are how the names of other NVIDIA plugins' sockets begin: NVIDIA's own has the
// resource's name after it, GKE's the time.
var rivals = [...]string{"nvidia-", "nvidiaGPU-"}

// otherPlugins looks for somebody who offers the same GPUs.
func otherPlugins(ctx context.Context, e *examination) Finding {
	entries, err := os.ReadDir(e.DevicePluginDir)
	if err != nil {
		return skipped("the folder of plugins cannot be read")
	}
	var living, left []string
	others := 0
	for _, entry := range entries {
		name := entry.Name()
		if entry.Type() != fs.ModeSocket || name == "kubelet.sock" || strings.HasPrefix(name, ourSockets) {
			continue
		}
		others++
		if !slices.ContainsFunc(rivals[:], func(prefix string) bool { return strings.HasPrefix(name, prefix) }) {
			continue
		}
		if _, err := e.reach(ctx, filepath.Join(e.DevicePluginDir, name)); err == nil {
			living = append(living, name)
		} else {
			left = append(left, name)
		}
	}
	switch {
	case len(living) > 0 && !e.Offers:
		return ok("%s serves, and podgauge only looks on", few(living))
	case len(living) > 0:
		return failure(few(living)+": another plugin for NVIDIA GPUs serves",
			"Two plugins of one resource overwrite each other's list, and with two resources two pods can be given the same GPU.",
			"Remove one from this node: NVIDIA's DaemonSet (in the GPU operator devicePlugin.enabled=false), or have podgauge only measure (--device-plugin=false).")
	case len(left) > 0:
		return ok("%s of others; nobody listens on %s, which the next kubelet removes", number(others, "socket"), few(left))
	}
	return ok("%s of others, none for NVIDIA GPUs", number(others, "socket"))
}

// allocatable compares what the kubelet would give away with what podgauge offers.
func allocatable(ctx context.Context, e *examination) Finding {
	switch {
	case e.kubelet.err != nil:
		return skipped("the kubelet does not answer")
	case e.kubelet.countErr != nil:
		return skipped("the kubelet does not say: %v", e.kubelet.countErr)
	case !e.Offers:
		return skipped("the devices are not offered (--device-plugin=false)")
	case !e.devices.up():
		return skipped("not compared: which devices there are is not known")
	}
	ours := e.Offered(e.devices.listed)
	var foreign, given []string
	for _, resource := range slices.Sorted(maps.Keys(ours)) {
		ids := e.kubelet.allocatable[resource]
		for _, id := range ids {
			if !slices.ContainsFunc(ours[resource], func(o device.OfferedID) bool { return o.Device() == device.OfferedID(id).Device() }) {
				foreign = append(foreign, resource+" "+id)
			}
		}
		if len(ids) > 0 {
			given = append(given, fmt.Sprintf("%d %s", len(ids), resource))
		}
	}
	switch {
	case len(foreign) > 0:
		return failure("not podgauge's: "+few(foreign), "Somebody else offers devices under the same resource: the kubelet gives away what podgauge does not know.",
			"Find whose they are (the sockets in "+e.DevicePluginDir+"), and remove that plugin from the node or give podgauge's resource another name.")
	case len(given) > 0:
		return ok("%s", few(given))
	case len(ours) > 0 && e.serving(ctx):
		return warning("podgauge serves, and the kubelet has none of "+few(slices.Sorted(maps.Keys(ours))), "No pod that asks for one is let in on this node.",
			"See what is wrong with the devices (podgauge status), and with the registration (podgauge's log, the kubelet's log).")
	}
	return ok("none: podgauge does not serve")
}

// serving tells whether a podgauge serves the kubelet.
func (e *examination) serving(ctx context.Context) bool {
	entries, err := os.ReadDir(e.DevicePluginDir)
	if err != nil {
		return false
	}
	return slices.ContainsFunc(entries, func(entry fs.DirEntry) bool {
		if !strings.HasPrefix(entry.Name(), ourSockets) {
			return false
		}
		_, err := e.reach(ctx, filepath.Join(e.DevicePluginDir, entry.Name()))
		return err == nil
	})
}
