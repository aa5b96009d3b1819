package dashboards

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// staleMarker is Prometheus' value for the end of a series.
var staleMarker = math.Float64frombits(0x7ff0000000000002)

// stepWindow is the window of written samples: from is included, to is excluded.
type stepWindow struct{ from, to int }

// fleetWriter writes the series of a node in a window.
type fleetWriter struct {
	*fleetModel
	*fleetNode
	stepWindow
	request *writeRequest
	labels  []label
}

// write adds a node's series for the steps of a window.
func (f *fleetModel) write(r *writeRequest, node, from, to int) {
	w := &fleetWriter{fleetModel: f, fleetNode: &f.all[node], stepWindow: stepWindow{from, to}, request: r}
	w.writeTarget()
	for i := range w.node {
		t := &w.node[i]
		devices := t.devices(w.fleetNode)
		if devices == 0 {
			continue
		}
		w.begin(t.labels, nil)
		w.samples(from, to, func(step int) float64 {
			if t.clock != noClock {
				return w.time(t.clock, 0, step)
			}
			if t.plugin {
				return float64(devices)
			}
			return t.at(float64(step)*fleetStep.Seconds(), 0, 0)
		})
	}
	for gpu := range w.gpus {
		w.writeGPU(gpu)
	}
	for i := range w.pods {
		w.writePod(&w.pods[i])
	}
	if node < fleetClusters {
		w.writeDaemonSet()
	}
}

// time returns the value of a series with a timestamp as value.
func (w *fleetWriter) time(c clock, event, step int) float64 {
	if c == eventTime {
		step = event
	}
	return float64(w.scrape(step).UnixMilli()) / 1000
}

// noise returns a number from 0 to 1 in hundredths.
func noise(seed uint64, salt, step int) float64 {
	x := seed ^ uint64(salt)<<32 ^ uint64(step)*0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return float64((x^x>>31)%101) / 100
}

// begin begins a series of the node with the target labels. It drops empty labels, as Prometheus does.
func (w *fleetWriter) begin(labels []label, change func(l label) string) {
	w.labels = append(w.labels[:0], label{"cluster", w.cluster}, label{"node", w.name}, label{"instance", w.instance}, label{"job", "podgauge"})
	for _, l := range labels {
		if change != nil {
			l.value = change(l)
		}
		w.labels = append(w.labels, l)
	}
	w.beginSeries()
}

func (w *fleetWriter) beginSeries() {
	w.labels = slices.DeleteFunc(w.labels, func(l label) bool { return l.value == "" })
	slices.SortFunc(w.labels, func(a, b label) int { return cmp.Compare(a.name, b.name) })
	w.request.begin(w.labels)
}

func (w *fleetWriter) samples(from, to int, value func(step int) float64) {
	for step := max(from, w.from); step < min(to, w.to); step++ {
		w.request.sample(w.scrape(step).UnixMilli(), value(step))
	}
}

// scrape returns the time of a scrape. The time within a step differs between targets.
func (w *fleetWriter) scrape(step int) time.Time {
	const spread = 97 * time.Millisecond // few scrapes are at a full second
	return w.epoch.Add(time.Duration(step)*fleetStep + time.Duration(1+w.index%(int(fleetStep/spread)-1))*spread)
}

// end marks the series as ended.
func (w *fleetWriter) end(step int) {
	w.samples(step, step+1, func(int) float64 { return staleMarker })
}

// writeTarget writes the series that Prometheus adds to a scrape.
func (w *fleetWriter) writeTarget() {
	for _, s := range []struct {
		name  string
		value float64
	}{{"up", 1}, {"scrape_samples_scraped", float64(w.count)}, {"scrape_duration_seconds", 0.01}} {
		w.begin([]label{{"__name__", s.name}}, nil)
		w.samples(w.from, w.to, func(int) float64 { return s.value })
	}
}

// devices returns the number of the node's devices of a series' resource, or 1 for a series without resource.
func (t *templateSeries) devices(n *fleetNode) (count int) {
	i := slices.IndexFunc(t.labels, func(l label) bool { return l.name == "resource" })
	if i < 0 {
		return 1
	}
	partitioned := strings.Contains(t.labels[i].value, "/mig-")
	for _, segments := range n.gpus {
		if (segments[0].kind == mig) == partitioned {
			count++
		}
	}
	return count
}

// writePod writes the series of kube-state-metrics for a pod.
func (w *fleetWriter) writePod(p *fleetPod) {
	if p.from >= w.to || p.to < w.from {
		return
	}
	for _, phase := range podPhases {
		w.beginKube("kube_pod_status_phase", p, label{"phase", phase})
		w.podSamples(p, func(step int) float64 {
			if phase == p.phase(step) {
				return 1
			}
			return 0
		})
	}
	node := w.name
	if p.pending {
		node = ""
	}
	if p.pending {
		w.beginKube("kube_pod_status_unschedulable", p)
		w.podSamples(p, func(int) float64 { return 1 })
	}
	w.beginKube("kube_pod_container_resource_requests", p, label{"container", "main"}, label{"node", node}, label{"resource", "nvidia_com_gpu"}, label{"unit", "integer"})
	w.podSamples(p, func(int) float64 { return float64(p.gpus) })
}

