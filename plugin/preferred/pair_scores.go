package preferred

import "github.com/podgauge/podgauge/internal/device"

const nvLinkScore = 100 // above every path: NVLinks count more than any path

// pathScores are the scores of two GPUs without NVLinks, in the steps of
// NVIDIA's go-gpuallocator.
var pathScores = [...]int{
	device.PathUnknown:          0,
	device.PathSameBoard:        60,
	device.PathSingleSwitch:     50,
	device.PathMultipleSwitches: 40,
	device.PathHostBridge:       30,
	device.PathNUMANode:         20,
	device.PathSystem:           10,
}

// pairScores returns the symmetric matrix of scores. The diagonal is 0.
//
// Of several links of a pair, the fewer NVLinks and the farther path count: a
// link with a side that is down is down.
func pairScores(gpus map[device.GPU]int, numaNodes []int, links []device.Link) [][]int {
	pairs := map[[2]int]device.Link{}
	for _, l := range links {
		a, knownA := gpus[l.A]
		b, knownB := gpus[l.B]
		if !knownA || !knownB {
			continue
		}
		pair := [2]int{min(a, b), max(a, b)}
		if earlier, found := pairs[pair]; found {
			l.NVLinks, l.Path = min(l.NVLinks, earlier.NVLinks), max(l.Path, earlier.Path)
		}
		pairs[pair] = l
	}
	n := len(numaNodes)
	scores := make([][]int, n)
	for a := range n {
		scores[a] = make([]int, n)
		for b := range a {
			l := pairs[[2]int{b, a}]
			if l.Path == device.PathUnknown && numaNodes[a] >= 0 && numaNodes[b] >= 0 {
				l.Path = device.PathSystem
				if numaNodes[a] == numaNodes[b] {
					l.Path = device.PathNUMANode
				}
			}
			scores[a][b] = nvLinkScore*l.NVLinks + pathScores[l.Path]
			scores[b][a] = scores[a][b]
		}
	}
	return scores
}
