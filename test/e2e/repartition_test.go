package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/podgauge/podgauge/test/e2e/node"
)

// mediumMIGResource is a resource that exists only after GPU 1 was repartitioned.
const mediumMIGResource = "nvidia.com/mig-2g.20gb"

// TestRepartition adds and removes MIG devices beside an allocated MIG device.
func TestRepartition(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	n := node.ForTest(ctx, t, node.Options{})
	startKubelet(ctx, t, n)
	backdateKubelet(t, n)
	before := newMIGDevices(1, "1g.10gb", "1g.10gb", "3g.40gb")
	kept, spare, big := before[0], before[1], before[2]
	fresh := migDevice{gpu: 1, index: 4, profile: "2g.20gb", gi: 9}
	m := newMachine(t, n, append([]string{"gpus 2"}, scenarioLines(before)...)...)
	d := m.start(t, n, "--mig-strategy=mixed")
	waitForResources(ctx, t, n, idsByResource{gpuResource: uuids(1), smallMIGResource: migUUIDs(before, "1g.10gb"), largeMIGResource: {big.uuid()}})

	pod, sameProfile := podWithResource("owner", smallMIGResource, 1), podWithResource("same-profile", smallMIGResource, 1)
	status, _ := runPod(ctx, t, n, pod)
	if id := waitForDevices(ctx, t, n, pod)[0]; id != kept.uuid() {
		kept, spare = spare, kept
	}
	owners := map[string]node.OwnerKey{kept.uuid(): mainContainer(pod)}
	check := func(s metricsScrape) error {
		return errors.Join(s.checkNoWrongOwner(owners), s.wantValue(1, "nvidia_gpu_allocated", seriesLabels{"mig_uuid": kept.uuid()}),
			s.wantValue(1, "nvidia_gpu_healthy", seriesLabels{"mig_uuid": kept.uuid()}))
	}
	d.scrapeUntil(ctx, t, "the owner is exported", check)
	watch := watchScrapes(ctx, t, d, 200*time.Millisecond, check)

	begin := time.Now()
	m.repartition(t, []migDevice{spare, big}, fresh)
	waitForResources(ctx, t, n, idsByResource{gpuResource: uuids(1), smallMIGResource: {kept.uuid()}, mediumMIGResource: {fresh.uuid()}})
	measureDurations(t, "new MIG layout, with an event of the driver → the kubelet's resources", time.Second, time.Since(begin))
	waitForEmptyList(ctx, t, n, largeMIGResource)
	// A device that is missing in a listing is unhealthy at once, and removed after ten seconds.
	measureDurations(t, "new MIG layout → empty device list of a removed resource", 15*time.Second, time.Since(begin))
	watch.stop(t)
	runRejectedPod(ctx, t, n, podWithResource("late", largeMIGResource, 1), "UnexpectedAdmissionError", largeMIGResource)
	runRejectedPod(ctx, t, n, sameProfile, "UnexpectedAdmissionError", smallMIGResource, "Available: 0")
	newPod := podWithResource("new", mediumMIGResource, 1)
	runPod(ctx, t, n, newPod)
	checkVisibleDevices(ctx, t, n, newPod, waitForDevices(ctx, t, n, newPod)[0])
	owners[fresh.uuid()] = mainContainer(newPod)
	if err := errors.Join(checkSameContainer(ctx, n, pod, status), check(d.nextScrape(ctx, t))); err != nil {
		t.Error(err)
	}
	removePod(ctx, t, n, newPod)
	delete(owners, fresh.uuid())

	raceAllocation(ctx, t, n, m, big, fresh)
	waitForResources(ctx, t, n, idsByResource{gpuResource: uuids(1), smallMIGResource: {kept.uuid()}, mediumMIGResource: {fresh.uuid()}})
	if err := errors.Join(checkSameContainer(ctx, n, pod, status), check(d.nextScrape(ctx, t))); err != nil {
		t.Error(err)
	}
	removeAllocatedDevice(ctx, t, n, m, pod, kept, fresh)
	checkKubeletNotRestarted(t, n)
}

