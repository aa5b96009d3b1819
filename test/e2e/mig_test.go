package e2e

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

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
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	n := node.ForTest(ctx, t, node.Options{})
	makeNodes(ctx, t, n)
	makeCapabilities(ctx, t, n)
	startKubelet(ctx, t, n)
	backdateKubelet(t, n)
	t.Run("none", func(t *testing.T) { migNone(ctx, t, n) })
	t.Run("mixed", func(t *testing.T) { migMixed(ctx, t, n) })
	t.Run("single", func(t *testing.T) { migSingle(ctx, t, n) })
}

// capabilityMinor returns the minor number of a GPU instance's device node. The number of its compute instance 0 is one higher.
func capabilityMinor(gpu, gi int) int { return 100*(gpu+1) + 10*gi }

// makeCapabilities creates the driver's list of capabilities in /proc and the device nodes, for all possible GPU instances.
func makeCapabilities(ctx context.Context, t *testing.T, n *node.RealNode) {
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
	if _, err := n.Shell(ctx, script); err != nil {
		t.Fatal(err)
	}
}

// migNone checks that podgauge lists neither the partitioned GPU nor its MIG devices, and logs that.
func migNone(ctx context.Context, t *testing.T, n *node.RealNode) {
	d := newMachine(t, n, append([]string{"gpus 3"}, scenarioLines(newMIGDevices(2, "3g.40gb", "1g.10gb"))...)...).start(t, n)
	waitForResources(ctx, t, n, idsByResource{gpuResource: uuids(2)})
	if lines := d.logLines(t, "devices not listed", uuid(2)+" is partitioned"); len(lines) != 1 {
		t.Errorf("log lines about the partitioned GPU: got %q, want one", lines)
	}
	d.stop(t)
	waitForResources(ctx, t, n, idsByResource{})
}

func migMixed(ctx context.Context, t *testing.T, n *node.RealNode) {
	all := slices.Concat(newMIGDevices(2, "3g.40gb", "1g.10gb", "1g.10gb"), newMIGDevices(3, "3g.40gb", "3g.40gb"))
	m := newMachine(t, n, append([]string{"gpus 4"}, scenarioLines(all)...)...)
	d := m.start(t, n, "--mig-strategy=mixed", "--pass-device-specs")
	small, large := migUUIDs(all, "1g.10gb"), migUUIDs(all, "3g.40gb")
	waitForResources(ctx, t, n, idsByResource{gpuResource: uuids(2), smallMIGResource: small, largeMIGResource: large})

	pods := map[string]node.StaticPod{}
	allocated := map[string]string{} // by resource
	for name, resource := range map[string]string{"whole": gpuResource, "little": smallMIGResource, "big": largeMIGResource} {
		pod := podWithResource(name, resource, 1)
		runPod(ctx, t, n, pod)
		id := waitForDevices(ctx, t, n, pod)[0]
		checkVisibleDevices(ctx, t, n, pod, id)
		allocated[resource], pods[resource] = id, pod
	}
	for _, device := range all {
		for resource, pod := range pods {
			if allocated[resource] == device.uuid() {
				checkCapabilities(ctx, t, n, pod, device)
			}
		}
	}
	s := d.nextScrape(ctx, t)
	owners := map[string]node.OwnerKey{}
	for resource, id := range allocated {
		owners[id] = mainContainer(pods[resource])
	}
	if err := errors.Join(s.checkOwners(uuids(2), owners), checkMIGSeries(s, all, owners)); err != nil {
		t.Error(err)
	}
	for _, pod := range pods {
		removePod(ctx, t, n, pod)
	}
	d.stop(t)
	waitForResources(ctx, t, n, idsByResource{})
}

