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

// TestIncidents checks that incidents name the affected containers, also after the pod's end and a restart of podgauge.
func TestIncidents(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	n := node.ForTest(ctx, t, node.Options{})
	startKubelet(ctx, t, n)
	backdateKubelet(t, n)
	migDevices := newMIGDevices(7, "1g.10gb", "1g.10gb")
	m := newMachine(t, n, scenarioLines(migDevices)...)
	d := m.start(t, n, "--mig-strategy=mixed")
	waitForResources(ctx, t, n, machineResources(migDevices))
	t.Run("application", func(t *testing.T) { applicationError(ctx, t, n, m, d, migDevices) })
	t.Run("MIG device", func(t *testing.T) { migMemoryError(ctx, t, n, m, d, migDevices) })
	t.Run("crash", func(t *testing.T) { podKilledByFault(ctx, t, n, m, d) })
}

// machineResources returns the resources of a machine that has these MIG devices on its last GPU.
func machineResources(migDevices []migDevice) idsByResource {
	return idsByResource{gpuResource: uuids(defaultGPUs - 1), smallMIGResource: migUUIDs(migDevices, "1g.10gb")}
}

// applicationError reports an Xid of an application. Podgauge records an incident but does not mark the GPU unhealthy.
func applicationError(ctx context.Context, t *testing.T, n *node.RealNode, m *simulatedMachine, d *podgaugeProcess, migDevices []migDevice) {
	pod := podWithGPUs("failing", 1)
	before, _ := runPod(ctx, t, n, pod)
	gpuID := allocatedGPU(ctx, t, n, pod)
	waitForOwner(ctx, t, d, gpuID, mainContainer(pod))
	lists := gpuListTimes(t, n)

	begin := time.Now()
	m.addEvent(t, indexOf(t, gpuID), "xid 31")
	i := d.waitForIncident(ctx, t, gpuID, "xid_31", func(i apiIncident) error { return i.affectsOnly(mainContainer(pod)) })
	measureDurations(t, "Xid 31 → incident with the affected container", time.Second, time.Since(begin))
	if i.Count != 1 || i.Xid != 31 || i.Class != "application" || i.MarkedUnhealthy || !i.RecoveredAt.IsZero() || i.First.Before(begin) {
		t.Errorf("incident of an application error: got %+v", i)
	}
	s := d.scrapeUntil(ctx, t, "the counts are stored and exported", func(s metricsScrape) error {
		return errors.Join(
			s.wantValue(1, "nvidia_gpu_xid_errors_total", seriesLabels{"uuid": gpuID, "xid": "31"}),
			s.wantValue(1, "nvidia_gpu_incidents_total", seriesLabels{"uuid": gpuID, "reason": "xid_31", "pod": ""}),
			s.wantValue(1, familyApplicationErrors, affectedLabels("xid_31", gpuID, "", mainContainer(pod))),
		)
	})
	err := errors.Join(
		s.wantValue(1, "nvidia_gpu_healthy", seriesLabels{"uuid": gpuID}),
		s.wantValue(1, "nvidia_gpu_health_state", seriesLabels{"uuid": gpuID, "state": "healthy"}),
		s.wantValue(0, "nvidia_gpu_health_flaps_total", seriesLabels{"uuid": gpuID}),
		s.checkNoWrongOwner(map[string]node.OwnerKey{gpuID: mainContainer(pod)}),
		hasResources(n, machineResources(migDevices))(ctx), checkSameContainer(ctx, n, pod, before),
	)
	if err != nil {
		t.Error(err)
	}
	if now := gpuListTimes(t, n); len(now) != len(lists) {
		t.Errorf("device lists sent after the error: got %d, want none", len(now)-len(lists))
	}
	checkTables(ctx, t, n, gpuID, mainContainer(pod))
	removePod(ctx, t, n, pod)
}

// waitForOwner waits until podgauge's API reports this container as the only owner of a device.
func waitForOwner(ctx context.Context, t *testing.T, d *podgaugeProcess, id string, owner node.OwnerKey) {
	t.Helper()
	await(ctx, t, "the owner of "+id+" is reported", func(ctx context.Context) error {
		s, err := d.device(ctx, id)
		if err != nil {
			return err
		}
		if len(s.Containers) != 1 || node.OwnerKey(s.Containers[0]) != owner {
			return fmt.Errorf("device: got %+v, want owner %+v", s, owner)
		}
		return nil
	})
}

