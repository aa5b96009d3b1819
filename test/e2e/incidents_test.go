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
	backdateKubelet(t, n)
	parts := newMIGDevices(7, "1g.10gb", "1g.10gb")
	m := newMachine(t, n, scenarioLines(parts)...)
	d := m.start(t, n, "--mig-strategy=mixed")
	waitForResources(ctx, t, n, machineResources(parts))
	t.Run("application", func(t *testing.T) { applicationError(ctx, t, n, m, d, parts) })
	t.Run("slice", func(t *testing.T) { migMemoryError(ctx, t, n, m, d, parts) })
	t.Run("crash", func(t *testing.T) { podKilledByFault(ctx, t, n, m, d) })
}

// machineResources is what there is of a machine whose last GPU has these slices.
func machineResources(parts []migDevice) idsByResource {
	return idsByResource{gpuResource: uuids(defaultGPUs - 1), smallMIGResource: migUUIDs(parts, "1g.10gb")}
}

// applicationError has a program err. That is counted and told, and takes nobody's GPU.
func applicationError(ctx context.Context, t *testing.T, n *node.RealNode, m *simulatedMachine, d *podgaugeProcess, parts []migDevice) {
	pod := podWithGPUs("errs", 1)
	before, _ := runPod(ctx, t, n, pod)
	held := allocatedGPU(ctx, t, n, pod)
	waitForOwner(ctx, t, d, held, mainContainer(pod))
	lists := gpuListTimes(t, n)

	begin := time.Now()
	m.addEvent(t, indexOf(t, held), "xid 31")
	i := d.waitForIncident(ctx, t, held, "xid_31", func(i apiIncident) error { return i.affectsOnly(mainContainer(pod)) })
	measureDurations(t, "an Xid is told with the pod that it hit, after", time.Second, time.Since(begin))
	if i.Count != 1 || i.Xid != 31 || i.Class != "application" || i.MarkedUnhealthy || !i.RecoveredAt.IsZero() || i.First.Before(begin) {
		t.Errorf("of an application's error is told %+v", i)
	}
	s := d.scrapeUntil(ctx, t, "the counts are stored, and shown", func(s metricsScrape) error {
		return errors.Join(
			s.wantValue(1, "nvidia_gpu_xid_errors_total", seriesLabels{"uuid": held, "xid": "31"}),
			s.wantValue(1, "nvidia_gpu_incidents_total", seriesLabels{"uuid": held, "reason": "xid_31", "pod": ""}),
			s.wantValue(1, familyDeviceFailures, affectedLabels("xid_31", held, "", mainContainer(pod))),
		)
	})
	err := errors.Join(
		s.wantValue(1, "nvidia_gpu_healthy", seriesLabels{"uuid": held}),
		s.wantValue(1, "nvidia_gpu_health_state", seriesLabels{"uuid": held, "state": "healthy"}),
		s.wantValue(0, "nvidia_gpu_health_flaps_total", seriesLabels{"uuid": held}),
		s.checkNoWrongOwner(map[string]node.OwnerKey{held: mainContainer(pod)}),
		hasResources(n, machineResources(parts))(ctx), checkSameContainer(ctx, n, pod, before),
	)
	if err != nil {
		t.Error(err)
	}
	if now := gpuListTimes(t, n); len(now) != len(lists) {
		t.Errorf("the kubelet was sent %d lists more", len(now)-len(lists))
	}
	checkTables(ctx, t, n, held, mainContainer(pod))
	removePod(ctx, t, n, pod)
}

// waitForOwner waits until podgauge knows who holds a device.
func waitForOwner(ctx context.Context, t *testing.T, d *podgaugeProcess, id string, h node.OwnerKey) {
	t.Helper()
	await(ctx, t, "podgauge knows who holds "+id, func(ctx context.Context) error {
		s, err := d.device(ctx, id)
		if err != nil {
			return err
		}
		if len(s.Containers) != 1 || node.OwnerKey(s.Containers[0]) != h {
			return fmt.Errorf("it says %+v", s)
		}
		return nil
	})
}

