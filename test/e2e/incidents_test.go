package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/podgauge/podgauge/test/e2e/node"
)

// TestIncidents has errors come to devices that pods hold: podgauge says to whom they came, also when the pod is gone and podgauge another.
func TestIncidents(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	n := node.ForTest(ctx, t, node.Options{})
	startKubelet(ctx, t, n)
	ageKubelet(t, n)
	parts := partitioned(7, "1g.10gb", "1g.10gb")
	m := newMachine(t, n, lines(parts)...)
	d := m.start(t, n, "--mig-strategy=mixed")
	offers(ctx, t, n, whole(parts))
	t.Run("application", func(t *testing.T) { applicationErrs(ctx, t, n, m, d, parts) })
	t.Run("slice", func(t *testing.T) { sliceErrs(ctx, t, n, m, d, parts) })
	t.Run("crash", func(t *testing.T) { podDies(ctx, t, n, m, d) })
}

// whole is what there is of a machine whose last GPU has these slices.
func whole(parts []migSlice) resources {
	return resources{gpu: uuids(gpus - 1), small: uuidsOf(parts, "1g.10gb")}
}

// applicationErrs has a program err. That is counted and told, and takes nobody's GPU.
func applicationErrs(ctx context.Context, t *testing.T, n *node.Node, m *machine, d *daemon, parts []migSlice) {
	pod := holds("errs", 1)
	before, _ := run(ctx, t, n, pod)
	held := one(ctx, t, n, pod)
	knows(ctx, t, d, held, holder(pod))
	lists := listsArrived(t, n)

	begin := time.Now()
	m.event(t, index(t, held), "xid 31")
	i := d.happened(ctx, t, held, "xid_31", func(i incident) error { return i.hitAlone(holder(pod)) })
	figureOf(t, "an Xid is told with the pod that it hit, after", time.Second, time.Since(begin))
	if i.Count != 1 || i.Xid != 31 || i.Class != "application" || i.Condemned || !i.Healed.IsZero() || i.First.Before(begin) {
		t.Errorf("of an application's error is told %+v", i)
	}
	s := d.scrapeUntil(ctx, t, "the counts are stored, and shown", func(s scrape) error {
		return errors.Join(
			s.is(1, "nvidia_gpu_xid_errors_total", labels{"uuid": held, "xid": "31"}),
			s.is(1, "nvidia_gpu_incidents_total", labels{"uuid": held, "reason": "xid_31", "pod": ""}),
			s.is(1, failures, hitBy("xid_31", held, "", holder(pod))),
		)
	})
	err := errors.Join(
		s.is(1, "nvidia_gpu_healthy", labels{"uuid": held}),
		s.is(1, "nvidia_gpu_health_state", labels{"uuid": held, "state": "well"}),
		s.is(0, "nvidia_gpu_health_flaps_total", labels{"uuid": held}),
		s.honest(map[string]node.Holder{held: holder(pod)}),
		hasResources(n, whole(parts))(ctx), runsOn(ctx, n, pod, before),
	)
	if err != nil {
		t.Error(err)
	}
	if now := listsArrived(t, n); len(now) != len(lists) {
		t.Errorf("the kubelet was sent %d lists more", len(now)-len(lists))
	}
	shownInTerminal(ctx, t, n, held, holder(pod))
	remove(ctx, t, n, pod)
}

// knows waits until podgauge knows who holds a device.
func knows(ctx context.Context, t *testing.T, d *daemon, id string, h node.Holder) {
	t.Helper()
	await(ctx, t, "podgauge knows who holds "+id, func(ctx context.Context) error {
		s, err := d.standing(ctx, id)
		if err != nil {
			return err
		}
		if len(s.Holders) != 1 || node.Holder(s.Holders[0]) != h {
			return fmt.Errorf("it says %+v", s)
		}
		return nil
	})
}

// hitBy are the labels of a container that was hit.
func hitBy(reason, gpu, slice string, h node.Holder) labels {
	of := labelsOf(h)
	of["uuid"], of["mig_uuid"], of["reason"] = gpu, slice, reason
	return of
}

// shownInTerminal looks for a pod in podgauge's tables: as the holder of a device, and as one that was hit.
func shownInTerminal(ctx context.Context, t *testing.T, n *node.Node, id string, h node.Holder) {
	t.Helper()
	for _, words := range [][]string{{"status"}, {"incidents"}, {"incidents", "--pod=" + h.Pod, "--device=" + id}} {
		table := says(ctx, t, n, words...)
		if rows := linesWith(table, inTables(h), id); len(rows) != 1 {
			t.Errorf("podgauge %s has %d rows of %+v and %s:\n%s", words, len(rows), h, id, table)
		}
	}
	if table := says(ctx, t, n, "incidents", "--pod=nobody"); strings.Contains(table, h.Pod) {
		t.Errorf("of another pod it shows\n%s", table)
	}
}

