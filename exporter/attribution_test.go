package exporter_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/podgauge/podgauge/exporter"
	"github.com/podgauge/podgauge/internal/allocation"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/health"
	"github.com/podgauge/podgauge/test/bubble"
	"github.com/podgauge/podgauge/test/helpers/require"
)

// energySeries matches the energy of GPU-0.
var energySeries = regexp.MustCompile(`nvidia_gpu_energy_joules_total{.*pod="(\w*)",uuid="GPU-0"} (\S+)`)

// scrapeEnergy returns the counter of GPU-0, and the pod.
func scrapeEnergy(t *testing.T, h http.Handler) (pod string, joules float64) {
	t.Helper()
	text := scrape(t, h)
	found := energySeries.FindStringSubmatch(text)
	if found == nil {
		t.Fatalf("no energy in\n%s", text)
	}
	joules, err := strconv.ParseFloat(found[2], 64)
	require.NoError(t, err)
	return found[1], joules
}

// TestEnergySumsUp checks on random histories of a GPU that the counters of all pods sum up to the increase of the GPU's counter, and that no
// counter falls. Readings at Allocate are late, reordered or fail; the kubelet is slow or does not respond, and the driver is reloaded.
func TestEnergySumsUp(t *testing.T) {
	for seed := range uint64(100) {
		bubble.Test(t, func(t *testing.T) {
			var mu sync.Mutex
			r := rand.New(rand.NewPCG(seed, 1)) // guarded by mu
			random := func(n int) int {
				mu.Lock()
				defer mu.Unlock()
				return r.IntN(n)
			}
			d := newScrapeFixture(1)
			d.onList = func(context.Context) { time.Sleep(time.Duration(random(300)) * time.Millisecond) }
			d.onReadOne = func(reading *health.Reading) {
				time.Sleep(time.Duration(random(900)) * time.Millisecond)
				if random(4) == 0 {
					reading.Err = device.ErrStalled
				}
			}
			e := exporter.New(d.sources(), exporter.Options{})
			h := e.Handler(handlerOptions())
			total, counters := 0.0, map[string]float64{}
			check := func() {
				pod, joules := scrapeEnergy(t, h)
				if joules < counters[pod] {
					t.Fatalf("seed %d: counter of %q fell from %f to %f", seed, pod, counters[pod], joules)
				}
				counters[pod] = joules
			}
			d.addEnergy("GPU-0", 1000) // before the start
			check()
			for range 60 {
				time.Sleep(time.Duration(random(1200)) * time.Millisecond)
				switch event := random(12); {
				case event == 0: // the driver is reloaded between two collections
					e.Drain()
					for range 2 {
						d.allocate(fmt.Sprintf("GPU-0=n/p%d/c", random(3)))
						check()
						d.addEnergy("GPU-0", -d.joules["GPU-0"])
					}
				case event == 1:
					d.setAllocations(allocation.Snapshot{}) // the kubelet is absent
				case event < 4:
					d.allocate()
				case event < 6:
					allocateOnNode(e, d, "GPU-0", "GPU-0=")
				case event < 9:
					d.allocate(fmt.Sprintf("GPU-0=n/p%d/c", random(3)))
				default:
					check()
				}
				joules := float64(random(100))
				d.addEnergy("GPU-0", joules)
				total += joules
			}
			e.Drain()
			d.allocate("GPU-0=n/p0/c")
			check() // ends the previous share
			for _, row := range []string{"GPU-0=n/p0/c", "GPU-0=n/p1/c", "GPU-0=n/p2/c", "GPU-0::0=n/p0/c GPU-0::1=n/p1/c"} {
				d.allocate(strings.Fields(row)...)
				check()
			}
			sum := 0.0
			for joules := range maps.Values(counters) {
				sum += joules
			}
			if sum != total {
				t.Fatalf("seed %d: sum of %v: got %f, want %f", seed, counters, sum, total)
			}
		})
	}
}

// energyNode is a GPU whose counter has values of the test.
type energyNode struct {
	*scrapeFixture
	t       *testing.T
	e       *exporter.Exporter
	h       http.Handler
	readErr error         // of the readings at Allocate
	late    chan struct{} // if not nil, these readings end when it is closed
}

func newEnergyNode(t *testing.T) *energyNode {
	n := &energyNode{scrapeFixture: newScrapeFixture(2), t: t}
	n.onReadOne = func(r *health.Reading) {
		r.Err = n.readErr
		if late := n.late; late != nil {
			<-late
		}
	}
	n.e = exporter.New(n.sources(), exporter.Options{})
	n.h = n.e.Handler(handlerOptions())
	return n
}

// collect makes a collection at a value of the counter, of devices with these owners.
func (n *energyNode) collect(joules float64, owners, want string) {
	n.t.Helper()
	n.addEnergy("GPU-0", joules-n.joules["GPU-0"])
	if owners == "unknown" {
		n.setAllocations(allocation.Snapshot{})
	} else {
		n.allocate(strings.Fields(owners)...)
	}
	if text := expand("energy_joules_total GPU-0 " + want); !strings.Contains(scrape(n.t, n.h), text+"\n") {
		n.t.Errorf("at %v J: missing %s", joules, text)
	}
}

