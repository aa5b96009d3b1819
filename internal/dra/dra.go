// Package dra finds the devices behind the names of DRA drivers.
package dra

import (
	"fmt"
	"strings"

	"github.com/podgauge/podgauge/internal/allocation"
	"github.com/podgauge/podgauge/internal/device"
)

// Driver is NVIDIA's driver for Dynamic Resource Allocation. Its names of
// devices, since PR 428 (July 2025, v25.8):
//
//	gpu-<minor>
//	gpu-<minor>-mig-<profile>-<start>-<size>      up to PR 852
//	gpu-<minor>-mig-1g10gb-me-<profile>-<start>   since PR 852 (early in 2026, v0.4)
//
// <profile> is the number of a GPU instance's profile, <start> and <size> count
// memory slices (CanonicalName in cmd/gpu-kubelet-plugin/deviceinfo.go and
// mig.go of kubernetes-sigs/dra-driver-nvidia-gpu, earlier
// NVIDIA/k8s-dra-driver-gpu).
const Driver = "gpu.nvidia.com"

// ClaimedDevice returns the device on the board for a claim. Claims of foreign
// devices, and ambiguous names, have none.
func ClaimedDevice(c allocation.Claim, board []device.Status) (device.ID, bool) {
	id, ok := onlyDevice(board, func(s *device.Status) bool { return hasCDIName(c.CDI, s.ID) })
	if c.Driver != Driver {
		return id, ok
	}
	for _, gone := range []bool{false, true} { // a present GPU may have the number of a lost GPU
		if !ok {
			id, ok = onlyDevice(board, func(s *device.Status) bool { return s.Gone == gone && HasName(c.Device, s) })
		}
	}
	return id, ok
}

// onlyDevice returns the device with a match, unless there are several.
func onlyDevice(board []device.Status, matches func(*device.Status) bool) (id device.ID, ok bool) {
	for i := range board {
		if !matches(&board[i]) {
			continue
		}
		if ok {
			return "", false
		}
		id, ok = board[i].ID, true
	}
	return id, ok
}

// hasCDIName reports whether a name ends in the device's UUID, as in NVIDIA's
// CDI specs ("nvidia.com/gpu=GPU-…"). Runtimes interpret such a name in one
// way, for any driver.
func hasCDIName(names []string, id device.ID) bool {
	for _, name := range names {
		if _, uuid, _ := strings.Cut(name, "="); uuid == string(id) {
			return true
		}
	}
	return false
}

// HasName reports whether the name is the driver's name of a device, a
// partitioned GPU excepted. A lost MIG device has no name: the driver gives the
// place, and so the name, to a device of the next claim.
func HasName(name string, s *device.Status) bool {
	gpu, p := fmt.Sprintf("gpu-%d", s.Minor), s.Placement
	if s.WholeGPU() {
		return !s.MIGEnabled && name == gpu
	}
	place, ok := strings.CutPrefix(name, gpu+"-mig-")
	if !ok || s.Gone || p.Size == 0 {
		return false
	}
	if strings.Contains(place, "g") { // the text of a profile
		return strings.HasSuffix(place, fmt.Sprintf("-%d-%d", p.Profile, p.Start))
	}
	return place == fmt.Sprintf("%d-%d-%d", p.Profile, p.Start, p.Size)
}
