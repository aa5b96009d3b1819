package dashboards

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

const (
	gpusPerNode = 8
	// fleetStep is the time between two scrapes.
	fleetStep = 30 * time.Second
	// podMeanLife is the mean life of a pod, and podMeanGap the mean time until the next pod.
	podMeanLife = 2 * time.Hour
	podMeanGap  = 10 * time.Minute
	// fleetClusters is the number of clusters.
	fleetClusters   = 2
	fleetNamespaces = 24
)

// Fractions of unusual nodes and pods.
const (
	migNodes  = 0.06 // nodes with partitioned GPUs
	idlePods  = 0.1
	faultPods = 0.03 // pods with a fault of a GPU
	lostPods  = 0.01 // of them, pods with a lost GPU
	pending   = 0.02 // pending pods for each GPU
)

// fleetOptions describe a fleet.
type fleetOptions struct {
	nodes int
	seed  uint64
	epoch time.Time
	steps int // scrapes
}

// fleetModel is a fleet of nodes.
type fleetModel struct {
	fleetOptions
	*templates
	all []fleetNode
}

// fleetNode is a node with the GPUs and pods of all steps.
type fleetNode struct {
	name, cluster, instance string
	index                   int
	gpus                    [gpusPerNode][]segment
	pods                    []fleetPod
}

// segment is a time in which a GPU has the same series.
type segment struct {
	kind     gpuKind
	from, to int // steps
	pod      int // index; -1 if none
}

// fleetPod is a pod with GPUs of a node, or a pending pod.
type fleetPod struct {
	namespace, name, uid string
	gpus                 int
	from, to             int
	failed               int // step; -1 if never
	pending              bool
	load                 float64
}

// newFleetModel returns a fleet of nodes with the metrics of a simulated node.
func newFleetModel(n nodeScrapes, o fleetOptions) (*fleetModel, error) {
	t, err := newTemplates(n)
	if err != nil {
		return nil, err
	}
	f := &fleetModel{fleetOptions: o, templates: t}
	for i := range o.nodes {
		f.all = append(f.all, f.newNode(i))
	}
	return f, nil
}

// podSizes are ways to divide the GPUs of a node among pods.
var podSizes = [][]int{{8}, {8}, {4, 4}, {4, 2, 2}, {2, 2, 2, 2}, {4, 2, 1, 1}, {1, 1, 1, 1, 1, 1, 1, 1}}

func (f *fleetModel) newNode(i int) fleetNode {
	random := rand.New(rand.NewPCG(f.seed, uint64(i)))
	n := fleetNode{
		name: fmt.Sprintf("gpu-node-%04d", i), cluster: fmt.Sprintf("cluster-%c", 'a'+i%fleetClusters),
		instance: fmt.Sprintf("10.%d.%d.%d:9400", 1+i%fleetClusters, i/250, 1+i%250), index: i,
	}
	gpu := 0
	partitioned := random.Float64() < migNodes
	for _, size := range podSizes[random.IntN(len(podSizes))] {
		kind := allocated
		if partitioned && gpu >= gpusPerNode/2 {
			kind = mig
		}
		n.fill(random, gpu, size, kind, f.steps)
		gpu += size
	}
	for range gpusPerNode {
		if random.Float64() < pending {
			from := random.IntN(f.steps)
			n.addPod(random, fleetPod{gpus: 1 << random.IntN(4), from: from, to: min(f.steps, from+drawSteps(random, podMeanLife/4)), pending: true})
		}
	}
	return n
}

// drawSteps draws a duration.
func drawSteps(random *rand.Rand, mean time.Duration) int {
	return 1 + int(random.ExpFloat64()*float64(mean/fleetStep))
}

func (n *fleetNode) addPod(random *rand.Rand, p fleetPod) int {
	team := random.IntN(fleetNamespaces)
	p.namespace = fmt.Sprintf("team-%02d", team)
	p.name = fmt.Sprintf("%s-%05x-%05x", []string{"train", "serve", "finetune", "notebook", "batch"}[random.IntN(5)], random.IntN(1<<20), random.IntN(1<<20))
	p.uid = fmt.Sprintf("%08x-%04x-4000-8000-%012x", random.Uint32(), random.IntN(1<<16), random.Uint64()>>16)
	p.failed = -1
	if p.load = 0.2 + 0.7*random.Float64(); random.Float64() < idlePods {
		p.load = 0
	}
	n.pods = append(n.pods, p)
	return len(n.pods) - 1
}

// fill allocates a group of GPUs to one pod after another.
func (n *fleetNode) fill(random *rand.Rand, gpu, size int, kind gpuKind, end int) {
	at := -random.IntN(int(podMeanLife / fleetStep))
	for at < end {
		to := at + drawSteps(random, podMeanLife)
		gap := drawSteps(random, podMeanGap)
		if kind == mig { // MIG mode does not change
			gap = 0
		}
		if to > 0 {
			n.addSegments(gpu, size, segment{kind, max(at, 0), min(to, end), n.addPod(random, fleetPod{gpus: size, from: max(at, 0), to: min(to, end)})})
			if kind == allocated {
				n.fail(random, gpu+random.IntN(size))
			}
		}
		if to+gap > 0 && to < end && gap > 0 {
			n.addSegments(gpu, size, segment{unallocated, max(to, 0), min(to+gap, end), -1})
		}
		at = to + gap
	}
}

func (n *fleetNode) addSegments(gpu, size int, s segment) {
	for g := gpu; g < gpu+size; g++ {
		n.gpus[g] = append(n.gpus[g], s)
	}
}

// fail makes a GPU fail during the latest pod, for a small fraction of pods. The GPU recovers at the end of the pod.
func (n *fleetNode) fail(random *rand.Rand, gpu int) {
	fault, draw := applicationFault, random.Float64()
	if draw < lostPods {
		fault = lost
	}
	if draw > faultPods || slices.ContainsFunc(n.gpus[gpu], func(s segment) bool { return s.kind.isFault() }) {
		return
	}
	last := len(n.gpus[gpu]) - 1
	s := n.gpus[gpu][last]
	at := s.from + random.IntN(s.to-s.from)
	if at == s.from {
		return
	}
	n.gpus[gpu][last].to = at
	n.gpus[gpu] = append(n.gpus[gpu], segment{fault, at, s.to, s.pod})
	n.pods[s.pod].failed = at
}