// affectedLabels are the labels of a container that was hit.
func affectedLabels(reason, gpu, slice string, h node.OwnerKey) seriesLabels {
	of := ownerLabels(h)
	of["uuid"], of["mig_uuid"], of["reason"] = gpu, slice, reason
	return of
}

// checkTables looks for a pod in podgauge's tables: as the holder of a device, and as one that was hit.
func checkTables(ctx context.Context, t *testing.T, n *node.RealNode, id string, h node.OwnerKey) {
	t.Helper()
	for _, words := range [][]string{{"status"}, {"incidents"}, {"incidents", "--pod=" + h.Pod, "--device=" + id}} {
		table := podgaugeOutput(ctx, t, n, words...)
		if rows := linesWith(table, tableName(h), id); len(rows) != 1 {
			t.Errorf("podgauge %s has %d rows of %+v and %s:\n%s", words, len(rows), h, id, table)
		}
	}
	if table := podgaugeOutput(ctx, t, n, "incidents", "--pod=nobody"); strings.Contains(table, h.Pod) {
		t.Errorf("of another pod it shows\n%s", table)
	}
}

// tableName is how a table writes a container.
func tableName(h node.OwnerKey) string { return h.Namespace + "/" + h.Pod + "/" + h.Container }

// migMemoryError has memory fail under one of two slices of a GPU. The driver has contained that: it is the matter of the pod that holds it.
func migMemoryError(ctx context.Context, t *testing.T, n *node.RealNode, m *simulatedMachine, d *podgaugeProcess, parts []migDevice) {
	pods := map[string]node.StaticPod{} // by what they hold
	before := map[string]node.StaticPodStatus{}
	for _, name := range []string{"left", "right"} {
		pod := podWithResource(name, smallMIGResource, 1)
		status, _ := runPod(ctx, t, n, pod)
		id := waitForDevices(ctx, t, n, pod)[0]
		pods[id], before[id] = pod, status
		waitForOwner(ctx, t, d, id, mainContainer(pod))
	}
	lists := gpuListTimes(t, n)
	bad, neighbour := parts[0], parts[1]
	m.addEvent(t, bad.gpu, fmt.Sprintf("xid 94 gi %d ci %d", bad.gi, bad.ci))
	i := d.waitForIncident(ctx, t, bad.uuid(), "xid_94", func(i apiIncident) error { return i.affectsOnly(mainContainer(pods[bad.uuid()])) })
	if i.MarkedUnhealthy || i.GPU != uuid(bad.gpu) || i.Class != "contained" || i.Action != "restart_app" {
		t.Errorf("of a contained error is told %+v", i)
	}
	s := d.scrapeUntil(ctx, t, "the counts are stored, and shown", func(s metricsScrape) error {
		return errors.Join(
			s.wantValue(1, familyDeviceFailures, affectedLabels("xid_94", uuid(bad.gpu), bad.uuid(), mainContainer(pods[bad.uuid()]))),
			s.wantValue(1, "nvidia_gpu_incidents_total", seriesLabels{"mig_uuid": bad.uuid(), "reason": "xid_94"}),
		)
	})
	wrong := []error{
		hasResources(n, machineResources(parts))(ctx),
	}
	for _, part := range parts {
		wrong = append(wrong, s.wantValue(1, "nvidia_gpu_healthy", seriesLabels{"mig_uuid": part.uuid()}), checkSameContainer(ctx, n, pods[part.uuid()], before[part.uuid()]))
	}
	if all, err := d.incidents(ctx, "device", neighbour.uuid()); err != nil || len(all) > 0 {
		wrong = append(wrong, fmt.Errorf("of the other slice is told %+v, %w", all, err))
	}
	if all, err := d.incidents(ctx, "pod", pods[neighbour.uuid()].FullName()); err != nil || len(all) > 0 {
		wrong = append(wrong, fmt.Errorf("of the other slice's pod is told %+v, %w", all, err))
	}
	for _, family := range []string{familyDeviceFailures, "nvidia_gpu_incidents_total"} {
		if found := findSamples(s.series[family], seriesLabels{"mig_uuid": neighbour.uuid()}); len(found) > 0 {
			wrong = append(wrong, fmt.Errorf("%s of the other slice is %v", family, found))
		}
	}
	if err := errors.Join(wrong...); err != nil {
		t.Error(err)
	}
	if now := gpuListTimes(t, n); len(now) != len(lists) {
		t.Errorf("the kubelet was sent %d lists more", len(now)-len(lists))
	}
	for _, pod := range pods {
		removePod(ctx, t, n, pod)
	}
}

