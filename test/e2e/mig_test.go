package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/test/e2e/node"
	"github.com/podgauge/podgauge/test/helpers/expect"
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
	expect.NoError(t, d.hasLogLine("devices not listed", uuid(2)+" is partitioned"))
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
	expect.NoError(t, errors.Join(s.checkOwnersOfAllocated(owners), checkMIGSeries(s, all)))
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
	expect.NoError(t, errors.Join(s.checkOwnersOfAllocated(owners), checkMIGSeries(s, all)))
	removePod(t, n, pod)
	runRejectedPod(t, n, podWithResource("profile", smallMIGResource, 1), "UnexpectedAdmissionError", smallMIGResource)
}

// mediumMIGResource is a resource that exists only after GPU 1 was repartitioned.
const mediumMIGResource = "nvidia.com/mig-2g.20gb"

// TestRepartition adds and removes MIG devices beside an allocated MIG device.
func TestRepartition(t *testing.T) {
	n := startNode(t, node.Options{})
	before := newMIGDevices(1, "1g.10gb", "1g.10gb", "3g.40gb")
	kept, spare, big := before[0], before[1], before[2]
	fresh := migDevice{gpu: 1, index: 4, profile: "2g.20gb", gi: 9}
	m := newMachine(t, n, append([]string{"gpus 2"}, scenarioLines(before)...)...)
	d := m.start(t, n, "--mig-strategy=mixed")
	waitForResources(t, n, idsByResource{gpuResource: uuids(1), smallMIGResource: migUUIDs(before, "1g.10gb"), largeMIGResource: {big.uuid()}})

	pod := podWithResource("owner", smallMIGResource, 1)
	status, _ := runPod(t, n, pod)
	if id := waitForDevices(t, n, pod)[0]; id != kept.uuid() {
		kept, spare = spare, kept
	}
	check := func(s metricsScrape) error {
		return errors.Join(s.wantValue(1, "nvidia_gpu_healthy", seriesLabels{"mig_uuid": kept.uuid()}),
			s.checkOwnersOfAllocated(map[string]node.OwnerKey{kept.uuid(): mainContainer(pod)}))
	}
	d.scrapeUntil(t, "the owner is exported", check)
	scrapes := watchScrapes(t, d, 200*time.Millisecond, check)

	begin := time.Now()
	m.repartition(t, []migDevice{spare, big}, fresh)
	after := idsByResource{gpuResource: uuids(1), smallMIGResource: {kept.uuid()}, mediumMIGResource: {fresh.uuid()}}
	waitForResources(t, n, after)
	measureDurations(t, "new MIG layout, with an event of the driver → the kubelet's resources", time.Second, time.Since(begin))
	waitForEmptyList(t, n, largeMIGResource)
	// A device that is missing in a listing is unhealthy at once, and removed after ten seconds.
	measureDurations(t, "new MIG layout → empty device list of a removed resource", 15*time.Second, time.Since(begin))
	runRejectedPod(t, n, podWithResource("late", largeMIGResource, 1), "UnexpectedAdmissionError", largeMIGResource)
	runRejectedPod(t, n, podWithResource("same-profile", smallMIGResource, 1), "UnexpectedAdmissionError", smallMIGResource, "Available: 0")
	scrapes.stop(t)
	newPod := podWithResource("new", mediumMIGResource, 1)
	runPod(t, n, newPod)
	checkVisibleDevices(t, n, newPod, fresh.uuid())
	removePod(t, n, newPod)
	raceAllocation(t, n, m, big, fresh)
	waitForResources(t, n, after)
	d.scrapeUntil(t, "only the owner is exported", check)
	expect.NoError(t, checkSameContainer(t.Context(), n, pod, status))

	// An allocated device is removed, and then MIG mode is turned off.
	m.repartition(t, []migDevice{kept})
	await(t, "the MIG device is Unhealthy in the pod's status",
		hasDeviceHealth(n, pod, node.DeviceHealth{Resource: smallMIGResource, ID: kept.uuid(), Health: "Unhealthy"}))
	waitForResources(t, n, idsByResource{gpuResource: uuids(1), mediumMIGResource: {fresh.uuid()}})
	removePod(t, n, pod)
	must(t, m.Clear("gpu 1 mig_mode"))
	m.repartition(t, []migDevice{fresh})
	waitForAllocatable(t, n, uuids(2)...)
	for _, resource := range []string{smallMIGResource, mediumMIGResource, largeMIGResource} {
		waitForEmptyList(t, n, resource)
	}
	checkKubeletNotRestarted(t, n)
}

// repartition removes and adds MIG devices of GPU 1, and reports the driver's event.
func (m *simulatedMachine) repartition(t *testing.T, removed []migDevice, added ...migDevice) {
	t.Helper()
	for _, device := range removed {
		must(t, m.Clear(fmt.Sprintf("gpu %d slice %d", device.gpu, device.index)))
	}
	for _, device := range added {
		must(t, m.Set(device.scenarioLine()))
	}
	must(t, m.Event(1, "type 0x100"))
}

// raceAllocation removes a MIG device while a pod requests it: kubelets from v1.37 on exit if a device is gone when Allocate returns.
func raceAllocation(t *testing.T, n *node.RealNode, m *simulatedMachine, big, fresh migDevice) {
	t.Helper()
	const races = 4
	ran := 0
	for round := range races {
		m.repartition(t, []migDevice{fresh}, big)
		await(t, "the MIG device is allocatable", func(ctx context.Context) error {
			ids, err := n.Allocatable(ctx, largeMIGResource)
			if len(ids) != 1 {
				return fmt.Errorf("allocatable MIG devices: got %q, %w", ids, err)
			}
			return nil
		})
		pod := podWithResource(fmt.Sprintf("race-%d", round), largeMIGResource, 1)
		_, err := n.CreatePod(pod)
		must(t, err)
		waitUntil(t, time.Now().Add(time.Duration(round)*20*time.Millisecond))
		m.repartition(t, []migDevice{big}, fresh)
		await(t, "the pod runs or is rejected", func(ctx context.Context) error {
			status, err := n.Pod(ctx, pod)
			if err != nil || status.Phase == "Failed" {
				return err
			}
			if len(status.Containers) == 0 || status.Containers[0].State != "running" {
				return fmt.Errorf("pod status: got %+v", status)
			}
			ran++
			return nil
		})
		removePod(t, n, pod)
		checkKubeletNotRestarted(t, n)
	}
	printMeasurement(t, "pods that requested a MIG device during its removal", fmt.Sprintf("%d, of which %d ran", races, ran))
}
