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

// The resources of slices under the strategy mixed.
const (
	smallMIGResource = "nvidia.com/mig-1g.10gb"
	largeMIGResource = "nvidia.com/mig-3g.40gb"
)

// migDevice is a slice of a GPU, as a scenario has it.
type migDevice struct {
	gpu, index int
	profile    string
	gi, ci     int
}

// uuid as the stand-in makes it.
func (s migDevice) uuid() string {
	return fmt.Sprintf("MIG-00000000-%04d-5%03d-8000-%012d", s.gi, s.ci, s.gpu)
}

func (s migDevice) scenarioLine() string {
	return fmt.Sprintf("gpu %d slice %d %s gi %d ci %d", s.gpu, s.index, s.profile, s.gi, s.ci)
}

// newMIGDevices is a GPU with slices of these profiles at the indices from 0 on.
func newMIGDevices(gpu int, profiles ...string) []migDevice {
	all := []migDevice{}
	for i, profile := range profiles {
		all = append(all, migDevice{gpu: gpu, index: i, profile: profile, gi: i + 3})
	}
	return all
}

// scenarioLines switch the mode of the slices' GPUs on, and make the slices.
func scenarioLines(all []migDevice) []string {
	made := []string{}
	for _, s := range all {
		made = append(made, fmt.Sprintf("gpu %d mig_mode 1", s.gpu), s.scenarioLine())
	}
	return slices.Compact(made)
}

// of a profile, by uuid, sorted.
func migUUIDs(all []migDevice, profile string) []string {
	ids := []string{}
	for _, s := range all {
		if s.profile == profile {
			ids = append(ids, s.uuid())
		}
	}
	slices.Sort(ids)
	return ids
}

// TestMIG has GPUs that are whole and GPUs that are partitioned, without a strategy and with mixed, and then a node of nothing but equal slices.
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

// capabilityMinor is the minor number of the node that opens a GPU instance; that of its compute instance 0 is one more.
func capabilityMinor(gpu, gi int) int { return 100*(gpu+1) + 10*gi }

// makeCapabilities gives the node what a driver gives it of all slices that there could be: their list in /proc, and their nodes.
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

// migNone offers neither the partitioned GPU nor its slices, and says so.
func migNone(ctx context.Context, t *testing.T, n *node.RealNode) {
	d := newMachine(t, n, append([]string{"gpus 3"}, scenarioLines(newMIGDevices(2, "3g.40gb", "1g.10gb"))...)...).start(t, n)
	waitForResources(ctx, t, n, idsByResource{gpuResource: uuids(2)})
	if said := d.logLines(t, "devices not listed", uuid(2)+" is partitioned"); len(said) != 1 {
		t.Errorf("that a GPU is not offered is said %d times: %q", len(said), said)
	}
	d.stop(t)
	waitForResources(ctx, t, n, idsByResource{})
}

func migMixed(ctx context.Context, t *testing.T, n *node.RealNode) {
	all := slices.Concat(newMIGDevices(2, "3g.40gb", "1g.10gb", "1g.10gb"), newMIGDevices(3, "3g.40gb", "3g.40gb"))
	m := newMachine(t, n, append([]string{"gpus 4"}, scenarioLines(all)...)...)
	d := m.start(t, n, "--mig-strategy=mixed", "--pass-device-specs")
	waitForResources(ctx, t, n, idsByResource{gpuResource: uuids(2), smallMIGResource: migUUIDs(all, "1g.10gb"), largeMIGResource: migUUIDs(all, "3g.40gb")})

	pods := map[string]node.StaticPod{}
	held := map[string]string{} // by resource
	for name, resource := range map[string]string{"whole": gpuResource, "little": smallMIGResource, "big": largeMIGResource} {
		pod := podWithResource(name, resource, 1)
		runPod(ctx, t, n, pod)
		id := waitForDevices(ctx, t, n, pod)[0]
		checkVisibleDevices(ctx, t, n, pod, id)
		held[resource], pods[resource] = id, pod
	}
	for _, s := range all {
		for resource, pod := range pods {
			if held[resource] == s.uuid() {
				checkCapabilities(ctx, t, n, pod, s)
			}
		}
	}
	s := d.nextScrape(ctx, t)
	holding := map[string]node.OwnerKey{}
	for resource, id := range held {
		holding[id] = mainContainer(pods[resource])
	}
	if err := errors.Join(s.checkOwners(uuids(2), holding), checkMIGSeries(s, all, holding)); err != nil {
		t.Error(err)
	}
	for _, pod := range pods {
		removePod(ctx, t, n, pod)
	}
	d.stop(t)
	waitForResources(ctx, t, n, idsByResource{})
}