// exitCodeKilled is the exit code of a container that was.
const exitCodeKilled = 137

// podKilledByFault has pods die with their GPUs and be deleted in the same moment: of one the error comes before its end, and the GPU falls off the bus; of
// the other when podgauge has heard that nobody holds the GPU. Both are named, by this podgauge and by those that follow one that was killed.
func podKilledByFault(ctx context.Context, t *testing.T, n *node.RealNode, m *simulatedMachine, d *podgaugeProcess) {
	var gone []time.Duration
	told := map[bool]apiIncident{} // of the GPU that is lost, and of the one that is not
	for _, lost := range []bool{true, false} {
		pod := podWithGPUs(fmt.Sprintf("lost-%t", lost), 1)
		pod.RestartPolicy = "Never"
		status, _ := runPod(ctx, t, n, pod)
		held := allocatedGPU(ctx, t, n, pod)
		waitForOwner(ctx, t, d, held, mainContainer(pod))
		pid, err := n.ContainerPID(ctx, pod, "main")
		if err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		if lost {
			m.addEvent(t, indexOf(t, held), "xid 79")
			m.setLines(t, fmt.Sprintf("gpu %d lost", indexOf(t, held)))
		}
		if err := errors.Join(syscall.Kill(pid, syscall.SIGKILL), n.DeletePod(pod)); err != nil {
			t.Fatal(err)
		}
		waitForPodEnd(ctx, t, n, pod)
		gone = append(gone, time.Since(begin))
		d.nextScrape(ctx, t) // which asks the kubelet
		if !lost {
			m.addEvent(t, indexOf(t, held), "xid 79")
		}
		begin = time.Now()
		i := d.waitForIncident(ctx, t, held, "xid_79", func(i apiIncident) error { return checkTermination(n, i, pod, status) })
		measureDurations(t, "all that can be known of a pod's end is told after", 5*time.Second, time.Since(begin))
		if !i.MarkedUnhealthy || i.Action != "reboot" || i.Count != 1 {
			t.Errorf("of a GPU that fell off the bus is told %+v", i)
		}
		told[lost] = i
	}
	measureDurations(t, "a pod that died with its GPU and was deleted was gone after", time.Second, gone...)

	await(ctx, t, "what is known is on disk", waitSince(time.Now(), time.Second)) // it is written within a tenth of that
	for _, signal := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM} {
		if _, err := d.Stop(ctx, signal); err != nil {
			t.Fatal(err)
		}
		d = m.start(t, n, "--mig-strategy=mixed")
		s := firstHealthScrape(ctx, t, d, told[false].Device)
		if err := s.wantValue(0, "nvidia_gpu_healthy", seriesLabels{"uuid": told[false].Device}); err != nil {
			t.Errorf("the first scrape that tells after a restart by %s: %v", signal, err)
		}
		for _, i := range told {
			checkIncidentAfterRestart(ctx, t, n, d, i)
		}
	}
}

