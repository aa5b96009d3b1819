package preferred

import "github.com/podgauge/podgauge/internal/device"

// perNVLink outweighs any path: GPUs with one NVLink are nearer than those with
// none, wherever they sit.
const perNVLink = 100

// mostNVLinks is more than any GPU has (18 in 2026) and keeps sums of scores far
// from overflow, whatever a driver may say.
const mostNVLinks = 64

// pathScore is what two GPUs without NVLinks have between them. The steps are
// those of NVIDIA's go-gpuallocator.
var pathScore = [...]int{
	device.PathUnknown:          0,
	device.PathSameBoard:        60,
	device.PathSingleSwitch:     50,
	device.PathMultipleSwitches: 40,
	device.PathHostBridge:       30,
	device.PathNUMANode:         20,
	device.PathSystem:           10,
}

// sight is what is known of a pair of GPUs; it only ever gets worse.
type sight struct {
	nvlinks int
	path    device.Path
}

// scores is the square matrix of what each pair of GPUs has between them, from
// the lesser of what both see: a link that is down on one side carries nothing.
// A GPU has 0 to itself.
func scores(gpus map[device.GPU]int, nodes []int, links []device.Link) []int {
	n := len(nodes)
	seen := map[[2]int]sight{}
	for _, l := range links {
		a, knownA := gpus[l.A]
		b, knownB := gpus[l.B]
		if !knownA || !knownB {
			continue
		}
		pair := [2]int{min(a, b), max(a, b)}
		now := sightOf(l)
		if before, again := seen[pair]; again {
			now = sight{min(before.nvlinks, now.nvlinks), max(before.path, now.path)}
		}
		seen[pair] = now
	}
	near := make([]int, n*n)
	for a := range n {
		for b := range a { // and so never a GPU's link to itself
			s := seen[[2]int{b, a}]
			if s.path == device.PathUnknown {
				s.path = pathOf(nodes[a], nodes[b])
			}
			near[a*n+b] = perNVLink*s.nvlinks + pathScore[s.path]
			near[b*n+a] = near[a*n+b]
		}
	}
	return near
}

// sightOf reads a link as far as it makes sense.
func sightOf(l device.Link) sight {
	s := sight{nvlinks: min(max(l.NVLinks, 0), mostNVLinks), path: l.Path}
	if int(s.path) >= len(pathScore) {
		s.path = device.PathUnknown
	}
	return s
}

// pathOf is what the NUMA nodes of two GPUs say about an unknown path.
func pathOf(nodeA, nodeB int) device.Path {
	switch {
	case nodeA < 0 || nodeB < 0:
		return device.PathUnknown
	case nodeA == nodeB:
		return device.PathNUMANode
	default:
		return device.PathSystem
	}
}
