package e2e

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/podgauge/podgauge/test/e2e/node"
)

// TestIncidents checks that incidents name the affected containers, also after the pod's end and a restart of podgauge.
func TestIncidents(t *testing.T) {
	n := startNode(t, node.Options{})
	migDevices := newMIGDevices(7, "1g.10gb", "1g.10gb")
	m := newMachine(t, n, scenarioLines(migDevices)...)
	d := m.start(t, n, "--mig-strategy=mixed")
	waitForResources(t, n, idsByResource{gpuResource: uuids(defaultGPUs - 1), smallMIGResource: migUUIDs(migDevices, "1g.10gb")})
	t.Run("application", func(t *testing.T) { applicationErrors(t, n, m, d, migDevices[0]) })
	t.Run("crash", func(t *testing.T) { podKilledByFault(t, n, m, d) })
}

// applicationErrors reports Xids of applications on a GPU and on one of two MIG devices. Podgauge records incidents with the container of
// the device, but does not mark the device unhealthy.
func applicationErrors(t *testing.T, n *node.RealNode, m *simulatedMachine, d *podgaugeProcess, mig migDevice) {
	pod, before, gpuID := runPodWithGPU(t, n, "failing")
	d.waitForOwner(t, gpuID, mainContainer(pod))
	migPods := map[string]node.StaticPod{} // by MIG device
	for _, name := range []string{"left", "right"} {
		pod := podWithResource(name, smallMIGResource, 1)
		runPod(t, n, pod)
		id := waitForDevices(t, n, pod)[0]
		migPods[id] = pod
		d.waitForOwner(t, id, mainContainer(pod))
	}
	migPod := migPods[mig.uuid()]
	lists := len(gpuListTimes(t, n))

	begin := time.Now()
	must(t, m.Event(indexOf(t, gpuID), "xid 31"))
	i := d.waitForIncident(t, gpuID, "xid_31", func(i apiIncident) error { return i.affectsOnly(mainContainer(pod)) })
	measureDurations(t, "Xid 31 → incident with the affected container", time.Second, time.Since(begin))
	if i.Count != 1 || i.Xid != 31 || i.Class != "application" || i.MarkedUnhealthy || !i.RecoveredAt.IsZero() || i.First.Before(begin) {
		t.Errorf("incident of an application error: got %+v", i)
	}
	must(t, m.Event(mig.gpu, fmt.Sprintf("xid 94 gi %d ci %d", mig.gi, mig.ci)))
	i = d.waitForIncident(t, mig.uuid(), "xid_94", func(i apiIncident) error { return i.affectsOnly(mainContainer(migPod)) })
	if i.MarkedUnhealthy || i.GPU != uuid(mig.gpu) || i.Class != "contained" || i.Action != "restart_app" {
		t.Errorf("incident of a contained error: got %+v", i)
	}
	s := d.scrapeUntil(t, "the counts are exported", func(s metricsScrape) error {
		return errors.Join(
			s.wantValue(1, "nvidia_gpu_xid_errors_total", seriesLabels{"uuid": gpuID, "xid": "31"}),
			s.wantValue(1, familyApplicationErrors, affectedLabels("xid_31", gpuID, "", mainContainer(pod))),
			s.wantValue(1, familyDeviceFailures, affectedLabels("xid_94", uuid(mig.gpu), mig.uuid(), mainContainer(migPod))),
			s.wantCount(1, familyDeviceFailures, seriesLabels{"uuid": uuid(mig.gpu)}),
		)
	})
	pods := append(slices.Collect(maps.Values(migPods)), pod)
	owners := waitForOwners(t, n, pods...)
	expect(t, errors.Join(
		s.wantValue(1, "nvidia_gpu_healthy", seriesLabels{"uuid": gpuID}), s.wantValue(1, "nvidia_gpu_healthy", seriesLabels{"mig_uuid": mig.uuid()}),
		s.checkNoWrongOwner(owners), checkSameContainer(t.Context(), n, pod, before),
	))
	if now := len(gpuListTimes(t, n)); now != lists {
		t.Errorf("device lists sent after the errors: got %d, want none", now-lists)
	}
	for _, pod := range pods {
		removePod(t, n, pod)
	}
}

// affectedLabels returns the labels of an affected container's series.
func affectedLabels(reason, gpu, mig string, owner node.OwnerKey) seriesLabels {
	labels := ownerLabels(owner)
	labels["uuid"], labels["mig_uuid"], labels["reason"] = gpu, mig, reason
	return labels
}

// podKilledByFault fails two GPUs and kills and deletes their pods at once: one GPU fails before the pod's end, the other after podgauge
// has seen the end of the allocation. Incidents must name the affected containers, also after restarts of podgauge.
func podKilledByFault(t *testing.T, n *node.RealNode, m *simulatedMachine, d *podgaugeProcess) {
	incidents := []apiIncident{}
	for _, lost := range []bool{true, false} {
		pod := podWithGPUs(fmt.Sprintf("lost-%t", lost), 1)
		pod.RestartPolicy = "Never"
		status, _ := runPod(t, n, pod)
		gpuID := waitForDevices(t, n, pod)[0]
		d.waitForOwner(t, gpuID, mainContainer(pod))
		pid := mainPID(t, n, pod)
		if lost {
			must(t, m.Event(indexOf(t, gpuID), "xid 79"))
			must(t, m.Set(fmt.Sprintf("gpu %d lost", indexOf(t, gpuID))))
		}
		must(t, errors.Join(syscall.Kill(pid, syscall.SIGKILL), n.DeletePod(pod)))
		waitForPodEnd(t, n, pod)
		d.nextScrape(t) // podgauge calls List
		if !lost {
			must(t, m.Event(indexOf(t, gpuID), "xid 79"))
		}
		begin := time.Now()
		i := d.waitForIncident(t, gpuID, "xid_79", func(i apiIncident) error { return checkTermination(n, i, pod, status) })
		measureDurations(t, "Xid 79 and end of the pod → incident with the termination", 5*time.Second, time.Since(begin))
		if !i.MarkedUnhealthy || i.Action != "reboot" || i.Count != 1 {
			t.Errorf("incident of Xid 79: got %+v", i)
		}
		incidents = append(incidents, i)
	}
	waitUntil(t, time.Now().Add(time.Second)) // podgauge writes the incidents within 0.1 s
	for _, signal := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM} {
		_, err := d.Stop(t.Context(), signal)
		must(t, err)
		d = m.start(t, n, "--mig-strategy=mixed")
		for _, i := range incidents {
			d.scrapeUntil(t, "the incident and its affected container are exported", func(s metricsScrape) error { // counters start at 0
				return errors.Join(s.wantValue(0, "nvidia_gpu_incidents_total", seriesLabels{"uuid": i.Device, "reason": "xid_79"}),
					s.wantValue(0, familyDeviceFailures, affectedLabels("xid_79", i.Device, "", i.Containers[0].owner())))
			})
			expect(t, d.checkIncidentUnchanged(t.Context(), i))
		}
	}
}

// checkTermination returns an error unless an incident names the pod's container and, if the kubelet has a Pods API, its termination.
func checkTermination(n *node.RealNode, i apiIncident, pod node.StaticPod, status node.StaticPodStatus) error {
	if err := i.affectsOnly(mainContainer(pod)); err != nil {
		return err
	}
	const exitCodeKilled = 137 // by SIGKILL
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
