package exporter_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/podgauge/podgauge/exporter"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/health"
	"github.com/podgauge/podgauge/test/bubble"
)

func TestScrapesShareCollection(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		d := newScrapeFixture(1)
		h := d.handler(exporter.Options{})
		setXids := func(count uint64) func() {
			return func() {
				d.publish(func(s []device.Status) { s[0].Xids = []device.Xid{{Code: 31, Count: count}} })
			}
		}
		for _, c := range []struct {
			what  string
			first func()
			reads int
		}{
			{"concurrent scrapes", func() {}, 1},
			{"repeated within a second", func() { time.Sleep(900 * time.Millisecond) }, 1},
			{"after a second", func() { time.Sleep(200 * time.Millisecond) }, 2},
			{"after a pod was added", func() { d.allocate("GPU-0=n/p/c") }, 3},
			{"after a GPU failed", func() {
				d.publish(func(s []device.Status) { s[0].Healthy, s[0].Reason = false, "xid_79" })
			}, 4},
			{"after an Xid count rose", setXids(9), 4},
			{"after it rose again", setXids(10), 4},
			{"after a GPU was added", func() { d.node.Devices.Set(append(slices.Clone(d.statuses), newScrapeFixture(2).statuses[1])) }, 5},
		} {
			c.first()
			var all sync.WaitGroup
			for range 5 {
				all.Go(func() { scrape(t, h) })
			}
			all.Wait()
			if d.readCalls != c.reads || d.listCalls != c.reads {
				t.Errorf("%s: got %d reads and %d calls of List, want %d", c.what, d.readCalls, d.listCalls, c.reads)
			}
		}
	})
}

const timeoutHeader = "X-Prometheus-Scrape-Timeout-Seconds"

func TestScrapeTimeout(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		d := newScrapeFixture(1)
		d.onRead = func(ctx context.Context, readings []health.Reading) {
			<-ctx.Done()
			clear(readings)
		}
		h := d.handler(exporter.Options{})
		began := time.Now()
		assertAbsent(t, scrape(t, h, timeoutHeader, "0.5"), "nvidia_gpu")
		if took := time.Since(began); took != 450*time.Millisecond {
			t.Errorf("scrape with a timeout of 0.5 s: got %s", took)
		}
		text := scrape(t, h, timeoutHeader, "10")
		if took := time.Since(began); took != time.Second {
			t.Errorf("collection: got %s, want at most 1 s", took)
		}
		assertSeries(t, text, "up GPU-0 - 0", "!nvidia_gpu_power_watts")
		if d.readCalls != 1 {
			t.Errorf("got %d reads, want one collection for both scrapes", d.readCalls)
		}
	})
}

// allocateOnNode is an Allocate of a device: rows are published as allocations.
func allocateOnNode(e *exporter.Exporter, d *scrapeFixture, id device.ID, rows ...string) {
	defer e.BeginAllocate(id)()
	d.allocate(rows...)
}

// TestEnergyIsDividedAtAllocate allocates a GPU after a running collection has read it, while the collection waits for the kubelet or another
// GPU. The energy before Allocate belongs to the previous owner, to the joule.
func TestEnergyIsDividedAtAllocate(t *testing.T) {
	for name, c := range map[string]struct {
		list  time.Duration // duration of List
		hangs bool          // another GPU hangs
	}{
		"the kubelet takes 300 ms":            {list: 300 * time.Millisecond},
		"the kubelet takes 1.5 s":             {list: 1500 * time.Millisecond},
		"another GPU hangs":                   {hangs: true},
		"another GPU hangs, and this GPU too": {list: 300 * time.Millisecond, hangs: true},
		"nothing is slow":                     {},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				d := newScrapeFixture(2)
				d.joulesPerMillisecond = 1
				d.onList = func(ctx context.Context) {
					select {
					case <-time.After(c.list):
					case <-ctx.Done():
					}
				}
				d.onRead = func(ctx context.Context, readings []health.Reading) {
					if c.hangs {
						<-ctx.Done()
						readings[1] = health.Reading{GPU: readings[1].GPU, Err: device.ErrStalled}
					}
				}
				e := exporter.New(d.sources(), exporter.Options{})
				h := e.Handler(handlerOptions())
				at := func(offset time.Duration) { time.Sleep(time.Until(d.started.Add(offset))) }
				scrape(t, h)

				at(10 * time.Second)
				var slow sync.WaitGroup
				slow.Go(func() { scrape(t, h) }) // reads at 10 s
				at(10*time.Second + 100*time.Millisecond)
				allocateOnNode(e, d, "GPU-0", "GPU-0=")

				for _, step := range []struct {
					seconds           time.Duration
					allocations, want string
				}{{20, "GPU-0=n/b/c", "n/b/c 9900"}, {30, "", "- 10100"}, {40, "GPU-0=n/b/c", "n/b/c 19900"}} {
					at(step.seconds * time.Second)
					d.allocate(strings.Fields(step.allocations)...)
					assertSeries(t, scrape(t, h), "energy_joules_total GPU-0 "+step.want)
				}
				slow.Wait()
				e.Drain()
			})
		})
	}
}

// TestEnergyIsDividedIfOwnerIsKnownEarly covers a collection that starts before Allocate but already lists the new owner.
func TestEnergyIsDividedIfOwnerIsKnownEarly(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		d := newScrapeFixture(1)
		d.joulesPerMillisecond = 1
		list := time.Duration(0)
		d.onList = func(context.Context) { time.Sleep(list) }
		e := exporter.New(d.sources(), exporter.Options{})
		h := e.Handler(handlerOptions())
		scrape(t, h)
		time.Sleep(time.Second)
		list = 500 * time.Millisecond
		early := make(chan string, 1)
		go func() { early <- scrape(t, h) }()
		time.Sleep(100 * time.Millisecond)
		allocateOnNode(e, d, "GPU-0", "GPU-0=n/b/c")                  // at 1.1 s
		assertSeries(t, <-early, "energy_joules_total GPU-0 n/b/c 0") // at 1.5 s, from a reading at 1 s
		list = 0
		time.Sleep(1500 * time.Millisecond)
		assertSeries(t, scrape(t, h), "energy_joules_total GPU-0 n/b/c 1900")
		d.allocate()
		assertSeries(t, scrape(t, h), "energy_joules_total GPU-0 - 1100")
		e.Drain()
	})
}

// TestAllocateReadsOneGPU checks that an Allocate reads only its GPU, and reads nothing if counters have the driver's values.
func TestAllocateReadsOneGPU(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		for stable, want := range map[bool]int{false: 1, true: 0} {
			d := newScrapeFixture(8)
			reads := 0
			d.onReadOne = func(*health.Reading) { reads++ }
			e := exporter.New(d.sources(), exporter.Options{StableSeries: stable})
			e.BeginAllocate("GPU-3", "GPU-3", "GPU-unknown")()
			e.Drain()
			if reads != want || d.readCalls != 0 || d.listCalls != 0 {
				t.Errorf("stable %v: got %d reads, %d collections and %d List calls", stable, reads, d.readCalls, d.listCalls)
			}
		}
	})
}
