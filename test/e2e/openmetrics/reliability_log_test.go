package openmetrics

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/podgauge/podgauge/internal/device"
)

// The log of a fleet, for the rules of reliability. Times are in seconds.
const (
	logDuration   = 6 * 3600
	logSlot       = 1800 // an event of a node ends within its slot, ten minutes before the next
	logNodes      = 3
	logGPUs       = 3  // of a node; the first one of the last node has two MIG devices
	logScrapes    = 30 // interval
	logEvaluation = 60 // interval
	// boundaryError is how much a begin or end of a time without exported devices may be off.
	boundaryError = logEvaluation + logScrapes
)

// interval is a time from the first second to before the last one.
type interval struct{ begin, end int }

func (i interval) has(second int) bool { return i.begin <= second && second < i.end }

// faultLog is a fault of a GPU: unhealthy, then recovering.
type faultLog struct {
	interval
	recovering int // from this second on
	reason     string
	isFailure  bool
}

// gpuLog is the place of a GPU in a node.
type gpuLog struct {
	namespace string // of the container that has the GPU whenever it is healthy
	faults    []faultLog
	retired   []interval
	swaps     []int // the GPU is another one from this second on
}

// nodeLog is a node and the events of its podgauge.
type nodeLog struct {
	name     string
	gpus     []gpuLog
	stops    []interval   // without podgauge; shorter ones are restarts, longer ones reboots
	noDriver []interval   // after a reboot
	unseen   []interval   // without scrapes, for minutes
	missed   map[int]bool // scrapes
}

const minReboot = 240 // s

// newLog returns a log with random events.
func newLog(seed uint64) (nodes []*nodeLog) {
	random := rand.New(rand.NewPCG(seed, 29))
	between := func(low, high int) int { return low + random.IntN(high-low) }
	for n := range logNodes {
		node := &nodeLog{name: fmt.Sprintf("node-%d", n), gpus: make([]gpuLog, logGPUs), missed: map[int]bool{}}
		nodes = append(nodes, node)
		for g := range node.gpus {
			node.gpus[g].namespace = []string{"", "ml", "web"}[random.IntN(3)]
		}
		for begin := logSlot; begin < logDuration; begin += logSlot { // the first slot is quiet
			node.addEvent(&node.gpus[random.IntN(logGPUs)], begin+between(0, 120), between)
		}
	}
	return nodes
}

// addEvent adds an event that lasts at most 18 minutes.
func (n *nodeLog) addEvent(g *gpuLog, at int, between func(low, high int) int) {
	fault := func(reason string, duration int) *faultLog {
		end := at + duration
		g.faults = append(g.faults, faultLog{interval{at, end + between(6, 60)}, end, reason, reason != "xid_31"})
		return &g.faults[len(g.faults)-1]
	}
	reboot := func(begin int) (end int) {
		stop := interval{begin, begin + between(minReboot, 600)}
		n.stops = append(n.stops, stop)
		n.noDriver = append(n.noDriver, interval{stop.end, stop.end + between(1, 60)})
		return stop.end
	}
	switch between(0, 12) {
	case 0: // a fault between two scrapes, or a long one
		fault("xid_48", between(1, 20))
	case 1:
		fault("xid_119", between(60, 900))
	case 2: // of an application, by policy
		fault("xid_31", between(60, 300))
	case 3:
		n.stops = append(n.stops, interval{at, at + between(5, 45)})
	case 4: // a restart within a fault
		f := fault("xid_95", between(300, 600))
		n.stops = append(n.stops, interval{f.begin + 120, f.begin + 120 + between(5, 45)})
	case 5:
		reboot(at)
	case 6: // a reboot repairs
		f := fault("xid_79", 120)
		f.recovering = reboot(f.end)
		f.end = f.recovering + 120
	case 7: // a replacement
		f := fault("xid_64", 150)
		f.recovering = f.end
		g.swaps = append(g.swaps, reboot(f.end)-60)
	case 8: // scrapes that Prometheus misses
		for s := range 2 {
			n.missed[at/logScrapes+s] = true
		}
		fault("xid_62", between(60, 400))
	case 9:
		g.retired = append(g.retired, interval{at, at + between(300, 1000)})
	case 10: // Prometheus cannot reach the node within a fault
		f := fault("xid_140", between(700, 1000))
		n.unseen = append(n.unseen, interval{f.begin + 120, f.begin + 120 + between(180, 500)})
	case 11: // the driver does not list the GPU
		fault(device.ReasonGone, between(60, 1000))
	}
}