// checkCapabilities checks that a container has exactly the device nodes of its MIG device: GPU, GPU instance and compute instance.
func checkCapabilities(ctx context.Context, t *testing.T, n *node.RealNode, pod node.StaticPod, mig migDevice) {
	t.Helper()
	pid, err := n.ContainerPID(ctx, pod, "main")
	if err != nil {
		t.Fatal(err)
	}
	dev := fmt.Sprintf("/proc/%d/root/dev/", pid)
	got := []string{}
	for _, pattern := range []string{"nvidia[0-9]*", "nvidia-caps/*"} {
		found, err := filepath.Glob(dev + pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range found {
			got = append(got, strings.TrimPrefix(path, dev))
		}
	}
	minor := capabilityMinor(mig.gpu, mig.gi)
	want := []string{fmt.Sprintf("nvidia%d", mig.gpu), fmt.Sprintf("nvidia-caps/nvidia-cap%d", minor), fmt.Sprintf("nvidia-caps/nvidia-cap%d", minor+1)}
	if !slices.Equal(got, want) {
		t.Errorf("device nodes of pod %s: got %q, want %q", pod.Name, got, want)
	}
}

// checkMIGSeries returns an error unless a scrape has the series of all MIG devices; devices without an owner must be idle.
func checkMIGSeries(s metricsScrape, all []migDevice, owners map[string]node.OwnerKey) error {
	wrong := []error{s.checkNoWrongOwner(owners)}
	for _, device := range all {
		with := seriesLabels{"uuid": uuid(device.gpu), "mig_uuid": device.uuid()}
		infos := 0
		if owners[device.uuid()] != (node.OwnerKey{}) {
			infos = 1
		}
		wrong = append(wrong, s.wantValue(1, "nvidia_gpu_healthy", with), s.wantValue(float64(infos), "nvidia_gpu_allocated", with),
			s.wantValue(1, "nvidia_gpu_info", seriesLabels{"mig_uuid": device.uuid(), "mig_profile": device.profile}))
		if n := len(findSamples(s.series["nvidia_gpu_allocation_info"], with)); n != infos {
			wrong = append(wrong, fmt.Errorf("number of series nvidia_gpu_allocation_info of %s: got %d, want %d", device.uuid(), n, infos))
		}
		// A partitioned GPU has readings of its own, but cannot be allocated.
		for family, want := range map[string]int{"nvidia_gpu_power_watts": 1, "nvidia_gpu_healthy": 0, "nvidia_gpu_allocated": 0} {
			if found := findSamples(s.series[family], seriesLabels{"uuid": uuid(device.gpu), "mig_uuid": ""}); len(found) != want {
				wrong = append(wrong, fmt.Errorf("%s of GPU %d: got %v, want %d series", family, device.gpu, found, want))
			}
		}
	}
	return errors.Join(wrong...)
}

func migSingle(ctx context.Context, t *testing.T, n *node.RealNode) {
	all := slices.Concat(newMIGDevices(0, "1g.10gb", "1g.10gb", "1g.10gb"), newMIGDevices(1, "1g.10gb", "1g.10gb"))
	m := newMachine(t, n, append([]string{"gpus 2"}, scenarioLines(all)...)...)
	d := m.start(t, n, "--mig-strategy=single")
	waitForResources(ctx, t, n, idsByResource{gpuResource: migUUIDs(all, "1g.10gb")})
	pod := podWithResource("single", gpuResource, 2)
	runPod(ctx, t, n, pod)
	ids := waitForDevices(ctx, t, n, pod)
	// The order in the variable is the node's, here the order of the ids.
	checkVisibleDevices(ctx, t, n, pod, strings.Join(ids, ","))
	s := d.nextScrape(ctx, t)
	owners := map[string]node.OwnerKey{}
	for _, id := range ids {
		owners[id] = mainContainer(pod)
		if err := s.wantValue(1, "nvidia_gpu_allocation_info", seriesLabels{"mig_uuid": id, "device_id": id, "resource": gpuResource}); err != nil {
			t.Error(err)
		}
	}
	if err := checkMIGSeries(s, all, owners); err != nil {
		t.Error(err)
	}
	removePod(ctx, t, n, pod)
	runRejectedPod(ctx, t, n, podWithResource("profile", smallMIGResource, 1), "UnexpectedAdmissionError", smallMIGResource)
}
