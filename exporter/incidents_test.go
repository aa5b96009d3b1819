package exporter_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/exporter"
	"github.com/podgauge/podgauge/internal/allocation"
	"github.com/podgauge/podgauge/internal/incident"
	"github.com/podgauge/podgauge/test/bubble"
)

// TestNewestFailuresAreShown checks that a scrape has the newest 500 failures, also after as many newer application errors.
func TestNewestFailuresAreShown(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		d := newScrapeFixture(0)
		var affected []incident.EventCount
		add := func(reason string, n, begin int) {
			for i := range n {
				affected = append(affected, incident.EventCount{
					Device: "GPU-0", GPU: "GPU-0", Reason: reason, Count: 1, Last: time.Unix(int64(begin+i), 0),
					Owner: allocation.Owner{Namespace: "n", Pod: fmt.Sprint("p", i), Container: "c"},
				})
			}
		}
		add("xid_31", 500, 100_000)
		add("xid_79", 507, 0)
		d.node.Incidents.Set(incident.Snapshot{Affected: affected})
		text := scrape(t, d.handler(exporter.Options{}))
		if n := strings.Count(text, "\nnvidia_gpu_allocation_device_failures_total{"); n != 500 {
			t.Errorf("got %d failures, want 500", n)
		}
		assertSeries(t, text, "!allocation_device_failures_total GPU-0 n/p6/c reason=xid_79",
			"allocation_device_failures_total GPU-0 n/p7/c 1 reason=xid_79", "allocation_device_failures_total GPU-0 n/p506/c 1 reason=xid_79",
			"podgauge_allocation_device_failures_dropped 7")
	})
}