// affectedLabels returns the labels of an affected container's series.
func affectedLabels(reason, gpu, mig string, owner node.OwnerKey) seriesLabels {
	labels := ownerLabels(owner)
	labels["uuid"], labels["mig_uuid"], labels["reason"] = gpu, mig, reason
	return labels
}

// checkTables checks that podgauge's tables list the container once as the owner of a device, and once as an affected container.
func checkTables(ctx context.Context, t *testing.T, n *node.RealNode, id string, owner node.OwnerKey) {
	t.Helper()
	for _, args := range [][]string{{"status"}, {"incidents"}, {"incidents", "--pod=" + owner.Pod, "--device=" + id}} {
		table := podgaugeOutput(ctx, t, n, args...)
		if rows := linesWith(table, tableName(owner), id); len(rows) != 1 {
			t.Errorf("podgauge %s: rows of %+v and %s: got %d, want 1:\n%s", args, owner, id, len(rows), table)
		}
	}
	if table := podgaugeOutput(ctx, t, n, "incidents", "--pod=absent"); strings.Contains(table, owner.Pod) {
		t.Errorf("podgauge incidents of another pod: got %s in the table:\n%s", owner.Pod, table)
	}
}

// tableName returns the name of a container in podgauge's tables.
func tableName(o node.OwnerKey) string { return o.Namespace + "/" + o.Pod + "/" + o.Container }

// migMemoryError reports a contained memory error of one of two MIG devices on a GPU. Only that device's pod is affected.
func migMemoryError(ctx context.Context, t *testing.T, n *node.RealNode, m *simulatedMachine, d *podgaugeProcess, migDevices []migDevice) {
	pods := map[string]node.StaticPod{} // by MIG device
	before := map[string]node.StaticPodStatus{}
	for _, name := range []string{"left", "right"} {
		pod := podWithResource(name, smallMIGResource, 1)
		status, _ := runPod(ctx, t, n, pod)
		id := waitForDevices(ctx, t, n, pod)[0]
		pods[id], before[id] = pod, status
		waitForOwner(ctx, t, d, id, mainContainer(pod))
	}
	lists := gpuListTimes(t, n)
	failing, other := migDevices[0], migDevices[1]
	m.addEvent(t, failing.gpu, fmt.Sprintf("xid 94 gi %d ci %d", failing.gi, failing.ci))
	i := d.waitForIncident(ctx, t, failing.uuid(), "xid_94", func(i apiIncident) error { return i.affectsOnly(mainContainer(pods[failing.uuid()])) })
	if i.MarkedUnhealthy || i.GPU != uuid(failing.gpu) || i.Class != "contained" || i.Action != "restart_app" {
		t.Errorf("incident of a contained error: got %+v", i)
	}
	s := d.scrapeUntil(ctx, t, "the counts are stored and exported", func(s metricsScrape) error {
		return errors.Join(
			s.wantValue(1, familyDeviceFailures, affectedLabels("xid_94", uuid(failing.gpu), failing.uuid(), mainContainer(pods[failing.uuid()]))),
			s.wantValue(1, "nvidia_gpu_incidents_total", seriesLabels{"mig_uuid": failing.uuid(), "reason": "xid_94"}),
		)
	})
	wrong := []error{hasResources(n, machineResources(migDevices))(ctx)}
	for _, device := range migDevices {
		id := device.uuid()
		wrong = append(wrong, s.wantValue(1, "nvidia_gpu_healthy", seriesLabels{"mig_uuid": id}), checkSameContainer(ctx, n, pods[id], before[id]))
	}
	if all, err := d.incidents(ctx, "device", other.uuid()); err != nil || len(all) > 0 {
		wrong = append(wrong, fmt.Errorf("incidents of the other MIG device: got %+v, %w, want none", all, err))
	}
	if all, err := d.incidents(ctx, "pod", pods[other.uuid()].FullName()); err != nil || len(all) > 0 {
		wrong = append(wrong, fmt.Errorf("incidents of the other MIG device's pod: got %+v, %w, want none", all, err))
	}
	for _, family := range []string{familyDeviceFailures, "nvidia_gpu_incidents_total"} {
		if found := findSamples(s.series[family], seriesLabels{"mig_uuid": other.uuid()}); len(found) > 0 {
			wrong = append(wrong, fmt.Errorf("%s of the other MIG device: got %v, want no series", family, found))
		}
	}
	if err := errors.Join(wrong...); err != nil {
		t.Error(err)
	}
	if now := gpuListTimes(t, n); len(now) != len(lists) {
		t.Errorf("device lists sent after the contained error: got %d, want none", len(now)-len(lists))
	}
	for _, pod := range pods {
		removePod(ctx, t, n, pod)
	}
}