func hasSecond(all []interval, second int) *interval {
	if i := slices.IndexFunc(all, func(i interval) bool { return i.has(second) }); i >= 0 {
		return &all[i]
	}
	return nil
}

// state returns the health of a GPU by the log.
func (g *gpuLog) state(second int) (device.Health, string) {
	if hasSecond(g.retired, second) != nil {
		return device.Unhealthy, device.ReasonRetired
	}
	for _, f := range g.faults {
		if f.has(second) {
			if second < f.recovering {
				return device.Unhealthy, f.reason
			}
			return device.Recovering, f.reason
		}
	}
	return device.Healthy, ""
}

// isExported reports whether podgauge exports a GPU that its driver does not list: for ten minutes.
func (g *gpuLog) isExported(second int) bool {
	for _, f := range g.faults {
		if f.reason == device.ReasonGone && f.begin+600 <= second && second < f.recovering {
			return false
		}
	}
	return true
}

// replaced returns how many GPUs were in the place before.
func (g *gpuLog) replaced(second int) (n int) {
	for _, swap := range g.swaps {
		if swap <= second {
			n++
		}
	}
	return n
}

// lossKey is what lost time is counted by.
type lossKey struct {
	node, class, reason, namespace string
	sampled                        bool // not by podgauge's counter
}

func (k lossKey) String() string {
	return strings.TrimSpace(fmt.Sprintf("%s %s %s %s", k.node, k.class, k.reason, k.namespace))
}

// loss is time in GPU-seconds, and how much the rules may be off.
type loss struct{ seconds, tolerance int }

// reliability is what the rules must find, by node; lost time by all of lossKey.
type reliability struct {
	lost, inService, retired map[string]*loss
	failed                   map[string]*loss // from failures to recoveries
	failures, replacements   map[string]*loss // numbers
}

func at(all map[string]*loss, key string) *loss {
	if all[key] == nil {
		all[key] = &loss{}
	}
	return all[key]
}

// measure counts a log.
func measure(nodes []*nodeLog) reliability {
	r := reliability{
		map[string]*loss{}, map[string]*loss{}, map[string]*loss{}, map[string]*loss{}, map[string]*loss{}, map[string]*loss{},
	}
	for _, n := range nodes {
		for i := range n.gpus {
			g := &n.gpus[i]
			at(r.replacements, n.name).seconds += len(g.swaps)
			previous, isFailed := lossKey{}, false
			for second := range logDuration {
				key := g.lossOf(n, second)
				isLost := key.class != "" && key.class != "retired"
				if key.class == "retired" {
					at(r.retired, n.name).seconds++
				} else {
					at(r.inService, n.name).seconds++
				}
				if isLost {
					at(r.lost, key.String()).seconds++
				}
				wasFailed := isFailed
				if isFailed = isLost && (isFailed || key.class == "unhealthy" && key.reason != "xid_31"); isFailed {
					at(r.failed, n.name).seconds++
				}
				if isFailed && !wasFailed {
					at(r.failures, n.name).seconds++
				}
				if key != previous {
					r.addBoundary(n.name, previous, key)
				}
				previous = key
				if stop := hasSecond(n.stops, second); key.class == "unhealthy" && stop != nil && stop.begin == second {
					// podgauge loses the time from its last scrape until it is back.
					lost := stop.end - stop.begin + logScrapes + 1
					at(r.lost, key.String()).tolerance += lost
					at(r.failed, n.name).tolerance += lost
				}
			}
		}
	}
	return r
}

// addBoundary adds the tolerance of a change. Changes that podgauge's counters have are exact.
func (r reliability) addBoundary(node string, from, to lossKey) {
	if from.class == "retired" || to.class == "retired" {
		at(r.retired, node).tolerance += boundaryError
		at(r.inService, node).tolerance += boundaryError
		return
	}
	if !from.sampled && !to.sampled {
		return
	}
	at(r.failed, node).tolerance += boundaryError
	for _, key := range []lossKey{from, to} {
		if key.class != "" {
			at(r.lost, key.String()).tolerance += boundaryError
		}
	}
}

