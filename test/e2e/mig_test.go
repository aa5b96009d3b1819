package e2e

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/podgauge/podgauge/test/e2e/node"
)

// The resources of MIG devices with --mig-strategy=mixed.
const (
	smallMIGResource = "nvidia.com/mig-1g.10gb"
	largeMIGResource = "nvidia.com/mig-3g.40gb"
)

// migDevice is a MIG device in a scenario.
type migDevice struct {
	gpu, index int
	profile    string
	gi, ci     int
}

// uuid returns the stand-in library's UUID of the MIG device.
func (d migDevice) uuid() string {
	return fmt.Sprintf("MIG-00000000-%04d-5%03d-8000-%012d", d.gi, d.ci, d.gpu)
}

func (d migDevice) scenarioLine() string {
	return fmt.Sprintf("gpu %d slice %d %s gi %d ci %d", d.gpu, d.index, d.profile, d.gi, d.ci)
}

// deviceNodes returns a container's device nodes of the MIG device: GPU instance, compute instance, GPU and driver.
func (d migDevice) deviceNodes() []string {
	minor := capabilityMinor(d.gpu, d.gi)
	return []string{fmt.Sprintf("nvidia-caps/nvidia-cap%d", minor), fmt.Sprintf("nvidia-caps/nvidia-cap%d", minor+1), fmt.Sprintf("nvidia%d", d.gpu), "nvidiactl"}
}

// newMIGDevices returns MIG devices of a GPU with these profiles, and indices from 0.
func newMIGDevices(gpu int, profiles ...string) []migDevice {
	all := []migDevice{}
	for i, profile := range profiles {
		all = append(all, migDevice{gpu: gpu, index: i, profile: profile, gi: i + 3})
	}
	return all
}

// scenarioLines returns lines that turn on MIG mode and create MIG devices.
func scenarioLines(all []migDevice) []string {
	lines := []string{}
	for _, d := range all {
		lines = append(lines, fmt.Sprintf("gpu %d mig_mode 1", d.gpu), d.scenarioLine())
	}
	return slices.Compact(lines)
}

// migUUIDs returns the sorted UUIDs of the MIG devices with this profile.
func migUUIDs(all []migDevice, profile string) []string {
	ids := []string{}
	for _, d := range all {
		if d.profile == profile {
			ids = append(ids, d.uuid())
		}
	}
	slices.Sort(ids)
	return ids
}

// TestMIG checks each MIG strategy: none and mixed with whole and partitioned GPUs, single with equal MIG devices only.
func TestMIG(t *testing.T) {
	n := startNode(t, node.Options{})
	makeNodes(t, n)
	makeCapabilities(t, n)
	t.Run("none", func(t *testing.T) { migNone(t, n) })
	t.Run("mixed", func(t *testing.T) { migMixed(t, n) })
	t.Run("single", func(t *testing.T) { migSingle(t, n) })
}

// capabilityMinor returns the minor number of a GPU instance's device node. The number of its compute instance 0 is one higher.
func capabilityMinor(gpu, gi int) int { return 100*(gpu+1) + 10*gi }

// makeCapabilities creates the driver's list of capabilities in /proc and the device nodes, for all possible GPU instances.
func makeCapabilities(t *testing.T, n *node.RealNode) {
	t.Helper()
	script, list := "mkdir /dev/nvidia-caps\n", ""
	for gpu := range defaultGPUs {
		for gi := range 10 {
			minor := capabilityMinor(gpu, gi)
			list += fmt.Sprintf("gpu%d/gi%d/access %d\ngpu%d/gi%d/ci0/access %d\n", gpu, gi, minor, gpu, gi, minor+1)
			script += fmt.Sprintf("mknod /dev/nvidia-caps/nvidia-cap%d c 236 %d\nmknod /dev/nvidia-caps/nvidia-cap%d c 236 %d\n",
				minor, minor, minor+1, minor+1)
		}
	}
	script += "mount -t tmpfs tmpfs /proc/driver\nmkdir /proc/driver/nvidia-caps\ncat >/proc/driver/nvidia-caps/mig-minors <<'END'\n" + list + "END\n"
	_, err := n.Shell(t.Context(), script)
	must(t, err)
}

