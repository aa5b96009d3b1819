package dashboards

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// nodeScrapes are two scrapes of a simulated node with fleetScript. The fleet's metrics derive from these scrapes.
type nodeScrapes struct {
	first, second string
	interval      time.Duration
}

// fleetScript is the script of the simulated node. The pods' names are the kinds of their GPUs; a GPU without pod is unallocated.
const fleetScript = `machine h100

0s    partition 7 1g.10gb 1g.10gb 3g.40gb
1s    pod team/allocated main=1
1s    pod team/application-fault main=1
1s    pod team/lost main=1
2s    pod team/mig-0 main=1,nvidia.com/mig-1g.10gb
2s    pod team/mig-1 main=1,nvidia.com/mig-3g.40gb
5s    xid team/application-fault 31
5s    xid team/lost 79
`

// fleetScriptPods is the number of pods in fleetScript, and fleetScriptIncidents the number of incidents.
const (
	fleetScriptPods      = 5
	fleetScriptIncidents = 2
)

// gpuKind is a state of a GPU with its own set of series.
type gpuKind int

const (
	unallocated gpuKind = iota
	allocated
	applicationFault
	lost
	mig
	kinds // number of kinds
)

// isFault reports whether the kind is of a GPU with a fault.
func (k gpuKind) isFault() bool { return k == applicationFault || k == lost }

// podsOfKinds are names of pods in fleetScript.
var podsOfKinds = [kinds]string{"", "allocated", "application-fault", "lost", "mig-0"}

// label is a label of a series.
type label struct{ name, value string }

// templateSeries is a series of the simulated node.
type templateSeries struct {
	labels []label // by name
	key    string  // identifies the series within a kind
	owned  bool    // the series ends with the pod
	kept   bool    // the series outlives the pod, with the latest value
	plugin bool    // the value is the number of devices
	clock  clock
	idle   reading // of an unallocated GPU
	busy   reading
}

// reading is a value, and the growth per second of a counter.
type reading struct{ value, rate float64 }

// clock is the time that a series has as value.
type clock int

const (
	noClock     clock = iota
	currentTime       // of each scrape
	eventTime         // constant
)

// keptFamilies outlive a pod. podgauge keeps these families for a day.
var keptFamilies = []string{"nvidia_gpu_allocation_last_seen_", "nvidia_gpu_allocation_device_failure", "nvidia_gpu_allocation_application_error", "nvidia_gpu_incident", "nvidia_gpu_xid_"}

// templates are the series of the simulated node.
type templates struct {
	node  []templateSeries // without GPU
	gpu   [kinds][]templateSeries
	keys  [kinds]map[string]bool
	count int
}

// newTemplates groups the series of a node by kind of GPU.
func newTemplates(n nodeScrapes) (*templates, error) {
	first, err := parse(n.first)
	if err != nil {
		return nil, err
	}
	second, err := parse(n.second)
	if err != nil {
		return nil, err
	}
	before := map[string]float64{}
	for _, s := range first {
		before[s.Metric.String()] = float64(s.Value)
	}
	uuids, err := uuidsOfKinds(second)
	if err != nil {
		return nil, err
	}
	t := &templates{count: len(second)}
	for _, s := range second {
		series := newTemplateSeries(s, before, n.interval)
		uuid := string(s.Metric["uuid"])
		if k := slices.Index(uuids[:], uuid); k >= 0 {
			t.gpu[k] = append(t.gpu[k], series)
		} else if uuid == "" {
			t.node = append(t.node, series)
		}
	}
	idle := map[string]reading{}
	for _, s := range t.gpu[unallocated] {
		idle[s.identity()] = s.busy
	}
	for k := range kinds {
		t.keys[k] = map[string]bool{}
		for i := range t.gpu[k] {
			s := &t.gpu[k][i]
			t.keys[k][s.key] = true
			if reading, ok := idle[s.identity()]; ok {
				s.idle = reading
			}
		}
	}
	return t, nil
}

