package preferred

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// TestGoodIsNearlyBest compares the two ways where both can be gone: on machines
// without any order among their links, the hardest there are.
func TestGoodIsNearlyBest(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 10))
	const rounds = 200
	same := 0
	for range rounds {
		n := 12 + r.IntN(9)
		c := problem{n: n, k: 1 + r.IntN(n-1), weight: make([]int, n), pairWeight: make([]int, n*n)}
		for x := range n {
			c.weight[x] = -r.IntN(1000)
			for y := range x {
				c.pairWeight[x*n+y] = 1000 * r.IntN(20)
				c.pairWeight[y*n+x] = c.pairWeight[x*n+y]
			}
		}
		good, best := c.good(), c.exhaustive()
		if len(good) != c.k || c.worth(good) > c.worth(best) {
			t.Fatalf("%d of %d: good is %v, worth %d; best is %v, worth %d", c.k, n, good, c.worth(good), best, c.worth(best))
		}
		if slices.Equal(good, best) {
			same++
		}
	}
	t.Logf("%d of %d are the best", same, rounds)
	if same < rounds*95/100 {
		t.Errorf("%d of %d are the best", same, rounds)
	}
}

// TestGoodEnds has more GPUs than any node, on which the steps are used up.
func TestGoodEnds(t *testing.T) {
	const n = 400
	r := rand.New(rand.NewPCG(11, 12))
	c := problem{n: n, k: n / 2, weight: make([]int, n), pairWeight: make([]int, n*n)}
	for x := range n {
		for y := range x {
			c.pairWeight[x*n+y] = r.IntN(1 << 40)
			c.pairWeight[y*n+x] = c.pairWeight[x*n+y]
		}
	}
	if set := c.good(); len(slices.Compact(set)) != c.k {
		t.Errorf("%d of %d are %d", c.k, n, len(set))
	}
}

func (c problem) worth(set []int) int {
	worth := 0
	for i, x := range set {
		worth += c.weight[x]
		for _, y := range set[:i] {
			worth += c.pairWeight[x*c.n+y]
		}
	}
	return worth
}
