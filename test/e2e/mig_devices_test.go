package e2e

import (
	"context"
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/podgauge/podgauge/test/e2e/node"
)

// busyMIGDevice is a MIG device with its readings.
type busyMIGDevice struct {
	migDevice
	usedBytes     int
	activePercent int // active cycles of the multiprocessors of the GPU instance
}

func (d busyMIGDevice) scenarioLines() []string {
	return []string{fmt.Sprintf("%s used %d", d.scenarioLine(), d.usedBytes), fmt.Sprintf("gpu %d metric 2/%d %d", d.gpu, d.gi, d.activePercent)}
}

// TestMIGReadings checks readings and owners of two MIG devices with their own GPU instance, and of two that share a GPU instance.
func TestMIGReadings(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	n := node.ForTest(ctx, t, node.Options{})
	startKubelet(ctx, t, n)
	backdateKubelet(t, n)
	big := busyMIGDevice{migDevice{0, 0, "3g.40gb", 1, 0}, 4096 * mebibyte, 75}
	little := busyMIGDevice{migDevice{0, 1, "1g.10gb", 7, 0}, 1024 * mebibyte, 25}
	half := busyMIGDevice{migDevice{0, 2, "1c.3g.40gb", 2, 0}, 2048 * mebibyte, 50}
	rest := busyMIGDevice{migDevice{0, 3, "2c.3g.40gb", 2, 1}, 2048 * mebibyte, 50} // same readings as half, of the same instance
	lines := []string{"gpus 1", "gpu 0 model h100", "gpu 0 mig_mode 1", "gpu 0 metric 2 60"}
	for _, device := range []busyMIGDevice{big, little, half, rest} {
		lines = append(lines, device.scenarioLines()...)
	}
	m := newMachine(t, n, lines...)
	d := m.start(t, n, "--mig-strategy=mixed", "--pod-logs-dir="+n.PodLogs())
	resources, pods := idsByResource{}, map[string]node.StaticPod{}
	for name, device := range map[string]busyMIGDevice{"big": big, "little": little, "half": half, "rest": rest} {
		resource := "nvidia.com/mig-" + device.profile
		resources[resource] = []string{device.uuid()}
		pods[name] = podWithResource(name, resource, 1)
	}
	waitForResources(ctx, t, n, resources)
	for _, pod := range pods {
		runPod(ctx, t, n, pod)
		waitForDevices(ctx, t, n, pod)
	}
	m.setLines(t, fmt.Sprintf("gpu 0 process %d %d gi 7 ci 0", waitForProcesses(ctx, t, n, pods["little"], "main", 1)[0], 768*mebibyte))
	d.nextScrape(ctx, t) // the first of two samples

	s := d.scrapeUntil(ctx, t, "the readings of each MIG device are exported", func(s metricsScrape) error {
		return errors.Join(checkMIGReadings(s, big, mainContainer(pods["big"])), checkMIGReadings(s, little, mainContainer(pods["little"])),
			checkMIGReadings(s, half, node.OwnerKey{}), checkNoOwnReadings(s, rest),
			wantNear(s, .6, "nvidia_gpu_sm_active_ratio", seriesLabels{"mig_uuid": ""}), checkMIGProcess(s, little, mainContainer(pods["little"])))
	})
	active := func(id string) float64 { return s.sum("nvidia_gpu_sm_active_ratio", seriesLabels{"mig_uuid": id}) }
	printMeasurement(t, "nvidia_gpu_sm_active_ratio", fmt.Sprintf("%.2f and %.2f of MIG devices, %.2f of a shared GPU instance, %.2f of the GPU",
		active(big.uuid()), active(little.uuid()), active(half.uuid()), active("")))
	removePod(ctx, t, n, pods["rest"])
	d.scrapeUntil(ctx, t, "the instance has one owner", func(s metricsScrape) error { return checkMIGReadings(s, half, mainContainer(pods["half"])) })
	removePod(ctx, t, n, pods["big"])
	if err := errors.Join(checkMIGReadings(d.nextScrape(ctx, t), big, node.OwnerKey{}), checkKubeletOwner(ctx, n, little, pods["little"])); err != nil {
		t.Error(err)
	}
	checkKubeletNotRestarted(t, n)
}

// checkMIGReadings returns an error unless a scrape has the readings of a MIG device, with the labels of its owner.
func checkMIGReadings(s metricsScrape, device busyMIGDevice, owner node.OwnerKey) error {
	with := ownerLabels(owner)
	with["uuid"], with["mig_uuid"] = uuid(device.gpu), device.uuid()
	return errors.Join(s.wantValue(float64(device.usedBytes), "nvidia_gpu_memory_used_bytes", with),
		wantNear(s, float64(device.activePercent)/100, "nvidia_gpu_sm_active_ratio", with))
}

// wantNear is metricsScrape.wantValue with a tolerance, for values computed from two samples.
func wantNear(s metricsScrape, want float64, name string, with seriesLabels) error {
	got, err := s.value(name, with)
	if err == nil && math.Abs(got-want) > 1e-6 {
		err = fmt.Errorf("%s%v: got %v, want %v", name, with, got, want)
	}
	return err
}

// checkNoOwnReadings returns an error if a scrape repeats the readings of a shared GPU instance for this MIG device: sums would be wrong.
func checkNoOwnReadings(s metricsScrape, device busyMIGDevice) error {
	for _, family := range []string{"nvidia_gpu_memory_used_bytes", "nvidia_gpu_sm_active_ratio"} {
		if found := findSamples(s.series[family], seriesLabels{"mig_uuid": device.uuid()}); len(found) > 0 {
			return fmt.Errorf("%s of the second MIG device on an instance: got %v, want no series", family, found)
		}
	}
	return nil
}

// checkMIGProcess returns an error unless a scrape has the memory of the only process on a MIG device. The driver reports only memory.
func checkMIGProcess(s metricsScrape, device busyMIGDevice, owner node.OwnerKey) error {
	with := ownerLabels(owner)
	with["mig_uuid"] = device.uuid()
	unattributed := seriesLabels{"mig_uuid": device.uuid(), "pod": ""}
	wrong := []error{
		s.wantValue(768*mebibyte, containerPrefix+"memory_used_bytes", with), s.wantValue(1, containerPrefix+"processes", with),
		s.wantValue(256*mebibyte, unattributedPrefix+"memory_used_bytes", unattributed), s.wantValue(0, unattributedPrefix+"processes", unattributed),
	}
	if found := s.series[containerPrefix+"sm_utilization_ratio"]; len(found) > 0 {
		wrong = append(wrong, fmt.Errorf("utilization of processes on MIG devices: got %v, want no series", found))
	}
	return errors.Join(wrong...)
}

// checkKubeletOwner returns an error unless the kubelet reports the pod as the owner of a MIG device.
func checkKubeletOwner(ctx context.Context, n *node.RealNode, device busyMIGDevice, pod node.StaticPod) error {
	owners, err := n.Owners(ctx, "nvidia.com/mig-"+device.profile)
	if err == nil && owners[device.uuid()] != mainContainer(pod) {
		err = fmt.Errorf("owner of %s in List: got %v, want %v", device.uuid(), owners[device.uuid()], mainContainer(pod))
	}
	return err
}
