package preferred

import (
	"math"
	"slices"

	"github.com/podgauge/podgauge/internal/device"
)

// maxExhaustive is how many GPUs may be left to choose from for every set of them to
// be weighed: 184,756 sets of 10 out of 20, some milliseconds.
const maxExhaustive = 20

// WholeGPUs chooses whole GPUs, an id each: those with the most link score among
// themselves; of these, the ones that leave the most to the GPUs that stay
// available; of these, those with the lowest indices. With more than 20 GPUs to
// choose from, the answer is greedy and not always the best.
func (t *Topology) WholeGPUs(r Request) []device.AdvertisedID { return t.wholeGPUs(t.resolve(r)) }

func (t *Topology) wholeGPUs(req resolvedRequest) []device.AdvertisedID {
	if req.needed == len(req.available) {
		return t.complete(req, req.available)
	}
	if req.needed == 0 {
		return t.complete(req, nil)
	}
	c := t.newProblem(req)
	var set []int
	if c.n <= maxExhaustive {
		set = c.exhaustive()
	} else {
		set = c.greedy()
	}
	for i, x := range set {
		set[i] = req.available[x]
	}
	return t.complete(req, set)
}

// problem asks for the k of n GPUs with the greatest worth: the sum of own over
// the chosen and of pair over every two of them.
//
// Both scores of the objective are in it. A set is cut off from all that its GPUs
// have to others, less twice what they have among themselves; of two sets with
// the same score inside, the first of these alone decides. So own takes off what
// a GPU has to all others, and a score inside counts for more than all of that.
type problem struct {
	n, k       int
	weight     []int
	pairWeight []int // of x and y at x*n+y; 0 of x and x
}

func (t *Topology) newProblem(req resolvedRequest) problem {
	n := len(req.available)
	numbers := make([]int, n+n+n*n)
	c := problem{n: n, k: req.needed, weight: numbers[:n], pairWeight: numbers[2*n:]}
	toAll, scale := numbers[n:2*n], 1
	for x, i := range req.available {
		for _, m := range req.must {
			c.weight[x] += t.scoreBetween(t.deviceOf[i], t.deviceOf[m])
		}
		toAll[x] = c.weight[x]
		for y, j := range req.available {
			c.pairWeight[x*n+y] = t.scoreBetween(t.deviceOf[i], t.deviceOf[j])
			toAll[x] += c.pairWeight[x*n+y]
		}
		scale += toAll[x]
	}
	for x := range n {
		c.weight[x] = c.weight[x]*scale - toAll[x]
	}
	for p := range c.pairWeight {
		c.pairWeight[p] *= scale
	}
	return c
}

// exhaustive weighs every set.
func (c problem) exhaustive() []int {
	s := exhaustiveSearch{problem: c, bestWorth: math.MinInt}
	copy(s.gain[0][:], c.weight)
	s.extend(0, 0, 0, 0)
	set := make([]int, 0, c.k)
	for x := range c.n {
		if s.bestSet&(1<<x) != 0 {
			set = append(set, x)
		}
	}
	return set
}

// exhaustiveSearch goes through the sets in the order of their lowest members, so the first
// with the most worth is the one with the lowest indices.
type exhaustiveSearch struct {
	problem
	gain      [maxExhaustive][maxExhaustive]int // by how many are chosen: what each GPU would add
	bestWorth int
	bestSet   uint32
}

// extend completes a set of so many chosen GPUs with ones from x on.
func (s *exhaustiveSearch) extend(x, chosen, worth int, set uint32) {
	gain := &s.gain[chosen]
	for last := s.n - s.k + chosen; x <= last; x++ {
		worth, set := worth+gain[x], set|1<<x
		if chosen+1 == s.k {
			if worth > s.bestWorth {
				s.bestWorth, s.bestSet = worth, set
			}
			continue
		}
		pair, next := s.pairWeight[x*s.n:][:s.n], &s.gain[chosen+1]
		for y := x + 1; y < len(pair); y++ {
			next[y] = gain[y] + pair[y]
		}
		s.extend(x+1, chosen+1, worth, set)
	}
}

// greedy grows a set from each GPU in turn, always by the GPU that adds most, and returns the set with the greatest worth.
func (c problem) greedy() []int {
	var best []int
	bestWorth := math.MinInt
	gain, grown := make([]int, c.n), make([]int, 0, c.k)
	for first := range c.n {
		copy(gain, c.weight)
		set, worth := append(grown, first), gain[first]
		for len(set) < c.k {
			newest := set[len(set)-1]
			gain[newest] = math.MinInt / 2 // chosen
			next := 0
			for y, pair := range c.pairWeight[newest*c.n:][:c.n] {
				if gain[y] += pair; gain[y] > gain[next] {
					next = y
				}
			}
			set, worth = append(set, next), worth+gain[next]
		}
		slices.Sort(set)
		if worth > bestWorth || worth == bestWorth && slices.Compare(set, best) < 0 {
			best, bestWorth = slices.Clone(set), worth
		}
	}
	return best
}
