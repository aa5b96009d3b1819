package e2e

import (
	"testing"
	"time"

	"github.com/podgauge/podgauge/test/e2e/node"
)

// TestOwners checks the owners of short-lived pods, ended pods, and pods with two containers. TestChurn checks their energy.
func TestOwners(t *testing.T) {
	n := startNode(t, node.Options{})
	d := newMachine(t, n).start(t, n)
	waitForAllocatable(t, n, uuids(defaultGPUs)...)

	// A pod that ran for 2 s between two scrapes.
	brief := podWithGPUs("brief", 1)
	brief.RestartPolicy = "Never"
	brief.Containers[0].Args = []string{"sleep", "2s"}
	begin := time.Now()
	runPod(t, n, brief)
	gpuID := waitForDevices(t, n, brief)[0]
	waitForPodEnd(t, n, brief)
	lived := time.Since(begin)
	waitUntil(t, begin.Add(15*time.Second))
	s, err := d.scrape(t.Context())
	must(t, err)
	with := ownerLabels(mainContainer(brief))
	with["uuid"], with["mig_uuid"] = gpuID, ""
	seen, err := s.value(familyLastSeen, with)
	must(t, err)
	if at := unixTime(seen); at.Before(begin) || at.After(begin.Add(lived)) {
		t.Errorf("last-seen time: got %s after the pod's creation, want at most %s", at.Sub(begin), lived)
	}
	printMeasurement(t, "last-seen time of a pod that ran for 2 s between scrapes", formatSeconds(unixTime(seen).Sub(begin))+" after its creation")
	if err := s.checkOwners(uuids(defaultGPUs), nil); err != nil {
		t.Errorf("after the pod's end: %v", err)
	}
	must(t, n.DeletePod(brief))

	// A pod with one GPU for its first container and two for the second.
	pair := podWithGPUs("pair", 1)
	pair.Containers = append(pair.Containers, node.StaticContainer{Name: "second", Limits: map[string]int{gpuResource: 2}})
	runPod(t, n, pair)
	owners := waitForOwners(t, n, pair)
	expect(t, d.nextScrape(t).checkOwners(uuids(defaultGPUs), owners))
	removePod(t, n, pair)
	s = d.nextScrape(t)
	expect(t, s.checkOwners(uuids(defaultGPUs), nil))
	expect(t, s.wantCount(len(owners), familyLastSeen, seriesLabels{"pod": pair.FullName()}))
}
