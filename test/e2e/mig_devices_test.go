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

// busyMIGDevice is a slice with what the driver says of it.
type busyMIGDevice struct {
	migDevice
	usedBytes     int // bytes
	activePercent int // percent of the cycles of its GPU instance's multiprocessors
}

func (s busyMIGDevice) scenarioLines() []string {
	return []string{fmt.Sprintf("%s used %d", s.scenarioLine(), s.usedBytes), fmt.Sprintf("gpu %d metric 2/%d %d", s.gpu, s.gi, s.activePercent)}
}

// TestSlices has each of two slices with a GPU instance of its own, and two that share one, say what they use: to the pod that holds them.
func TestSlices(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	n := node.ForTest(ctx, t, node.Options{})
	startKubelet(ctx, t, n)
	backdateKubelet(t, n)
	big := busyMIGDevice{migDevice{0, 0, "3g.40gb", 1, 0}, 4096 * mebibyte, 75}
	little := busyMIGDevice{migDevice{0, 1, "1g.10gb", 7, 0}, 1024 * mebibyte, 25}
	half := busyMIGDevice{migDevice{0, 2, "1c.3g.40gb", 2, 0}, 2048 * mebibyte, 50}
	rest := busyMIGDevice{migDevice{0, 3, "2c.3g.40gb", 2, 1}, 2048 * mebibyte, 50} // says what the other does
	all := []string{"gpus 1", "gpu 0 model h100", "gpu 0 mig_mode 1", "gpu 0 metric 2 60"}
	for _, s := range []busyMIGDevice{big, little, half, rest} {
		all = append(all, s.scenarioLines()...)
	}
	m := newMachine(t, n, all...)
	d := m.start(t, n, "--mig-strategy=mixed", "--pod-logs-dir="+n.PodLogs())
	offered, pods := idsByResource{}, map[string]node.StaticPod{}
	for name, s := range map[string]busyMIGDevice{"big": big, "little": little, "half": half, "rest": rest} {
		resource := "nvidia.com/mig-" + s.profile
		offered[resource] = []string{s.uuid()}
		pods[name] = podWithResource(name, resource, 1)
	}
	waitForResources(ctx, t, n, offered)
	for _, pod := range pods {
		runPod(ctx, t, n, pod)
		waitForDevices(ctx, t, n, pod)
	}
	m.setLines(t, fmt.Sprintf("gpu 0 process %d %d gi 7 ci 0", waitForProcesses(ctx, t, n, pods["little"], "main", 1)[0], 768*mebibyte))
	d.nextScrape(ctx, t) // from here on there is something to compare with

	s := d.scrapeUntil(ctx, t, "each slice says what it uses", func(s metricsScrape) error {
		return errors.Join(checkMIGReadings(s, big, mainContainer(pods["big"])), checkMIGReadings(s, little, mainContainer(pods["little"])), checkMIGReadings(s, half, node.OwnerKey{}), checkNoOwnReadings(s, rest),
			wantNear(s, .6, "nvidia_gpu_sm_active_ratio", seriesLabels{"mig_uuid": ""}), checkMIGProcess(s, little, mainContainer(pods["little"])))
	})
	active := func(id string) float64 { return s.sum("nvidia_gpu_sm_active_ratio", seriesLabels{"mig_uuid": id}) }
	printMeasurement(t, "active multiprocessors", fmt.Sprintf("of two slices with an instance of their own %.2f and %.2f, of two that share one %.2f together, of the GPU %.2f",
		active(big.uuid()), active(little.uuid()), active(half.uuid()), active("")))
	removePod(ctx, t, n, pods["rest"])
	d.scrapeUntil(ctx, t, "a GPU instance has one holder", func(s metricsScrape) error { return checkMIGReadings(s, half, mainContainer(pods["half"])) })
	removePod(ctx, t, n, pods["big"])
	if err := errors.Join(checkMIGReadings(d.nextScrape(ctx, t), big, node.OwnerKey{}), checkSingleOwner(ctx, n, little, pods["little"])); err != nil {
		t.Error(err)
	}
	checkKubeletNotRestarted(t, n)
}

// checkMIGReadings says where a scrape is wrong about what is read of a slice, which is due to this holder.
func checkMIGReadings(s metricsScrape, of busyMIGDevice, h node.OwnerKey) error {
	with := ownerLabels(h)
	with["uuid"], with["mig_uuid"] = uuid(of.gpu), of.uuid()
	return errors.Join(s.wantValue(float64(of.usedBytes), "nvidia_gpu_memory_used_bytes", with), wantNear(s, float64(of.activePercent)/100, "nvidia_gpu_sm_active_ratio", with))
}

// wantNear is metricsScrape.wantValue for what is computed from two samples.
func wantNear(s metricsScrape, want float64, name string, with seriesLabels) error {
	got, err := s.value(name, with)
	if err == nil && math.Abs(got-want) > 1e-6 {
		err = fmt.Errorf("%s%v is %v, not %v", name, with, got, want)
	}
	return err
}

// checkNoOwnReadings says that a slice has readings of its own, which are another's too: sums would have them twice.
func checkNoOwnReadings(s metricsScrape, of busyMIGDevice) error {
	for _, family := range []string{"nvidia_gpu_memory_used_bytes", "nvidia_gpu_sm_active_ratio"} {
		if found := findSamples(s.series[family], seriesLabels{"mig_uuid": of.uuid()}); len(found) > 0 {
			return fmt.Errorf("%s of a slice that shares its instance: %v", family, found)
		}
	}
	return nil
}

// checkMIGProcess says where a scrape is wrong about the one process on a slice, of which the driver tells only the memory.
func checkMIGProcess(s metricsScrape, of busyMIGDevice, h node.OwnerKey) error {
	with := ownerLabels(h)
	with["mig_uuid"] = of.uuid()
	nobody := seriesLabels{"mig_uuid": of.uuid(), "pod": ""}
	wrong := []error{
		s.wantValue(768*mebibyte, containerPrefix+"memory_used_bytes", with), s.wantValue(1, containerPrefix+"processes", with),
		s.wantValue(256*mebibyte, unattributedPrefix+"memory_used_bytes", nobody), s.wantValue(0, unattributedPrefix+"processes", nobody),
	}
	if found := s.series[containerPrefix+"sm_utilization_ratio"]; len(found) > 0 {
		wrong = append(wrong, fmt.Errorf("of slices nobody tells %v", found))
	}
	return errors.Join(wrong...)
}

// checkSingleOwner says where the kubelet disagrees.
func checkSingleOwner(ctx context.Context, n *node.RealNode, of busyMIGDevice, pod node.StaticPod) error {
	holders, err := n.Owners(ctx, "nvidia.com/mig-"+of.profile)
	if err == nil && holders[of.uuid()] != mainContainer(pod) {
		err = fmt.Errorf("the kubelet says that %s is held by %v", of.uuid(), holders)
	}
	return err
}