// inTables is how a table writes a container.
func inTables(h node.Holder) string { return h.Namespace + "/" + h.Pod + "/" + h.Container }

// sliceErrs has memory fail under one of two slices of a GPU. The driver has contained that: it is the matter of the pod that holds it.
func sliceErrs(ctx context.Context, t *testing.T, n *node.Node, m *machine, d *daemon, parts []migSlice) {
	pods := map[string]node.Pod{} // by what they hold
	before := map[string]node.PodStatus{}
	for _, name := range []string{"left", "right"} {
		pod := asks(name, small, 1)
		status, _ := run(ctx, t, n, pod)
		id := gets(ctx, t, n, pod)[0]
		pods[id], before[id] = pod, status
		knows(ctx, t, d, id, holder(pod))
	}
	lists := listsArrived(t, n)
	bad, neighbour := parts[0], parts[1]
	m.event(t, bad.gpu, fmt.Sprintf("xid 94 gi %d ci %d", bad.gi, bad.ci))
	i := d.happened(ctx, t, bad.uuid(), "xid_94", func(i incident) error { return i.hitAlone(holder(pods[bad.uuid()])) })
	if i.Condemned || i.GPU != uuid(bad.gpu) || i.Class != "contained" || i.Action != "restart_app" {
		t.Errorf("of a contained error is told %+v", i)
	}
	s := d.scrapeUntil(ctx, t, "the counts are stored, and shown", func(s scrape) error {
		return errors.Join(
			s.is(1, failures, hitBy("xid_94", uuid(bad.gpu), bad.uuid(), holder(pods[bad.uuid()]))),
			s.is(1, "nvidia_gpu_incidents_total", labels{"mig_uuid": bad.uuid(), "reason": "xid_94"}),
		)
	})
	wrong := []error{
		hasResources(n, whole(parts))(ctx),
	}
	for _, part := range parts {
		wrong = append(wrong, s.is(1, "nvidia_gpu_healthy", labels{"mig_uuid": part.uuid()}), runsOn(ctx, n, pods[part.uuid()], before[part.uuid()]))
	}
	if all, err := d.incidents(ctx, "device", neighbour.uuid()); err != nil || len(all) > 0 {
		wrong = append(wrong, fmt.Errorf("of the other slice is told %+v, %w", all, err))
	}
	if all, err := d.incidents(ctx, "pod", pods[neighbour.uuid()].FullName()); err != nil || len(all) > 0 {
		wrong = append(wrong, fmt.Errorf("of the other slice's pod is told %+v, %w", all, err))
	}
	for _, family := range []string{failures, "nvidia_gpu_incidents_total"} {
		if found := find(s.series[family], labels{"mig_uuid": neighbour.uuid()}); len(found) > 0 {
			wrong = append(wrong, fmt.Errorf("%s of the other slice is %v", family, found))
		}
	}
	if err := errors.Join(wrong...); err != nil {
		t.Error(err)
	}
	if now := listsArrived(t, n); len(now) != len(lists) {
		t.Errorf("the kubelet was sent %d lists more", len(now)-len(lists))
	}
	for _, pod := range pods {
		remove(ctx, t, n, pod)
	}
}

// killed is the exit code of a container that was.
const killed = 137

// podDies has pods die with their GPUs and be deleted in the same moment: of one the error comes before its end, and the GPU falls off the bus; of
// the other when podgauge has heard that nobody holds the GPU. Both are named, by this podgauge and by those that follow one that was killed.
func podDies(ctx context.Context, t *testing.T, n *node.Node, m *machine, d *daemon) {
	var gone []time.Duration
	told := map[bool]incident{} // of the GPU that is lost, and of the one that is not
	for _, lost := range []bool{true, false} {
		pod := holds(fmt.Sprintf("lost-%t", lost), 1)
		pod.RestartPolicy = "Never"
		status, _ := run(ctx, t, n, pod)
		held := one(ctx, t, n, pod)
		knows(ctx, t, d, held, holder(pod))
		pid, err := n.ContainerPID(ctx, pod, "main")
		if err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		if lost {
			m.event(t, index(t, held), "xid 79")
			m.set(t, fmt.Sprintf("gpu %d lost", index(t, held)))
		}
		if err := errors.Join(syscall.Kill(pid, syscall.SIGKILL), n.Delete(pod)); err != nil {
			t.Fatal(err)
		}
		ended(ctx, t, n, pod)
		gone = append(gone, time.Since(begin))
		d.next(ctx, t) // which asks the kubelet
		if !lost {
			m.event(t, index(t, held), "xid 79")
		}
		begin = time.Now()
		i := d.happened(ctx, t, held, "xid_79", func(i incident) error { return diedBy(n, i, pod, status) })
		figureOf(t, "all that can be known of a pod's end is told after", 5*time.Second, time.Since(begin))
		if !i.Condemned || i.Action != "reboot" || i.Count != 1 {
			t.Errorf("of a GPU that fell off the bus is told %+v", i)
		}
		told[lost] = i
	}
	figureOf(t, "a pod that died with its GPU and was deleted was gone after", time.Second, gone...)

	await(ctx, t, "what is known is on disk", since(time.Now(), time.Second)) // it is written within a tenth of that
	for _, signal := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM} {
		if _, err := d.Stop(ctx, signal); err != nil {
			t.Fatal(err)
		}
		d = m.start(t, n, "--mig-strategy=mixed")
		s := judged(ctx, t, d, told[false].Device)
		if err := s.is(0, "nvidia_gpu_healthy", labels{"uuid": told[false].Device}); err != nil {
			t.Errorf("the first scrape that tells after a restart by %s: %v", signal, err)
		}
		for _, i := range told {
			stillNamed(ctx, t, n, d, i)
		}
	}
}