// parse returns the samples of a scrape, sorted by name and labels.
func parse(text string) (model.Vector, error) {
	decoder := expfmt.SampleDecoder{
		Dec: expfmt.NewDecoder(strings.NewReader(text), expfmt.NewFormat(expfmt.TypeTextPlain)), Opts: &expfmt.DecodeOptions{},
	}
	var all model.Vector
	for {
		var some model.Vector
		err := decoder.Decode(&some)
		all = append(all, some...)
		if errors.Is(err, io.EOF) {
			slices.SortFunc(all, func(a, b *model.Sample) int { return cmp.Compare(a.Metric.String(), b.Metric.String()) })
			return all, nil
		}
		if err != nil {
			return nil, fmt.Errorf("parse a scrape: %w", err)
		}
	}
}

// uuidsOfKinds returns the UUID of a GPU of each kind.
func uuidsOfKinds(scrape model.Vector) (uuids [kinds]string, err error) {
	for _, s := range scrape {
		k := slices.Index(podsOfKinds[:], string(s.Metric["pod"]))
		if s.Metric[model.MetricNameLabel] == "nvidia_gpu_allocated" && k >= 0 && (k > 0 || s.Metric["mig_uuid"] == "") {
			uuids[k] = string(s.Metric["uuid"])
		}
	}
	if slices.Contains(uuids[:], "") {
		return uuids, fmt.Errorf("the scrape lacks a kind of GPU: %q", uuids)
	}
	return uuids, nil
}

func newTemplateSeries(s *model.Sample, before map[string]float64, interval time.Duration) templateSeries {
	t := templateSeries{busy: reading{value: float64(s.Value)}, owned: s.Metric["pod"] != ""}
	name := string(s.Metric[model.MetricNameLabel])
	if old, ok := before[s.Metric.String()]; ok && (strings.HasSuffix(name, "_total") || strings.HasSuffix(name, "_bucket") || strings.HasSuffix(name, "_count") || strings.HasSuffix(name, "_sum")) {
		t.busy.rate = (t.busy.value - old) / interval.Seconds()
	}
	if strings.HasSuffix(name, "_timestamp_seconds") {
		t.clock = eventTime
		if old, ok := before[s.Metric.String()]; ok && t.busy.value > old {
			t.clock = currentTime
		}
	}
	t.plugin = name == "podgauge_plugin_devices" && s.Metric["health"] == "healthy"
	t.kept = slices.ContainsFunc(keptFamilies, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
	t.idle = t.busy
	for name, value := range s.Metric {
		t.labels = append(t.labels, label{string(name), string(value)})
	}
	slices.SortFunc(t.labels, func(a, b label) int { return cmp.Compare(a.name, b.name) })
	t.key = fmt.Sprint(t.identity(), t.owned)
	return t
}

// identity is the same for the series of all GPUs of a node.
func (t *templateSeries) identity() string {
	var text strings.Builder
	for _, l := range t.labels {
		switch l.name {
		case "uuid", "gpu", "minor", "serial", "pci_bus_id", "numa_node", "device_id", "pod", "namespace", "container":
		default:
			fmt.Fprintf(&text, "%s=%q,", l.name, l.value)
		}
	}
	return text.String()
}

// at returns the value after some seconds under a load; 1 is the full load. The simulated pods have the load 0.4.
func (t *templateSeries) at(seconds, loadSeconds, load float64) float64 {
	const simulatedLoad = 0.4
	if t.busy.rate != 0 || t.idle.rate != 0 {
		return t.idle.rate*seconds + (t.busy.rate-t.idle.rate)/simulatedLoad*loadSeconds
	}
	if t.idle.value == t.busy.value || t.busy.value <= 1 && t.busy.value == math.Trunc(t.busy.value) { // a state
		return t.busy.value
	}
	return math.Max(0, t.idle.value+(t.busy.value-t.idle.value)/simulatedLoad*load)
}