// lossOf returns the key of a second of a GPU; without class: the GPU works.
func (g *gpuLog) lossOf(n *nodeLog, second int) lossKey {
	key := lossKey{node: n.name}
	health, reason := g.state(second)
	stop := hasSecond(n.stops, second)
	isReboot := stop != nil && stop.end-stop.begin >= minReboot
	switch {
	case reason == device.ReasonRetired:
		key.class = reason
		return key
	case isReboot || hasSecond(n.unseen, second) != nil:
		key.class, key.sampled = "no_podgauge", true
	case hasSecond(n.noDriver, second) != nil:
		key.class, key.reason, key.sampled = "no_driver", "driver", true
	case health != device.Healthy:
		key.class, key.reason, key.sampled = "unhealthy", reason, !g.isExported(second)
	default:
		return key
	}
	key.namespace = g.namespace
	return key
}

// logSeries are the scraped series of a log, in promtool's notation with a value for each scrape, by name and labels.
type logSeries map[string][]string

// scrapeLog returns what Prometheus scrapes.
func scrapeLog(nodes []*nodeLog) logSeries {
	all := logSeries{}
	for _, n := range nodes {
		times := map[string]device.HealthTimes{} // of the GPUs, in this process
		var exported map[string]string
		for second := range logDuration + 1 {
			isUp := hasSecond(n.stops, second) == nil
			hasDriver := isUp && hasSecond(n.noDriver, second) == nil
			if !isUp {
				clear(times)
			}
			now := time.Unix(int64(second), 0)
			for i := range n.gpus {
				g, id := &n.gpus[i], n.uuid(i, second)
				if !g.isExported(second) {
					delete(times, id)
				} else if hasDriver {
					health, reason := g.state(second)
					times[id] = times[id].Enter(health, reason, now)
				}
			}
			if second%logScrapes != 0 {
				continue
			}
			previous := exported
			exported = map[string]string{}
			if isUp && !n.missed[second/logScrapes] && hasSecond(n.unseen, second) == nil {
				exported[fmt.Sprintf(`podgauge_nvml_up{node=%q}`, n.name)] = map[bool]string{true: "1", false: "0"}[hasDriver]
				for i := range n.gpus {
					if hasDriver && n.gpus[i].isExported(second) {
						n.export(i, second, times[n.uuid(i, second)], exported)
					}
				}
			}
			exported[fmt.Sprintf(`up{node=%q,job="podgauge"}`, n.name)] = map[bool]string{true: "1", false: "0"}[len(exported) > 0]
			for series, value := range exported {
				all.set(series, second/logScrapes, value)
			}
			for series := range previous {
				if exported[series] == "" {
					all.set(series, second/logScrapes, "stale")
				}
			}
		}
	}
	return all
}

func (l logSeries) set(series string, scrape int, value string) {
	for len(l[series]) < scrape {
		l[series] = append(l[series], "_")
	}
	l[series] = append(l[series], value)
}

func (n *nodeLog) uuid(gpu, second int) string {
	return fmt.Sprintf("GPU-%s-%d-%d", n.name, gpu, n.gpus[gpu].replaced(second))
}

// export adds the series of a GPU.
func (n *nodeLog) export(gpu, second int, times device.HealthTimes, exported map[string]string) {
	g, uuid := &n.gpus[gpu], n.uuid(gpu, second)
	devices := []string{""}
	if gpu == 0 && n.name == fmt.Sprintf("node-%d", logNodes-1) {
		devices = append(devices, "MIG-a-"+uuid, "MIG-b-"+uuid)
	}
	for k, mig := range devices {
		labels := fmt.Sprintf(`node=%q,gpu="%d",uuid=%q,mig_uuid=%q`, n.name, gpu, uuid, mig)
		exported[fmt.Sprintf(`nvidia_gpu_info{%s,model="H100",driver_version="580",chassis_serial="c-%s",pci_bus_id="0%d:00.0"}`, labels, n.name, gpu)] = "1"
		for _, t := range times {
			series := fmt.Sprintf(`nvidia_gpu_health_state_seconds_total{%s,state=%q,reason=%q}`, labels, t.Health, t.Reason)
			exported[series] = fmt.Sprint(int(t.Until(time.Unix(int64(second), 0)).Seconds()))
		}
		health, reason := g.state(second)
		if reason != "" {
			exported[fmt.Sprintf(`nvidia_gpu_unhealthy_info{%s,reason=%q,action=""}`, labels, reason)] = "1"
		}
		// The pod of a failed GPU fails at once.
		if isPartitioned := len(devices) > 1 && k == 0; health == device.Healthy && g.namespace != "" && !isPartitioned {
			exported[fmt.Sprintf(`nvidia_gpu_allocation_info{%s,namespace=%q,pod="p",container="c"}`, labels, g.namespace)] = "1"
		}
	}
}