// beginAllocate is an Allocate at a value of the counter.
func (n *energyNode) beginAllocate(id device.ID, joules float64) {
	n.addEnergy("GPU-0", joules-n.joules["GPU-0"])
	n.e.BeginAllocate(id)()
	synctest.Wait()
}

// beginLateAllocate is an Allocate whose reading ends with the returned function.
func (n *energyNode) beginLateAllocate(joules float64) (end func()) {
	late := make(chan struct{})
	n.late = late
	n.beginAllocate("GPU-0", joules)
	n.late = nil
	return func() {
		close(late)
		synctest.Wait()
	}
}

const podA, podB, podC = "GPU-0=n/a/c", "GPU-0=n/b/c", "GPU-0=n/c/c"

func TestEnergyIsAttributedToOwner(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		n := newEnergyNode(t)
		n.collect(5000, "", "- 0")         // energy from before the start is not counted
		n.collect(5001, podA, "n/a/c 0")   // a counter starts at 0
		n.collect(5101, podA, "n/a/c 100") // then the counter grows by the increase
		n.collect(5111, "", "- 1")         // the rest is the pod's
		n.collect(5111, "GPU-0=", "- 1")   // Allocate
		n.collect(5151, "GPU-0=", "- 1")   // pending until the owner is known
		n.collect(5153, podB, "n/b/c 42")  // then attributed to this owner
		n.collect(5653, podB, "n/b/c 542")
		assertAbsent(t, scrape(t, n.h), `pod="a"`) // the series of pod a has ended
		n.collect(5653, podA, "n/a/c 110")         // the counter continues with the pod
	})
}

// TestLateAllocateReading covers readings at Allocate that arrive after later collections or readings.
func TestLateAllocateReading(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		n := newEnergyNode(t)
		n.collect(100, podA, "n/a/c 0")
		endOfB := n.beginLateAllocate(110)
		n.collect(130, "GPU-0=", "- 0")
		n.collect(150, podB, "n/b/c 20")
		endOfB() // read before the collections
		n.collect(170, podB, "n/b/c 40")
		endOfRejected, endOfC := n.beginLateAllocate(190), n.beginLateAllocate(200)
		endOfC()
		endOfRejected()
		n.collect(210, podC, "n/c/c 10")
		n.collect(210, podB, "n/b/c 70")
		n.collect(210, podA, "n/a/c 30")
	})
}

// TestNewOwnerGetsNoEarlierIncrease covers a pod that is rejected after Allocate, or ends, without ever being listed.
func TestNewOwnerGetsNoEarlierIncrease(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		n := newEnergyNode(t)
		n.collect(100, "", "- 0")
		n.beginAllocate("GPU-0", 110)
		n.collect(110, "GPU-0=", "- 10") // the first owner, never listed
		n.beginAllocate("GPU-1", 200)
		n.collect(210, "GPU-0=", "- 10") // another device was allocated
		n.beginAllocate("GPU-0", 300)
		n.collect(310, "GPU-0=", "- 200")
		n.collect(330, "GPU-0=", "- 200")
		n.collect(340, podB, "n/b/c 40")
		n.collect(350, "", "- 200")
		n.beginAllocate("GPU-0", 360)
		n.collect(400, podB, "n/b/c 90") // only the energy since its Allocate
		n.beginAllocate("GPU-0", 410)
		n.readErr = device.ErrStalled
		n.beginAllocate("GPU-0", 420)
		n.collect(500, podB, "n/b/c 100")
		n.collect(510, "", "- 300")
	})
}

// TestEnergyWithUnknownOwner checks that the increase while the owner is unknown counts once, without labels.
func TestEnergyWithUnknownOwner(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		n := newEnergyNode(t)
		n.collect(1000, "unknown", "- 0")
		n.collect(1300, "unknown", "- 300")
		n.collect(1500, podA, "n/a/c 0")
		n.collect(1700, podA, "n/a/c 200")
		n.collect(1800, "unknown", "- 500")
		n.collect(1900, podA, "n/a/c 300")
		n.collect(1900, "", "- 600")
	})
}

// TestEnergyOfManyPods checks that the counters of the last eight pods continue after a return; others restart at 0.
func TestEnergyOfManyPods(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		n := newEnergyNode(t)
		n.collect(0, "", "- 0")
		const pods = 20
		for i := range pods {
			n.collect(float64(11*i), fmt.Sprintf("GPU-0=n/%d/c", i), fmt.Sprintf("n/%d/c 0", i))
			n.collect(float64(11*i+10), "", fmt.Sprintf("- %d", i))
		}
		n.collect(11*pods, "GPU-0=n/12/c", "n/12/c 10")
		n.collect(11*pods, "GPU-0=n/0/c", "n/0/c 0")
		n.collect(11*pods, "", fmt.Sprint("- ", pods))
	})
}