// writeDaemonSet writes the series of kube-state-metrics for podgauge's DaemonSet in the node's cluster.
func (w *fleetWriter) writeDaemonSet() {
	for _, name := range []string{"desired_number_scheduled", "number_ready", "updated_number_scheduled"} {
		w.beginCluster("kube_daemonset_status_"+name, label{"namespace", "podgauge"}, label{"daemonset", "podgauge"})
		w.samples(w.from, w.to, func(int) float64 { return float64(w.nodes / fleetClusters) })
	}
}

func (w *fleetWriter) beginKube(name string, p *fleetPod, labels ...label) {
	w.beginCluster(name, append(labels, label{"namespace", p.namespace}, label{"pod", p.name}, label{"uid", p.uid})...)
}

// beginCluster begins a series of kube-state-metrics.
func (w *fleetWriter) beginCluster(name string, labels ...label) {
	w.labels = append(append(w.labels[:0], labels...), label{"__name__", name}, label{"cluster", w.cluster}, label{"instance", "10.0.0.9:8080"}, label{"job", "kube-state-metrics"})
	w.beginSeries()
}

func (w *fleetWriter) podSamples(p *fleetPod, value func(step int) float64) {
	w.samples(p.from, p.to, value)
	if p.to < w.steps {
		w.end(p.to)
	}
}

// phase returns the phase of the pod.
func (p *fleetPod) phase(step int) string {
	switch {
	case p.pending:
		return "Pending"
	case p.failed >= 0 && step > p.failed:
		return "Failed"
	}
	return "Running"
}

// writeGPU writes the series of a GPU, segment by segment.
func (w *fleetWriter) writeGPU(gpu int) {
	load, total := w.loads(gpu)
	for i, s := range w.gpus[gpu] {
		next := segment{kind: -1}
		if i+1 < len(w.gpus[gpu]) {
			next = w.gpus[gpu][i+1]
		}
		if s.from >= w.to {
			return
		}
		for j := range w.gpu[s.kind] {
			t := &w.gpu[s.kind][j]
			w.writeSegment(t, gpu, s, next, load, total)
		}
	}
}

// loads returns the load of a GPU at each step, and the seconds of full load before the step.
func (w *fleetWriter) loads(gpu int) (load, total []float64) {
	load, total = make([]float64, w.to), make([]float64, w.to)
	sum := 0.0
	for _, s := range w.gpus[gpu] {
		for step := s.from; step < min(s.to, w.to); step++ {
			if s.pod >= 0 && w.pods[s.pod].load > 0 {
				load[step] = min(1, max(0.01, w.pods[s.pod].load+0.2*noise(w.seed, w.index*gpusPerNode+gpu, step)-0.1))
			}
			total[step] = sum
			sum += load[step] * fleetStep.Seconds()
		}
	}
	return load, total
}

// writeSegment writes a series of a segment that is in the window.
func (w *fleetWriter) writeSegment(t *templateSeries, gpu int, s, next segment, load, total []float64) {
	continues := next.kind >= 0 && w.keys[next.kind][t.key] && (!t.owned || next.pod == s.pod)
	end := s.to
	if t.kept && !continues {
		end = w.steps
	}
	if end < w.from {
		return
	}
	since := 0
	switch {
	case t.clock == eventTime && s.kind.isFault():
		since = s.from
	case t.owned:
		since = w.pods[s.pod].from
	}
	w.begin(t.labels, func(l label) string { return w.labelValue(l, gpu, s) })
	w.samples(s.from, end, func(step int) float64 {
		step = min(step, s.to-1) // kept series have the latest value
		if t.clock != noClock {
			return w.time(t.clock, since, step)
		}
		return t.at(float64(step-since)*fleetStep.Seconds(), total[step]-total[since], load[step])
	})
	if !continues && end < w.steps {
		w.end(end)
	}
}

// labelValue returns the value of a label for another node, GPU and pod.
func (w *fleetWriter) labelValue(l label, gpu int, s segment) string {
	switch l.name {
	case "uuid", "device_id", "mig_uuid":
		if suffix, ok := strings.CutPrefix(l.value, "MIG-"); ok {
			return fmt.Sprintf("MIG-%08x%s", w.index*gpusPerNode+gpu, suffix[8:]) // MIG-0000a107-5eed-5000-8000-000001000000
		}
		if l.value != "" {
			return fmt.Sprintf("GPU-%08x-5eed-4000-8000-%012x", w.index*gpusPerNode+gpu, gpu)
		}
	case "gpu", "minor":
		return strconv.Itoa(gpu)
	case "pci_bus_id":
		return fmt.Sprintf("0000:%02x:00.0", 0x1a+0x10*gpu)
	case "numa_node":
		return strconv.Itoa(gpu / (gpusPerNode / 2))
	case "serial":
		return fmt.Sprintf("165%07d", w.index*gpusPerNode+gpu)
	case "namespace":
		if l.value != "" && s.pod >= 0 {
			return w.pods[s.pod].namespace
		}
	case "pod":
		if l.value != "" && s.pod >= 0 {
			return w.pods[s.pod].name + strings.TrimPrefix(l.value, podsOfKinds[s.kind])
		}
	}
	return l.value
}