// checkIncidentAfterRestart has a podgauge that was not there tell of an incident, in every way.
func checkIncidentAfterRestart(ctx context.Context, t *testing.T, n *node.RealNode, d *podgaugeProcess, i apiIncident) {
	t.Helper()
	h := i.Containers[0].owner()
	d.scrapeUntil(ctx, t, "it is shown what hit whom", func(s metricsScrape) error {
		return errors.Join(s.wantValue(1, "nvidia_gpu_incidents_total", seriesLabels{"uuid": i.Device, "reason": "xid_79"}), s.wantValue(1, familyDeviceFailures, affectedLabels("xid_79", i.Device, "", h)))
	})
	if err := d.hasIncident(ctx, i); err != nil {
		t.Error(err)
	}
	if table := podgaugeOutput(ctx, t, n, "incidents"); len(linesWith(table, tableName(h), i.Device, "xid_79")) != 1 {
		t.Errorf("of %+v podgauge shows\n%s", i, table)
	}
}

// checkTermination says where an incident does not tell all of how its pod ended that can be known. That is the kubelet's Pods API's to tell.
func checkTermination(n *node.RealNode, i apiIncident, pod node.StaticPod, status node.StaticPodStatus) error {
	if err := i.affectsOnly(mainContainer(pod)); err != nil {
		return err
	}
	h := i.Containers[0]
	switch tells := n.KubeletVersion >= "v1.37"; {
	case h.Until.IsZero():
		return fmt.Errorf("it has the GPU still: %+v", h)
	case !tells && (h.Ended != nil || h.UID != ""):
		return node.StopRetrying(fmt.Errorf("nobody can have told %+v", h))
	case tells && (h.UID != status.UID || h.Ended == nil || h.Ended.ExitCode == nil || *h.Ended.ExitCode != exitCodeKilled || h.Ended.Phase != "Failed"):
		return fmt.Errorf("its end is %+v of %+v", h.Ended, h)
	}
	return nil
}

// gpuListTimes are the times at which the kubelet wrote into its log that a list of GPUs had come.
func gpuListTimes(t *testing.T, n *node.RealNode) []time.Time {
	t.Helper()
	times, err := listTimes(n)
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
	backdateKubelet(t, n)
	m := newMachine(t, n)
	const kept = 5 * time.Second
	d := m.start(t, n, "--allocations.max-age="+kept.String())
	waitForAllocatable(ctx, t, n, uuids(defaultGPUs)...)
	pod := podWithGPUs("brief", 1)
	runPod(ctx, t, n, pod)
	held := allocatedGPU(ctx, t, n, pod)
	waitForOwner(ctx, t, d, held, mainContainer(pod))
	m.addEvent(t, indexOf(t, held), "xid 31")
	d.waitForIncident(ctx, t, held, "xid_31", func(i apiIncident) error { return i.affectsOnly(mainContainer(pod)) })
	removePod(ctx, t, n, pod)
	begin := time.Now()
	seen := func(s metricsScrape) int {
		return len(findSamples(s.series["nvidia_gpu_allocation_last_seen_timestamp_seconds"], ownerLabels(mainContainer(pod))))
	}
	d.scrapeUntil(ctx, t, "the pod's end is known, and the pod is", func(s metricsScrape) error {
		if held := findSamples(s.series["nvidia_gpu_allocation_info"], ownerLabels(mainContainer(pod))); len(held) > 0 || seen(s) != 1 {
			return fmt.Errorf("it holds %v, and was seen %d times", held, seen(s))
		}
		return nil
	})
	s := d.scrapeUntil(ctx, t, "the pod is forgotten", func(s metricsScrape) error {
		if seen(s) > 0 {
			return errors.New("it is not")
		}
		return nil
	})
	took := time.Since(begin)
	measureDurations(t, "holders are told of for 5 s: one is forgotten after", 10*time.Second, took)
	if took < kept-time.Second { // it may have been asked about a second before its end
		t.Errorf("that was %s after its end", took)
	}
	if err := s.wantValue(1, familyDeviceFailures, affectedLabels("xid_31", held, "", mainContainer(pod))); err != nil {
		t.Error(err)
	}
	d.waitForIncident(ctx, t, held, "xid_31", func(i apiIncident) error { return i.affectsOnly(mainContainer(pod)) })
}