// checkCapabilities looks into a running container: of the nodes that open slices it has its own slice's, and of GPUs its slice's GPU's.
func checkCapabilities(ctx context.Context, t *testing.T, n *node.RealNode, pod node.StaticPod, s migDevice) {
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
	minor := capabilityMinor(s.gpu, s.gi)
	want := []string{fmt.Sprintf("nvidia%d", s.gpu), fmt.Sprintf("nvidia-caps/nvidia-cap%d", minor), fmt.Sprintf("nvidia-caps/nvidia-cap%d", minor+1)}
	if !slices.Equal(got, want) {
		t.Errorf("pod %s has %q, want %q", pod.Name, got, want)
	}
}

// checkMIGSeries says where the scrape differs from the truth about slices: those in held are held, the others idle.
func checkMIGSeries(s metricsScrape, all []migDevice, held map[string]node.OwnerKey) error {
	wrong := []error{s.checkNoWrongOwner(held)}
	for _, slice := range all {
		of := seriesLabels{"uuid": uuid(slice.gpu), "mig_uuid": slice.uuid()}
		infos := 0
		if held[slice.uuid()] != (node.OwnerKey{}) {
			infos = 1
		}
		wrong = append(wrong, s.wantValue(1, "nvidia_gpu_healthy", of), s.wantValue(float64(infos), "nvidia_gpu_allocated", of),
			s.wantValue(1, "nvidia_gpu_info", seriesLabels{"mig_uuid": slice.uuid(), "mig_profile": slice.profile}))
		if n := len(findSamples(s.series["nvidia_gpu_allocation_info"], of)); n != infos {
			wrong = append(wrong, fmt.Errorf("nvidia_gpu_allocation_info of %s is there %d times", slice.uuid(), n))
		}
		// What the GPU reads is its own: its slices share it. Nobody can hold all of it.
		for family, want := range map[string]int{"nvidia_gpu_power_watts": 1, "nvidia_gpu_healthy": 0, "nvidia_gpu_allocated": 0} {
			if found := findSamples(s.series[family], seriesLabels{"uuid": uuid(slice.gpu), "mig_uuid": ""}); len(found) != want {
				wrong = append(wrong, fmt.Errorf("%s of GPU %d is %v", family, slice.gpu, found))
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
	// The variable has them in the node's order, which is that of these ids.
	checkVisibleDevices(ctx, t, n, pod, strings.Join(ids, ","))
	s := d.nextScrape(ctx, t)
	held := map[string]node.OwnerKey{}
	for _, id := range ids {
		held[id] = mainContainer(pod)
		if err := s.wantValue(1, "nvidia_gpu_allocation_info", seriesLabels{"mig_uuid": id, "device_id": id, "resource": gpuResource}); err != nil {
			t.Error(err)
		}
	}
	if err := checkMIGSeries(s, all, held); err != nil {
		t.Error(err)
	}
	removePod(ctx, t, n, pod)
	runRejectedPod(ctx, t, n, podWithResource("profile", smallMIGResource, 1), "UnexpectedAdmissionError", smallMIGResource)
}