// migNone checks that podgauge lists neither the partitioned GPU nor its MIG devices, and logs that.
func migNone(t *testing.T, n *node.RealNode) {
	d := newMachine(t, n, append([]string{"gpus 3"}, scenarioLines(newMIGDevices(2, "3g.40gb", "1g.10gb"))...)...).start(t, n)
	waitForAllocatable(t, n, uuids(2)...)
	expect(t, d.hasLogLine("devices not listed", uuid(2)+" is partitioned"))
	d.stop(t)
	waitForAllocatable(t, n)
}

func migMixed(t *testing.T, n *node.RealNode) {
	all := slices.Concat(newMIGDevices(2, "3g.40gb", "1g.10gb", "1g.10gb"), newMIGDevices(3, "3g.40gb", "3g.40gb"))
	m := newMachine(t, n, append([]string{"gpus 4"}, scenarioLines(all)...)...)
	d := m.start(t, n, "--mig-strategy=mixed", "--pass-device-specs")
	waitForResources(t, n, idsByResource{
		gpuResource: uuids(2), smallMIGResource: migUUIDs(all, "1g.10gb"), largeMIGResource: migUUIDs(all, "3g.40gb"),
	})
	whole := podWithGPUs("whole", 1)
	little, big := podWithResource("little", smallMIGResource, 1), podWithResource("big", largeMIGResource, 1)
	for _, pod := range []node.StaticPod{whole, little, big} {
		runPod(t, n, pod)
		id := waitForDevices(t, n, pod)[0]
		checkVisibleDevices(t, n, pod, id)
		if i := slices.IndexFunc(all, func(d migDevice) bool { return d.uuid() == id }); i >= 0 {
			checkDeviceNodes(t, n, pod, all[i].deviceNodes()...)
		}
	}
	owners := waitForOwners(t, n, whole, little, big)
	s := d.nextScrape(t)
	expect(t, errors.Join(s.checkOwnersOfAllocated(owners), checkMIGSeries(s, all)))
	for _, pod := range []node.StaticPod{whole, little, big} {
		removePod(t, n, pod)
	}
	d.stop(t)
	waitForAllocatable(t, n)
}

// checkMIGSeries returns an error unless a scrape has the series of all MIG devices and of their GPUs.
func checkMIGSeries(s metricsScrape, all []migDevice) error {
	wrong := []error{}
	for _, device := range all {
		wrong = append(wrong, s.wantValue(1, "nvidia_gpu_healthy", seriesLabels{"uuid": uuid(device.gpu), "mig_uuid": device.uuid()}),
			s.wantValue(1, "nvidia_gpu_info", seriesLabels{"mig_uuid": device.uuid(), "mig_profile": device.profile}))
		// A partitioned GPU has readings of its own, but cannot be allocated.
		gpu := seriesLabels{"uuid": uuid(device.gpu), "mig_uuid": ""}
		wrong = append(wrong, s.wantCount(1, "nvidia_gpu_power_watts", gpu), s.wantCount(0, "nvidia_gpu_healthy", gpu))
	}
	return errors.Join(wrong...)
}

func migSingle(t *testing.T, n *node.RealNode) {
	all := slices.Concat(newMIGDevices(0, "1g.10gb", "1g.10gb", "1g.10gb"), newMIGDevices(1, "1g.10gb", "1g.10gb"))
	d := newMachine(t, n, append([]string{"gpus 2"}, scenarioLines(all)...)...).start(t, n, "--mig-strategy=single")
	waitForAllocatable(t, n, migUUIDs(all, "1g.10gb")...)
	pod := podWithGPUs("single", 2)
	runPod(t, n, pod)
	// The order in the variable is the node's, here the order of the ids.
	checkVisibleDevices(t, n, pod, strings.Join(waitForDevices(t, n, pod), ","))
	owners := waitForOwners(t, n, pod)
	s := d.nextScrape(t)
	expect(t, errors.Join(s.checkOwnersOfAllocated(owners), checkMIGSeries(s, all)))
	removePod(t, n, pod)
	runRejectedPod(t, n, podWithResource("profile", smallMIGResource, 1), "UnexpectedAdmissionError", smallMIGResource)
}
