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

// mediumMIGResource is a resource that there is only after GPU 1 was partitioned anew.
const mediumMIGResource = "nvidia.com/mig-2g.20gb"

// TestRepartition has slices come and go beside one that a pod holds.
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

	pod, kin := podWithResource("holds", smallMIGResource, 1), podWithResource("kin", smallMIGResource, 1)
	status, _ := runPod(ctx, t, n, pod)
	if held := waitForDevices(ctx, t, n, pod)[0]; held != kept.uuid() {
		kept, spare = spare, kept
	}
	holding := map[string]node.OwnerKey{kept.uuid(): mainContainer(pod)}
	truth := func(s metricsScrape) error {
		return errors.Join(s.checkNoWrongOwner(holding), s.wantValue(1, "nvidia_gpu_allocated", seriesLabels{"mig_uuid": kept.uuid()}),
			s.wantValue(1, "nvidia_gpu_healthy", seriesLabels{"mig_uuid": kept.uuid()}))
	}
	d.scrapeUntil(ctx, t, "the holder is shown", truth)
	watch := watchScrapes(ctx, t, d, 200*time.Millisecond, truth)

	begin := time.Now()
	m.repartition(t, []migDevice{spare, big}, fresh)
	waitForResources(ctx, t, n, idsByResource{gpuResource: uuids(1), smallMIGResource: {kept.uuid()}, mediumMIGResource: {fresh.uuid()}})
	measureDurations(t, "from a GPU's new partition to the kubelet's resources, where the driver tells of it", time.Second, time.Since(begin))
	waitForEmptyList(ctx, t, n, largeMIGResource)
	// What a listing does not have any more is unhealthy at once, and forgotten after ten seconds.
	measureDurations(t, "from a GPU's new partition to the empty list of a resource that is gone", 15*time.Second, time.Since(begin))
	watch.stop(t)
	runRejectedPod(ctx, t, n, podWithResource("late", largeMIGResource, 1), "UnexpectedAdmissionError", largeMIGResource)
	runRejectedPod(ctx, t, n, kin, "UnexpectedAdmissionError", smallMIGResource, "Available: 0")
	newcomer := podWithResource("newcomer", mediumMIGResource, 1)
	runPod(ctx, t, n, newcomer)
	checkVisibleDevices(ctx, t, n, newcomer, waitForDevices(ctx, t, n, newcomer)[0])
	holding[fresh.uuid()] = mainContainer(newcomer)
	if err := errors.Join(checkSameContainer(ctx, n, pod, status), truth(d.nextScrape(ctx, t))); err != nil {
		t.Error(err)
	}
	removePod(ctx, t, n, newcomer)
	delete(holding, fresh.uuid())

	raceAllocation(ctx, t, n, m, big, fresh)
	waitForResources(ctx, t, n, idsByResource{gpuResource: uuids(1), smallMIGResource: {kept.uuid()}, mediumMIGResource: {fresh.uuid()}})
	if err := errors.Join(checkSameContainer(ctx, n, pod, status), truth(d.nextScrape(ctx, t))); err != nil {
		t.Error(err)
	}
	removeAllocatedDevice(ctx, t, n, m, pod, kept, fresh)
	checkKubeletNotRestarted(t, n)
}

// repartition has slices of one GPU go and others come, and the driver tell of it.
func (m *simulatedMachine) repartition(t *testing.T, removed []migDevice, added ...migDevice) {
	t.Helper()
	gpu := -1
	for _, s := range removed {
		m.clear(t, fmt.Sprintf("gpu %d slice %d", s.gpu, s.index))
		gpu = s.gpu
	}
	for _, s := range added {
		m.setLines(t, s.scenarioLine())
		gpu = s.gpu
	}
	m.addEvent(t, gpu, "type 0x100")
}

// raceAllocation has a pod ask for a slice in the moment in which it goes: a kubelet from 1.37 on ends where a device is gone when Allocate returns.
func raceAllocation(ctx context.Context, t *testing.T, n *node.RealNode, m *simulatedMachine, big, fresh migDevice) {
	t.Helper()
	const races = 4
	ran := 0
	for round := range races {
		m.repartition(t, []migDevice{fresh}, big)
		await(ctx, t, "the slice is allocatable", func(ctx context.Context) error {
			ids, err := n.Allocatable(ctx, largeMIGResource)
			if !slices.Equal(ids, []string{big.uuid()}) {
				return fmt.Errorf("%q are: %w", ids, err)
			}
			return nil
		})
		pod := podWithResource(fmt.Sprintf("race-%d", round), largeMIGResource, 1)
		if _, err := n.CreatePod(pod); err != nil {
			t.Fatal(err)
		}
		await(ctx, t, "it is time", waitSince(time.Now(), time.Duration(round)*20*time.Millisecond))
		m.repartition(t, []migDevice{big}, fresh)
		await(ctx, t, "the pod runs, or has been refused", func(ctx context.Context) error {
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
			return fmt.Errorf("it is %+v", status)
		})
		if err := n.DeletePod(pod); err != nil {
			t.Fatal(err)
		}
		waitForPodEnd(ctx, t, n, pod)
		checkKubeletNotRestarted(t, n)
	}
	printMeasurement(t, "pods that asked for a slice in the moment in which it went", fmt.Sprintf("%d, of which %d ran", races, ran))
}

// removeAllocatedDevice takes a slice away from under its holder, whose status has to say so, and then ends the partition.
func removeAllocatedDevice(ctx context.Context, t *testing.T, n *node.RealNode, m *simulatedMachine, pod node.StaticPod, kept, fresh migDevice) {
	t.Helper()
	m.repartition(t, []migDevice{kept})
	await(ctx, t, "the pod's status says that its slice is not well", func(ctx context.Context) error {
		status, err := n.Pod(ctx, pod)
		if err != nil {
			return err
		}
		if got := status.Containers[0].Devices; !slices.Equal(got, []node.DeviceHealth{{Resource: smallMIGResource, ID: kept.uuid(), Health: "Unhealthy"}}) {
			return fmt.Errorf("it has %v", got)
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
