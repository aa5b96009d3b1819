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

// middle is a resource that there is only after GPU 1 was partitioned anew.
const middle = "nvidia.com/mig-2g.20gb"

// TestRepartition has slices come and go beside one that a pod holds.
func TestRepartition(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	n := node.ForTest(ctx, t, node.Options{})
	startKubelet(ctx, t, n)
	ageKubelet(t, n)
	before := partitioned(1, "1g.10gb", "1g.10gb", "3g.40gb")
	kept, spare, big := before[0], before[1], before[2]
	fresh := migSlice{gpu: 1, index: 4, profile: "2g.20gb", gi: 9}
	m := newMachine(t, n, append([]string{"gpus 2"}, lines(before)...)...)
	d := m.start(t, n, "--mig-strategy=mixed")
	offers(ctx, t, n, resources{gpu: uuids(1), small: uuidsOf(before, "1g.10gb"), large: {big.uuid()}})

	pod, kin := asks("holds", small, 1), asks("kin", small, 1)
	status, _ := run(ctx, t, n, pod)
	if held := gets(ctx, t, n, pod)[0]; held != kept.uuid() {
		kept, spare = spare, kept
	}
	holding := map[string]node.Holder{kept.uuid(): holder(pod)}
	truth := func(s scrape) error {
		return errors.Join(s.honest(holding), s.is(1, "nvidia_gpu_allocated", labels{"mig_uuid": kept.uuid()}),
			s.is(1, "nvidia_gpu_healthy", labels{"mig_uuid": kept.uuid()}))
	}
	d.scrapeUntil(ctx, t, "the holder is shown", truth)
	watch := watchScrapes(ctx, t, d, 200*time.Millisecond, truth)

	begin := time.Now()
	m.partition(t, []migSlice{spare, big}, fresh)
	offers(ctx, t, n, resources{gpu: uuids(1), small: {kept.uuid()}, middle: {fresh.uuid()}})
	figureOf(t, "from a GPU's new partition to the kubelet's resources, where the driver tells of it", time.Second, time.Since(begin))
	emptied(ctx, t, n, large)
	// What a listing does not have any more is unhealthy at once, and forgotten after ten seconds.
	figureOf(t, "from a GPU's new partition to the empty list of a resource that is gone", 15*time.Second, time.Since(begin))
	watch.stop(t)
	refused(ctx, t, n, asks("late", large, 1), "UnexpectedAdmissionError", large)
	refused(ctx, t, n, kin, "UnexpectedAdmissionError", small, "Available: 0")
	newcomer := asks("newcomer", middle, 1)
	run(ctx, t, n, newcomer)
	sees(ctx, t, n, newcomer, gets(ctx, t, n, newcomer)[0])
	holding[fresh.uuid()] = holder(newcomer)
	if err := errors.Join(runsOn(ctx, n, pod, status), truth(d.next(ctx, t))); err != nil {
		t.Error(err)
	}
	remove(ctx, t, n, newcomer)
	delete(holding, fresh.uuid())

	outrun(ctx, t, n, m, big, fresh)
	offers(ctx, t, n, resources{gpu: uuids(1), small: {kept.uuid()}, middle: {fresh.uuid()}})
	if err := errors.Join(runsOn(ctx, n, pod, status), truth(d.next(ctx, t))); err != nil {
		t.Error(err)
	}
	vanishes(ctx, t, n, m, pod, kept, fresh)
	oneKubelet(t, n)
}

// partition has slices of one GPU go and others come, and the driver tell of it.
func (m *machine) partition(t *testing.T, gone []migSlice, come ...migSlice) {
	t.Helper()
	gpu := -1
	for _, s := range gone {
		m.clear(t, fmt.Sprintf("gpu %d slice %d", s.gpu, s.index))
		gpu = s.gpu
	}
	for _, s := range come {
		m.set(t, s.line())
		gpu = s.gpu
	}
	m.event(t, gpu, "type 0x100")
}

// outrun has a pod ask for a slice in the moment in which it goes: a kubelet from 1.37 on ends where a device is gone when Allocate returns.
func outrun(ctx context.Context, t *testing.T, n *node.Node, m *machine, big, fresh migSlice) {
	t.Helper()
	const races = 4
	ran := 0
	for round := range races {
		m.partition(t, []migSlice{fresh}, big)
		await(ctx, t, "the slice is allocatable", func(ctx context.Context) error {
			ids, err := n.Allocatable(ctx, large)
			if !slices.Equal(ids, []string{big.uuid()}) {
				return fmt.Errorf("%q are: %w", ids, err)
			}
			return nil
		})
		pod := asks(fmt.Sprintf("race-%d", round), large, 1)
		if _, err := n.Put(pod); err != nil {
			t.Fatal(err)
		}
		await(ctx, t, "it is time", since(time.Now(), time.Duration(round)*20*time.Millisecond))
		m.partition(t, []migSlice{big}, fresh)
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
		if err := n.Delete(pod); err != nil {
			t.Fatal(err)
		}
		ended(ctx, t, n, pod)
		oneKubelet(t, n)
	}
	figure(t, "pods that asked for a slice in the moment in which it went", fmt.Sprintf("%d, of which %d ran", races, ran))
}

// vanishes takes a slice away from under its holder, whose status has to say so, and then ends the partition.
func vanishes(ctx context.Context, t *testing.T, n *node.Node, m *machine, pod node.Pod, kept, fresh migSlice) {
	t.Helper()
	m.partition(t, []migSlice{kept})
	await(ctx, t, "the pod's status says that its slice is not well", func(ctx context.Context) error {
		status, err := n.Pod(ctx, pod)
		if err != nil {
			return err
		}
		if got := status.Containers[0].Devices; !slices.Equal(got, []node.DeviceHealth{{Resource: small, ID: kept.uuid(), Health: "Unhealthy"}}) {
			return fmt.Errorf("it has %v", got)
		}
		return nil
	})
	offers(ctx, t, n, resources{gpu: uuids(1), middle: {fresh.uuid()}})
	remove(ctx, t, n, pod)
	m.clear(t, "gpu 1 mig_mode")
	m.partition(t, []migSlice{fresh})
	offers(ctx, t, n, resources{gpu: uuids(2)})
	for _, resource := range []string{small, middle, large} {
		emptied(ctx, t, n, resource)
	}
}