// stillNamed has a podgauge that was not there tell of an incident, in every way.
func stillNamed(ctx context.Context, t *testing.T, n *node.Node, d *daemon, i incident) {
	t.Helper()
	h := i.Holders[0].holder()
	d.scrapeUntil(ctx, t, "it is shown what hit whom", func(s scrape) error {
		return errors.Join(s.is(1, "nvidia_gpu_incidents_total", labels{"uuid": i.Device, "reason": "xid_79"}), s.is(1, failures, hitBy("xid_79", i.Device, "", h)))
	})
	if err := d.remembers(ctx, i); err != nil {
		t.Error(err)
	}
	if table := says(ctx, t, n, "incidents"); len(linesWith(table, inTables(h), i.Device, "xid_79")) != 1 {
		t.Errorf("of %+v podgauge shows\n%s", i, table)
	}
}

// diedBy says where an incident does not tell all of how its pod ended that can be known. That is the kubelet's Pods API's to tell.
func diedBy(n *node.Node, i incident, pod node.Pod, status node.PodStatus) error {
	if err := i.hitAlone(holder(pod)); err != nil {
		return err
	}
	h := i.Holders[0]
	switch tells := n.KubeletVersion >= "v1.37"; {
	case h.Until.IsZero():
		return fmt.Errorf("it has the GPU still: %+v", h)
	case !tells && (h.Ended != nil || h.UID != ""):
		return node.GiveUp(fmt.Errorf("nobody can have told %+v", h))
	case tells && (h.UID != status.UID || h.Ended == nil || h.Ended.ExitCode == nil || *h.Ended.ExitCode != killed || h.Ended.Phase != "Failed"):
		return fmt.Errorf("its end is %+v of %+v", h.Ended, h)
	}
	return nil
}

// listsArrived are the times at which the kubelet wrote into its log that a list of GPUs had come.
func listsArrived(t *testing.T, n *node.Node) []time.Time {
	t.Helper()
	times, err := arrivals(n)
	if err != nil {
		t.Fatal(err)
	}
	return times
}

// TestHoldersAreForgotten has a pod's time with a GPU be over for longer than holders are told of: what happened in it is told still.
func TestHoldersAreForgotten(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	n := node.ForTest(ctx, t, node.Options{})
	startKubelet(ctx, t, n)
	ageKubelet(t, n)
	m := newMachine(t, n)
	const kept = 5 * time.Second
	d := m.start(t, n, "--holders.max-age="+kept.String())
	allocatable(ctx, t, n, uuids(gpus)...)
	pod := holds("brief", 1)
	run(ctx, t, n, pod)
	held := one(ctx, t, n, pod)
	knows(ctx, t, d, held, holder(pod))
	m.event(t, index(t, held), "xid 31")
	d.happened(ctx, t, held, "xid_31", func(i incident) error { return i.hitAlone(holder(pod)) })
	remove(ctx, t, n, pod)
	begin := time.Now()
	seen := func(s scrape) int {
		return len(find(s.series["nvidia_gpu_allocation_last_seen_timestamp_seconds"], labelsOf(holder(pod))))
	}
	d.scrapeUntil(ctx, t, "the pod's end is known, and the pod is", func(s scrape) error {
		if held := find(s.series["nvidia_gpu_allocation_info"], labelsOf(holder(pod))); len(held) > 0 || seen(s) != 1 {
			return fmt.Errorf("it holds %v, and was seen %d times", held, seen(s))
		}
		return nil
	})
	s := d.scrapeUntil(ctx, t, "the pod is forgotten", func(s scrape) error {
		if seen(s) > 0 {
			return errors.New("it is not")
		}
		return nil
	})
	took := time.Since(begin)
	figureOf(t, "holders are told of for 5 s: one is forgotten after", 10*time.Second, took)
	if took < kept-time.Second { // it may have been asked about a second before its end
		t.Errorf("that was %s after its end", took)
	}
	if err := s.is(1, failures, hitBy("xid_31", held, "", holder(pod))); err != nil {
		t.Error(err)
	}
	d.happened(ctx, t, held, "xid_31", func(i incident) error { return i.hitAlone(holder(pod)) })
}
