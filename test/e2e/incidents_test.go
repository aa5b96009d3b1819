package e2e

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/podgauge/podgauge/test/e2e/node"
	"github.com/podgauge/podgauge/test/helpers/expect"
	nvmltest "github.com/podgauge/podgauge/test/nvml"
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
	expect.NoError(t, errors.Join(
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
			expect.NoError(t, d.checkIncidentUnchanged(t.Context(), i))
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

// TestEventLatency measures the time from Xid 79 to the device list in the kubelet's log. PODGAUGE_XIDS is the number of Xids.
func TestEventLatency(t *testing.T) {
	count, err := strconv.Atoi(cmp.Or(os.Getenv("PODGAUGE_XIDS"), "32"))
	if err != nil || count < 1 {
		t.Fatalf("PODGAUGE_XIDS: %d, %v", count, err)
	}
	n := startNode(t, node.Options{})
	var took []time.Duration
	for len(took) < count {
		took = append(took, measureEventLatency(t, n, count-len(took))...)
	}
	slices.Sort(took)
	percentile := func(p int) time.Duration { return took[(len(took)*p+99)/100-1] }
	prefix := fmt.Sprintf("Xid 79 → Unhealthy in the kubelet's log, n=%d: ", len(took))
	measureDurations(t, prefix+"p50", 5*time.Millisecond, percentile(50))
	measureDurations(t, prefix+"p99", 20*time.Millisecond, percentile(99))
	printMeasurement(t, prefix+"max", formatSeconds(took[len(took)-1]))
}

// measureEventLatency measures at most limit Xids, with a new podgauge without state and the largest number of GPUs. Each GPU reports two
// Xids with a reset in between: each further failure would lengthen its recovery.
func measureEventLatency(t *testing.T, n *node.RealNode, limit int) (took []time.Duration) {
	t.Helper()
	ids := uuids(nvmltest.MaxGPUs)
	m := newMachine(t, n, fmt.Sprintf("gpus %d", len(ids)))
	d := m.start(t, n)
	for range 2 {
		waitForAllocatable(t, n, ids...)
		var begins []time.Time
		for i := range ids[:min(len(ids), limit-len(took))] {
			begins = append(begins, time.Now())
			must(t, m.Event(i, "xid 79"))
			waitForAllocatable(t, n, ids[i+1:]...)
		}
		took = append(took, latencyToNextList(t, n, begins)...)
		waitUntil(t, time.Now().Add(2*time.Second)) // like a real reset: podgauge counts the resets after its first check
		for i := range ids {
			must(t, m.Reset(i))
		}
	}
	d.stop(t)
	waitForAllocatable(t, n)
	return took
}

// latencyToNextList returns the time from each begin to the next device list, which must arrive before the next begin.
func latencyToNextList(t *testing.T, n *node.RealNode, begins []time.Time) (took []time.Duration) {
	t.Helper()
	times := gpuListTimes(t, n)
	for i, begin := range begins {
		at := slices.IndexFunc(times, begin.Before)
		if at < 0 || i+1 < len(begins) && times[at].After(begins[i+1]) {
			t.Fatalf("device list after Xid %d: got none", i)
		}
		took = append(took, times[at].Sub(begin))
		times = times[at:]
	}
	return took
}

// A storm is a sequence of bursts of Xids at an interval, each burst of one GPU.
const (
	burstCount    = 100
	burstSize     = 100
	burstInterval = 100 * time.Millisecond
)

// stormXids are the Xids of consecutive bursts. Only Xid 79 changes the device list, and only once; the others are application errors.
var stormXids = [...]struct{ gpu, xid int }{{0, 31}, {1, 43}, {2, 79}, {0, 13}}

// TestXidStorm reports 10,000 Xids in 10 s. Each Xid must be counted, and neither scrapes nor pods may be delayed.
func TestXidStorm(t *testing.T) {
	n := startNode(t, node.Options{})
	m := newMachine(t, n)
	d := m.start(t, n, "--kernel-log=")
	waitForAllocatable(t, n, uuids(defaultGPUs)...)
	lists := len(gpuListTimes(t, n))
	scrapes := watchScrapeDurations(t, d)

	begin := time.Now()
	burst := 0
	storm := startWatch(t, burstInterval, func(context.Context) error {
		if burst == burstCount {
			return nil
		}
		x := stormXids[burst%len(stormXids)]
		burst++
		return m.Event(x.gpu, fmt.Sprintf("xid %d x %d", x.xid, burstSize))
	})
	await(t, "the storm has begun", func(ctx context.Context) error {
		s, err := d.device(ctx, uuid(2))
		if err == nil && s.Reason != "xid_79" {
			err = fmt.Errorf("device: got %+v, want reason xid_79", s)
		}
		return err
	})
	pod := podWithGPUs(podDuringFault, 1)
	_, took := runPod(t, n, pod)
	measureDurations(t, "new pod during a storm of Xids: created → running", 5*time.Second, took)
	owners := waitForOwners(t, n, pod)
	d.scrapeUntil(t, "the pod's allocation is exported", func(s metricsScrape) error { return s.checkNoWrongOwner(owners) })
	waitUntil(t, begin.Add((burstCount+1)*burstInterval))
	end := time.Now()
	d.scrapeUntil(t, "each Xid is counted", func(s metricsScrape) error { return checkXidCounts(t.Context(), d, s) })
	storm.stop(t)
	// Counts are stored once a second, and scrapes share the collection of a second.
	measureDurations(t, fmt.Sprintf("end of %d Xids in %s → all counted", burstCount*burstSize, formatSeconds(end.Sub(begin))),
		2500*time.Millisecond, time.Since(end))
	expect.NoError(t, checkXidCounts(t.Context(), d, d.nextScrape(t)), "next scrape")
	scrapes.stop(t)
	measureDurations(t, "storm: slowest scrape", maxScrapeDuration, scrapes.longest)
	sent := len(gpuListTimes(t, n)) - lists
	printMeasurement(t, "storm: device lists sent; log lines", fmt.Sprintf("%d, limit 2; %d", sent, len(d.logLines(t, "driver event"))))
	if sent < 1 || sent > 2 {
		t.Errorf("device lists sent: got %d, want 1 or 2", sent)
	}
	waitForAllocatable(t, n, without(uuids(defaultGPUs), uuid(2))...)
}

// checkXidCounts returns an error unless each Xid is counted exactly once in the metrics of Xids and incidents, and in the API.
func checkXidCounts(ctx context.Context, d *podgaugeProcess, s metricsScrape) error {
	wrong := []error{}
	for _, burst := range stormXids {
		const want = burstCount * burstSize / len(stormXids)
		id, reason := uuid(burst.gpu), fmt.Sprintf("xid_%d", burst.xid)
		all, err := d.incidents(ctx, "device", id, "reason", reason)
		count := 0
		for _, i := range all {
			count += int(i.Count)
		}
		if err == nil && count != want {
			err = fmt.Errorf("count of incidents %s: got %d, want %d", reason, count, want)
		}
		wrong = append(wrong, err, s.wantValue(float64(want), "nvidia_gpu_xid_errors_total", seriesLabels{"uuid": id, "xid": fmt.Sprint(burst.xid)}),
			s.wantValue(float64(want), "nvidia_gpu_incidents_total", seriesLabels{"uuid": id, "reason": reason}))
	}
	return errors.Join(wrong...)
}
