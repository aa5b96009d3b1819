package preferred

import (
	"math"
	"slices"
)

// maxExhaustive is the largest number of available GPUs for an exhaustive
// search: 184,756 sets of 10 out of 20 take a few milliseconds.
const maxExhaustive = 20

// chooseWholeGPUs chooses the set with the greatest sum of scores inside; then
// the least sum of scores with the GPUs left available; then the lowest
// indices. Above maxExhaustive, only the indices decide.
func (t *Topology) chooseWholeGPUs(must, available []int, needed int) []int {
	if len(available) > maxExhaustive {
		return available[:needed]
	}
	chosen := t.newProblem(must, available).heaviest(needed)
	for i, x := range chosen {
		chosen[i] = available[x]
	}
	return chosen
}

// problem has the worth of a set of GPUs: the sum of the weights of GPUs and
// pairs.
//
// Worth combines both sums of the objective. The sum of scores with the GPUs
// outside is the sum of each GPU's scores with all GPUs less twice the sum
// inside the set; between sets with the same sum inside, the first term
// decides. So weight subtracts a GPU's scores with all GPUs, and pairWeight is
// scaled above their total.
type problem struct {
	weight     []int
	pairWeight [][]int // 0 of x and x
}

func (t *Topology) newProblem(must, available []int) problem {
	n := len(available)
	p := problem{weight: make([]int, n), pairWeight: make([][]int, n)}
	toAll := make([]int, n)
	scale := 1
	for x, i := range available {
		for _, m := range must {
			p.weight[x] += t.scoreBetween(i, m)
		}
		toAll[x] = p.weight[x]
		p.pairWeight[x] = make([]int, n)
		for y, j := range available {
			p.pairWeight[x][y] = t.scoreBetween(i, j)
			toAll[x] += p.pairWeight[x][y]
		}
		scale += toAll[x]
	}
	for x := range n {
		p.weight[x] = p.weight[x]*scale - toAll[x]
		for y := range n {
			p.pairWeight[x][y] *= scale
		}
	}
	return p
}

// heaviest weighs each set of a size, in the order of the lowest GPUs: the
// first of equal sets has the lowest indices.
func (p problem) heaviest(size int) (best []int) {
	bestWorth := math.MinInt
	var set []int
	var extend func(x, worth int)
	extend = func(x, worth int) { // by GPUs from x on
		if len(set) == size {
			if worth > bestWorth {
				best, bestWorth = slices.Clone(set), worth
			}
			return
		}
		for last := len(p.weight) - size + len(set); x <= last; x++ {
			added := p.weight[x]
			for _, y := range set {
				added += p.pairWeight[x][y]
			}
			set = append(set, x)
			extend(x+1, worth+added)
			set = set[:len(set)-1]
		}
	}
	extend(0, 0)
	return best
}