// exitCodeKilled is the exit code of a container that was killed by SIGKILL.
const exitCodeKilled = 137

// podKilledByFault fails two GPUs and kills and deletes their pods at once: one GPU fails before the pod's end, the other after podgauge
// has seen the end of the allocation. Incidents must name the affected containers, also after restarts of podgauge.
func podKilledByFault(ctx context.Context, t *testing.T, n *node.RealNode, m *simulatedMachine, d *podgaugeProcess) {
	var gone []time.Duration
	incidents := map[bool]apiIncident{} // by whether the GPU is lost
	for _, lost := range []bool{true, false} {
		pod := podWithGPUs(fmt.Sprintf("lost-%t", lost), 1)
		pod.RestartPolicy = "Never"
		status, _ := runPod(ctx, t, n, pod)
		gpuID := allocatedGPU(ctx, t, n, pod)
		waitForOwner(ctx, t, d, gpuID, mainContainer(pod))
		pid, err := n.ContainerPID(ctx, pod, "main")
		if err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		if lost {
			m.addEvent(t, indexOf(t, gpuID), "xid 79")
			m.setLines(t, fmt.Sprintf("gpu %d lost", indexOf(t, gpuID)))
		}
		if err := errors.Join(syscall.Kill(pid, syscall.SIGKILL), n.DeletePod(pod)); err != nil {
			t.Fatal(err)
		}
		waitForPodEnd(ctx, t, n, pod)
		gone = append(gone, time.Since(begin))
		d.nextScrape(ctx, t) // podgauge calls List
		if !lost {
			m.addEvent(t, indexOf(t, gpuID), "xid 79")
		}
		begin = time.Now()
		i := d.waitForIncident(ctx, t, gpuID, "xid_79", func(i apiIncident) error { return checkTermination(n, i, pod, status) })
		measureDurations(t, "Xid 79 and end of the pod → incident with the termination", 5*time.Second, time.Since(begin))
		if !i.MarkedUnhealthy || i.Action != "reboot" || i.Count != 1 {
			t.Errorf("incident of Xid 79: got %+v", i)
		}
		incidents[lost] = i
	}
	measureDurations(t, "pod killed and deleted → not in List", time.Second, gone...)

	await(ctx, t, "the incidents are on disk", waitSince(time.Now(), time.Second)) // podgauge writes them within 0.1 s
	for _, signal := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM} {
		if _, err := d.Stop(ctx, signal); err != nil {
			t.Fatal(err)
		}
		d = m.start(t, n, "--mig-strategy=mixed")
		s := firstHealthScrape(ctx, t, d, incidents[false].Device)
		if err := s.wantValue(0, "nvidia_gpu_healthy", seriesLabels{"uuid": incidents[false].Device}); err != nil {
			t.Errorf("first scrape with the GPU's health after a restart by %s: %v", signal, err)
		}
		for _, i := range incidents {
			checkIncidentAfterRestart(ctx, t, n, d, i)
		}
	}
}

// checkIncidentAfterRestart checks that metrics, API and table of a restarted podgauge contain an incident. Counters start at 0.
func checkIncidentAfterRestart(ctx context.Context, t *testing.T, n *node.RealNode, d *podgaugeProcess, i apiIncident) {
	t.Helper()
	owner := i.Containers[0].owner()
	d.scrapeUntil(ctx, t, "the incident and its affected container are exported", func(s metricsScrape) error {
		return errors.Join(s.wantValue(0, "nvidia_gpu_incidents_total", seriesLabels{"uuid": i.Device, "reason": "xid_79"}),
			s.wantValue(0, familyDeviceFailures, affectedLabels("xid_79", i.Device, "", owner)))
	})
	if err := d.checkIncidentUnchanged(ctx, i); err != nil {
		t.Error(err)
	}
	if table := podgaugeOutput(ctx, t, n, "incidents"); len(linesWith(table, tableName(owner), i.Device, "xid_79")) != 1 {
		t.Errorf("podgauge incidents: no row of %+v:\n%s", i, table)
	}
}

