package preferred

import "github.com/podgauge/podgauge/internal/device"

// nvLinkScore outweighs any path: GPUs with one NVLink are nearer than those with
// none, wherever they sit.
const nvLinkScore = 100

// maxNVLinks is more than any GPU has (18 in 2026) and keeps sums of scores far
// from overflow, whatever a driver may say.
const maxNVLinks = 64

// pathScores is what two GPUs without NVLinks have between them. The steps are
// those of NVIDIA's go-gpuallocator.
var pathScores = [...]int{
	device.PathUnknown:          0,
	device.PathSameBoard:        60,
	device.PathSingleSwitch:     50,
	device.PathMultipleSwitches: 40,
	device.PathHostBridge:       30,
	device.PathNUMANode:         20,
	device.PathSystem:           10,
}

// pairLinks is what is known of a pair of GPUs; it only ever gets worse.
type pairLinks struct {
	nvlinks int
	path    device.Path
}

// pairScores is the square matrix of what each pair of GPUs has between them, from
// the lesser of what both see: a link that is down on one side carries nothing.
// A GPU has 0 to itself.
func pairScores(gpus map[device.GPU]int, nodes []int, links []device.Link) []int {
	n := len(nodes)
	pairs := map[[2]int]pairLinks{}
	for _, l := range links {
		a, knownA := gpus[l.A]
		b, knownB := gpus[l.B]
		if !knownA || !knownB {
			continue
		}
		pair := [2]int{min(a, b), max(a, b)}
		now := newPairLinks(l)
		if before, exists := pairs[pair]; exists {
			now = pairLinks{min(before.nvlinks, now.nvlinks), max(before.path, now.path)}
		}
		pairs[pair] = now
	}
	score := make([]int, n*n)
	for a := range n {
		for b := range a { // and so never a GPU's link to itself
			s := pairs[[2]int{b, a}]
			if s.path == device.PathUnknown {
				s.path = numaPath(nodes[a], nodes[b])
			}
			score[a*n+b] = nvLinkScore*s.nvlinks + pathScores[s.path]
			score[b*n+a] = score[a*n+b]
		}
	}
	return score
}

// newPairLinks reads a link as far as it makes sense.
func newPairLinks(l device.Link) pairLinks {
	s := pairLinks{nvlinks: min(max(l.NVLinks, 0), maxNVLinks), path: l.Path}
	if int(s.path) >= len(pathScores) {
		s.path = device.PathUnknown
	}
	return s
}

// numaPath is what the NUMA nodes of two GPUs say about an unknown path.
func numaPath(nodeA, nodeB int) device.Path {
	switch {
	case nodeA < 0 || nodeB < 0:
		return device.PathUnknown
	case nodeA == nodeB:
		return device.PathNUMANode
	default:
		return device.PathSystem
	}
}
