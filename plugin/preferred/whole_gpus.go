package preferred

import (
	"math"

	"github.com/podgauge/podgauge/internal/device"
)

// maxExhaustive is the largest number of available GPUs for an exhaustive search: 184,756 sets of 10 out of 20 take a
// few milliseconds.
const maxExhaustive = 20

// chooseWholeGPUs chooses the set with the greatest sum of scores inside; then the least sum of scores with the GPUs
// left available; then the lowest indices. Above maxExhaustive, only the indices decide.
func (t *Topology) chooseWholeGPUs(req resolvedRequest) []device.AdvertisedID {
	if len(req.available) > maxExhaustive {
		return t.answer(req, req.available[:req.needed])
	}
	chosen := t.newProblem(req).exhaustive()
	for i, x := range chosen {
		chosen[i] = req.available[x]
	}
	return t.answer(req, chosen)
}

// problem asks for the k of n GPUs with the greatest worth: the sum of the weights of GPUs and pairs.
//
// Worth combines both sums of the objective. The sum of scores with the GPUs outside is the sum of each GPU's scores with all GPUs
// less twice the sum inside the set; between sets with the same sum inside, the first term decides. So weight subtracts a GPU's
// scores with all GPUs, and pairWeight is scaled above their total.
type problem struct {
	n, k       int
	weight     []int
	pairWeight []int // of x and y at x*n+y; 0 of x and x
}

func (t *Topology) newProblem(req resolvedRequest) problem {
	n := len(req.available)
	numbers := make([]int, n+n+n*n)
	p := problem{n: n, k: req.needed, weight: numbers[:n], pairWeight: numbers[2*n:]}
	toAll, scale := numbers[n:2*n], 1
	for x, i := range req.available {
		for _, m := range req.must {
			p.weight[x] += t.scoreBetween(t.deviceOf[i], t.deviceOf[m])
		}
		toAll[x] = p.weight[x]
		for y, j := range req.available {
			p.pairWeight[x*n+y] = t.scoreBetween(t.deviceOf[i], t.deviceOf[j])
			toAll[x] += p.pairWeight[x*n+y]
		}
		scale += toAll[x]
	}
	for x := range n {
		p.weight[x] = p.weight[x]*scale - toAll[x]
	}
	for i := range p.pairWeight {
		p.pairWeight[i] *= scale
	}
	return p
}

// exhaustive weighs each set, in the order of the lowest GPUs: the first of equal sets has the lowest indices.
func (p problem) exhaustive() []int {
	best, bestWorth := make([]int, p.k), math.MinInt
	var set [maxExhaustive]int
	var gain [maxExhaustive][maxExhaustive]int // by number of chosen GPUs: worth added by each GPU
	copy(gain[0][:], p.weight)
	var extend func(x, chosen, worth int)
	extend = func(x, chosen, worth int) { // by GPUs from x on
		for last := p.n - p.k + chosen; x <= last; x++ {
			set[chosen] = x
			worth := worth + gain[chosen][x]
			if chosen+1 == p.k {
				if worth > bestWorth {
					bestWorth = worth
					copy(best, set[:])
				}
				continue
			}
			from, to, pair := &gain[chosen], &gain[chosen+1], p.pairWeight[x*p.n:][:p.n]
			for y := x + 1; y < len(pair); y++ {
				to[y] = from[y] + pair[y]
			}
			extend(x+1, chosen+1, worth)
		}
	}
	extend(0, 0, 0)
	return best
}