// checkTermination returns an error unless an incident names the pod's container and, if the kubelet has a Pods API, its termination.
func checkTermination(n *node.RealNode, i apiIncident, pod node.StaticPod, status node.StaticPodStatus) error {
	if err := i.affectsOnly(mainContainer(pod)); err != nil {
		return err
	}
	c := i.Containers[0]
	switch hasPodsAPI, end := n.KubeletVersion >= "v1.37", c.Ended; {
	case c.Until.IsZero():
		return fmt.Errorf("affected container: got %+v, want the end of its allocation", c)
	case !hasPodsAPI && (end != nil || c.UID != ""):
		return node.StopRetrying(fmt.Errorf("affected container without a Pods API: got %+v, want no UID and no termination", c))
	case hasPodsAPI && (c.UID != status.UID || end == nil || end.ExitCode == nil || *end.ExitCode != exitCodeKilled || end.Phase != "Failed"):
		return fmt.Errorf("termination of the affected container: got %+v of %+v", end, c)
	}
	return nil
}

// gpuListTimes returns the times of listTimes, and fails the test after an error.
func gpuListTimes(t *testing.T, n *node.RealNode) []time.Time {
	t.Helper()
	times, err := listTimes(n)
	if err != nil {
		t.Fatal(err)
	}
	return times
}

// TestAllocationMaxAge checks that metrics of an ended allocation expire after --allocations.max-age, but its incidents do not.
func TestAllocationMaxAge(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	n := node.ForTest(ctx, t, node.Options{})
	startKubelet(ctx, t, n)
	backdateKubelet(t, n)
	m := newMachine(t, n)
	const maxAge = 5 * time.Second
	d := m.start(t, n, "--allocations.max-age="+maxAge.String())
	waitForAllocatable(ctx, t, n, uuids(defaultGPUs)...)
	pod := podWithGPUs("brief", 1)
	runPod(ctx, t, n, pod)
	gpuID := allocatedGPU(ctx, t, n, pod)
	waitForOwner(ctx, t, d, gpuID, mainContainer(pod))
	m.addEvent(t, indexOf(t, gpuID), "xid 31")
	d.waitForIncident(ctx, t, gpuID, "xid_31", func(i apiIncident) error { return i.affectsOnly(mainContainer(pod)) })
	removePod(ctx, t, n, pod)
	begin := time.Now()
	lastSeenCount := func(s metricsScrape) int {
		return len(findSamples(s.series["nvidia_gpu_allocation_last_seen_timestamp_seconds"], ownerLabels(mainContainer(pod))))
	}
	d.scrapeUntil(ctx, t, "the allocation has ended and its last-seen time is exported", func(s metricsScrape) error {
		if found := findSamples(s.series["nvidia_gpu_allocation_info"], ownerLabels(mainContainer(pod))); len(found) > 0 || lastSeenCount(s) != 1 {
			return fmt.Errorf("series of the allocation: got %v and %d last-seen times, want none and 1", found, lastSeenCount(s))
		}
		return nil
	})
	s := d.scrapeUntil(ctx, t, "the last-seen time has expired", func(s metricsScrape) error {
		if count := lastSeenCount(s); count > 0 {
			return fmt.Errorf("last-seen times: got %d, want none", count)
		}
		return nil
	})
	took := time.Since(begin)
	measureDurations(t, "end of an allocation, --allocations.max-age=5s → last-seen time expired", 10*time.Second, took)
	if took < maxAge-time.Second { // the last List may have been a second before the end
		t.Errorf("last-seen time expired after %s, want at least %s", took, maxAge-time.Second)
	}
	if err := s.wantValue(1, familyApplicationErrors, affectedLabels("xid_31", gpuID, "", mainContainer(pod))); err != nil {
		t.Error(err)
	}
	d.waitForIncident(ctx, t, gpuID, "xid_31", func(i apiIncident) error { return i.affectsOnly(mainContainer(pod)) })
}