// repartition removes and adds MIG devices of a GPU, and reports the driver's event.
func (m *simulatedMachine) repartition(t *testing.T, removed []migDevice, added ...migDevice) {
	t.Helper()
	gpu := -1
	for _, device := range removed {
		m.clear(t, fmt.Sprintf("gpu %d slice %d", device.gpu, device.index))
		gpu = device.gpu
	}
	for _, device := range added {
		m.setLines(t, device.scenarioLine())
		gpu = device.gpu
	}
	m.addEvent(t, gpu, "type 0x100")
}

// raceAllocation removes a MIG device while a pod requests it: kubelets from v1.37 on exit if a device is gone when Allocate returns.
func raceAllocation(ctx context.Context, t *testing.T, n *node.RealNode, m *simulatedMachine, big, fresh migDevice) {
	t.Helper()
	const races = 4
	ran := 0
	for round := range races {
		m.repartition(t, []migDevice{fresh}, big)
		await(ctx, t, "the MIG device is allocatable", func(ctx context.Context) error {
			ids, err := n.Allocatable(ctx, largeMIGResource)
			if !slices.Equal(ids, []string{big.uuid()}) {
				return fmt.Errorf("allocatable MIG devices: got %q, %w", ids, err)
			}
			return nil
		})
		pod := podWithResource(fmt.Sprintf("race-%d", round), largeMIGResource, 1)
		if _, err := n.CreatePod(pod); err != nil {
			t.Fatal(err)
		}
		await(ctx, t, "the delay of this round is over", waitSince(time.Now(), time.Duration(round)*20*time.Millisecond))
		m.repartition(t, []migDevice{big}, fresh)
		await(ctx, t, "the pod runs or is rejected", func(ctx context.Context) error {
			status, err := n.Pod(ctx, pod)
			switch {
			case err != nil:
				return err
			case status.Phase == "Failed":
				return nil
			case len(status.Containers) == 1 && status.Containers[0].State == "running":
				ran++
				return nil
			}
			return fmt.Errorf("pod status: got %+v", status)
		})
		if err := n.DeletePod(pod); err != nil {
			t.Fatal(err)
		}
		waitForPodEnd(ctx, t, n, pod)
		checkKubeletNotRestarted(t, n)
	}
	printMeasurement(t, "pods that requested a MIG device during its removal", fmt.Sprintf("%d, of which %d ran", races, ran))
}

// removeAllocatedDevice removes an allocated MIG device, which must be Unhealthy in the pod's status, and then turns MIG mode off.
func removeAllocatedDevice(ctx context.Context, t *testing.T, n *node.RealNode, m *simulatedMachine, pod node.StaticPod, kept, fresh migDevice) {
	t.Helper()
	m.repartition(t, []migDevice{kept})
	await(ctx, t, "the MIG device is Unhealthy in the pod's status", func(ctx context.Context) error {
		status, err := n.Pod(ctx, pod)
		if err != nil {
			return err
		}
		want := []node.DeviceHealth{{Resource: smallMIGResource, ID: kept.uuid(), Health: "Unhealthy"}}
		if got := status.Containers[0].Devices; !slices.Equal(got, want) {
			return fmt.Errorf("devices of the pod: got %v, want %v", got, want)
		}
		return nil
	})
	waitForResources(ctx, t, n, idsByResource{gpuResource: uuids(1), mediumMIGResource: {fresh.uuid()}})
	removePod(ctx, t, n, pod)
	m.clear(t, "gpu 1 mig_mode")
	m.repartition(t, []migDevice{fresh})
	waitForResources(ctx, t, n, idsByResource{gpuResource: uuids(2)})
	for _, resource := range []string{smallMIGResource, mediumMIGResource, largeMIGResource} {
		waitForEmptyList(ctx, t, n, resource)
	}
}
