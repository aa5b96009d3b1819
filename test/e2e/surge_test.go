package e2e

import (
	"context"
	"fmt"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/podgauge/podgauge/test/e2e/node"
)

// TestSurge replaces podgauge as a DaemonSet with maxSurge does: the new process starts beside the old one, which ends when the new one is
// ready. It has the state of the old one, and with kubelets from 1.37 on, no GPU is missing at any time.
func TestSurge(t *testing.T) {
	n := startNode(t, node.Options{})
	m := newMachine(t, n)
	old := m.start(t, n)
	waitForAllocatable(t, n, uuids(defaultGPUs)...)
	pod, before, gpuID := runPodWithGPU(t, n, "train")
	old.waitForOwner(t, gpuID, mainContainer(pod))

	endGaps := watchAllocatable(t, n)
	must(t, m.Event(indexOf(t, gpuID), "xid 31"))
	old.waitForIncident(t, gpuID, "xid_31", func(apiIncident) error { return nil }) // not on disk yet
	begin := time.Now()
	surge := m.startBeside(t, n)
	surge.waitUntilReady(t)
	measureDurations(t, "podgauge started beside another one → ready", 5*time.Second, time.Since(begin))
	both := podWithGPUs("both", 1)
	runPod(t, n, both)
	must(t, m.Event(indexOf(t, gpuID), "xid 43")) // seen by both processes
	for _, d := range []*podgaugeProcess{old, surge} {
		d.waitForIncident(t, gpuID, "xid_43", func(i apiIncident) error { return i.affectsOnly(mainContainer(pod)) })
	}
	_, err := old.Stop(t.Context(), syscall.SIGTERM)
	must(t, err)
	if n.KubeletVersion < "v1.37" { // ends both streams, and rejects pods until the next registration
		await(t, "the new process has registered again", func(context.Context) error {
			if all := surge.logLines(t, "msg=registered"); len(all) < 2 {
				return fmt.Errorf("registrations: got %q, want two", all)
			}
			return nil
		})
		waitForAllocatable(t, n, uuids(defaultGPUs)...)
	}
	after := podWithGPUs("after", 1)
	runPod(t, n, after)
	surge.waitForOwner(t, waitForDevices(t, n, after)[0], mainContainer(after))
	for _, reason := range []string{"xid_31", "xid_43"} {
		surge.waitForIncident(t, gpuID, reason, func(i apiIncident) error {
			if i.Count != 1 {
				return fmt.Errorf("incident: got %+v, want count 1", i)
			}
			return i.affectsOnly(mainContainer(pod))
		})
	}
	expect(t, checkSameContainer(t.Context(), n, pod, before))
	endGaps()
	if lines := old.logLines(t, "level=ERROR"); len(lines) > 0 {
		t.Errorf("errors in the log: %q", lines)
	}
}

// startBeside starts a second podgauge, on another port.
func (m *simulatedMachine) startBeside(t *testing.T, n *node.RealNode) *podgaugeProcess {
	t.Helper()
	const port = defaultPort + 1
	second := *m
	second.callsFile += ".second"
	d := second.start(t, n, fmt.Sprintf("--web.listen-address=:%d", port))
	d.port = port
	return d
}

// watchAllocatable asks the kubelet every 20 ms; it answers a hundred requests per second. end reports the longest time without all GPUs.
// Kubelets before 1.37 drop the devices of both processes when one ends.
func watchAllocatable(t *testing.T, n *node.RealNode) (end func()) {
	t.Helper()
	before, err := n.Kubelet().Output()
	must(t, err)
	complete, answers := time.Now(), 0
	var longest time.Duration
	w := startWatch(t, 20*time.Millisecond, func(ctx context.Context) error {
		switch got, err := n.Allocatable(ctx, gpuResource); {
		case err != nil: // by the limit of requests
		case slices.Equal(got, uuids(defaultGPUs)):
			complete, answers = time.Now(), answers+1
		default:
			longest = max(longest, time.Since(complete))
		}
		return nil
	})
	return func() {
		t.Helper()
		w.stop(t)
		log, err := n.Kubelet().Output()
		must(t, err)
		marked := linesWith(log[len(before):], "Mark all resources Unhealthy")
		printMeasurement(t, "replaced beside the running one: longest time with fewer allocatable GPUs",
			fmt.Sprintf("%s; %d complete answers; marked unhealthy %d times", longest.Round(time.Millisecond), answers, len(marked)))
		if hasInstances := n.KubeletVersion >= "v1.37"; hasInstances && (longest > 0 || len(marked) > 0) {
			t.Errorf("fewer allocatable GPUs for %s, kubelet's log: %q, want none", longest, marked)
		}
	}
}
