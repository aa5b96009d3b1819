package preferred

import "slices"

// mostSteps bounds the work for a good answer by what is done and not by time, so
// that the answer depends on the question alone. It is some milliseconds.
const mostSteps = 2_000_000

// good starts from each GPU in turn, adds what is worth most, and then exchanges
// a chosen GPU for another while that is worth something. It keeps the best of
// what it gets to before its steps are used up.
func (c problem) good() []int {
	var set []int
	most := 0
	g := growth{problem: c, in: make([]bool, c.n), gain: make([]int, c.n)}
	for first := 0; first < c.n && (set == nil || g.steps < mostSteps); first++ {
		g.growFrom(first)
		for g.steps < mostSteps && g.exchange() {
		}
		grown := g.set()
		if set == nil || g.worth > most || g.worth == most && slices.Compare(grown, set) < 0 {
			set, most = grown, g.worth
		}
	}
	return set
}

// growth is a set that is being put together.
type growth struct {
	problem
	in    []bool
	gain  []int // what each GPU outside would add, and each inside would take along
	worth int
	steps int
}

func (g *growth) growFrom(first int) {
	clear(g.in)
	copy(g.gain, g.weight)
	g.worth = 0
	g.add(first)
	for range g.k - 1 {
		next := -1
		for x, in := range g.in {
			if !in && (next < 0 || g.gain[x] > g.gain[next]) {
				next = x
			}
		}
		g.steps += g.n
		g.add(next)
	}
}

// exchange makes the one exchange that is worth most, if any is worth something.
func (g *growth) exchange() bool {
	most, out, in := 0, 0, 0
	for x := range g.n {
		for y := range g.n {
			if !g.in[x] || g.in[y] {
				continue
			}
			// What y would add counts what it has to x, which goes.
			if worth := g.gain[y] - g.gain[x] - g.pairWeight[x*g.n+y]; worth > most {
				most, out, in = worth, x, y
			}
		}
	}
	g.steps += g.n * g.n
	if most > 0 {
		g.drop(out)
		g.add(in)
	}
	return most > 0
}

func (g *growth) add(x int) {
	g.in[x] = true
	g.worth += g.gain[x]
	g.change(x, 1)
}

func (g *growth) drop(x int) {
	g.in[x] = false
	g.worth -= g.gain[x]
	g.change(x, -1)
}

func (g *growth) change(x, sign int) {
	g.steps += g.n
	for y, pair := range g.pairWeight[x*g.n:][:g.n] {
		g.gain[y] += sign * pair
	}
}

func (g *growth) set() []int {
	set := make([]int, 0, g.k)
	for x, in := range g.in {
		if in {
			set = append(set, x)
		}
	}
	return set
}
