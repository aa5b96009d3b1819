package preferred

import (
	"math"

	"github.com/podgauge/podgauge/internal/device"
)

// mostExact is how many GPUs may be left to choose from for every set of them to
// be weighed: 184,756 sets of 10 out of 20, some milliseconds.
const mostExact = 20

// Aligned chooses whole GPUs, an id each: those with the most link score among
// themselves; of these, the ones that leave the most to the GPUs that stay
// available; of these, those with the lowest indices. With more than 20 GPUs to
// choose from the answer is a good one and not always the best.
func (t *Topology) Aligned(r Request) []device.OfferedID { return t.aligned(t.ask(r)) }

func (t *Topology) aligned(q question) []device.OfferedID {
	if q.wanted == len(q.free) {
		return t.filled(q, q.free)
	}
	if q.wanted == 0 {
		return t.filled(q, nil)
	}
	c := t.choice(q)
	var set []int
	if c.n <= mostExact {
		set = c.best()
	} else {
		set = c.good()
	}
	for i, x := range set {
		set[i] = q.free[x]
	}
	return t.filled(q, set)
}

// choice asks for the k of n GPUs with the greatest worth: the sum of own over
// the chosen and of pair over every two of them.
//
// Both scores of the objective are in it. A set is cut off from all that its GPUs
// have to others, less twice what they have among themselves; of two sets with
// the same score inside, the first of these alone decides. So own takes off what
// a GPU has to all others, and a score inside counts for more than all of that.
type choice struct {
	n, k int
	own  []int
	pair []int // of x and y at x*n+y; 0 of x and x
}

func (t *Topology) choice(q question) choice {
	n := len(q.free)
	numbers := make([]int, n+n+n*n)
	c := choice{n: n, k: q.wanted, own: numbers[:n], pair: numbers[2*n:]}
	toAll, unit := numbers[n:2*n], 1
	for x, i := range q.free {
		for _, m := range q.must {
			c.own[x] += t.between(t.device[i], t.device[m])
		}
		toAll[x] = c.own[x]
		for y, j := range q.free {
			c.pair[x*n+y] = t.between(t.device[i], t.device[j])
			toAll[x] += c.pair[x*n+y]
		}
		unit += toAll[x]
	}
	for x := range n {
		c.own[x] = c.own[x]*unit - toAll[x]
	}
	for p := range c.pair {
		c.pair[p] *= unit
	}
	return c
}

// best weighs every set.
func (c choice) best() []int {
	s := search{choice: c, most: math.MinInt}
	copy(s.gain[0][:], c.own)
	s.from(0, 0, 0, 0)
	set := make([]int, 0, c.k)
	for x := range c.n {
		if s.set&(1<<x) != 0 {
			set = append(set, x)
		}
	}
	return set
}

// search goes through the sets in the order of their lowest members, so the first
// with the most worth is the one with the lowest indices.
type search struct {
	choice
	gain [mostExact][mostExact]int // by how many are chosen: what each GPU would add
	most int
	set  uint32
}

// from completes a set of so many chosen GPUs with ones from x on.
func (s *search) from(x, chosen, worth int, set uint32) {
	gain := &s.gain[chosen]
	for last := s.n - s.k + chosen; x <= last; x++ {
		worth, set := worth+gain[x], set|1<<x
		if chosen+1 == s.k {
			if worth > s.most {
				s.most, s.set = worth, set
			}
			continue
		}
		pair, next := s.pair[x*s.n:][:s.n], &s.gain[chosen+1]
		for y := x + 1; y < len(pair); y++ {
			next[y] = gain[y] + pair[y]
		}
		s.from(x+1, chosen+1, worth, set)
	}
}
