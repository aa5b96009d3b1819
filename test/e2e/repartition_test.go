package e2e

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/podgauge/podgauge/test/e2e/node"
)

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
	expect(t, checkSameContainer(t.Context(), n, pod, status))

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
