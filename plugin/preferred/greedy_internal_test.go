package preferred

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// randomProblem returns a problem with random pairs, the hardest kind for a greedy choice.
func randomProblem(r *rand.Rand, n, k int) problem {
	p := problem{n: n, k: k, weight: make([]int, n), pairWeight: make([]int, n*n)}
	for x := range n {
		p.weight[x] = -r.IntN(1000)
		for y := range x {
			p.pairWeight[x*n+y] = 1000 * r.IntN(20)
			p.pairWeight[y*n+x] = p.pairWeight[x*n+y]
		}
	}
	return p
}

func (p problem) worth(set []int) int {
	worth := 0
	for i, x := range set {
		worth += p.weight[x]
		for _, y := range set[:i] {
			worth += p.pairWeight[x*p.n+y]
		}
	}
	return worth
}

// TestGreedyIsCloseToTheBest compares greedy with exhaustive on problems within maxExhaustive.
func TestGreedyIsCloseToTheBest(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 10))
	lowest := 1.0
	for range 200 {
		n := 12 + r.IntN(9)
		p := randomProblem(r, n, 2+r.IntN(n-2))
		greedy, best := p.greedy(), p.exhaustive()
		if len(slices.Compact(slices.Sorted(slices.Values(greedy)))) != p.k || p.worth(greedy) > p.worth(best) {
			t.Fatalf("%d of %d: greedy %v has worth %d, best %v has worth %d", p.k, n, greedy, p.worth(greedy), best, p.worth(best))
		}
		lowest = min(lowest, float64(p.worth(greedy))/float64(p.worth(best)))
	}
	t.Logf("lowest share of the best worth: %.2f", lowest)
	if lowest < 0.9 {
		t.Errorf("lowest share of the best worth: %.2f, want at least 0.9", lowest)
	}
}

// TestGreedyOnManyGPUs has more GPUs than any node.
func TestGreedyOnManyGPUs(t *testing.T) {
	p := randomProblem(rand.New(rand.NewPCG(11, 12)), 400, 200)
	if set := p.greedy(); len(slices.Compact(set)) != p.k {
		t.Errorf("%d distinct GPUs, want %d", len(slices.Compact(set)), p.k)
	}
}
