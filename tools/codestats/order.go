package main

import "slices"

// upward returns how many references between the files of a package run against the best order found, and how many there are.
//
// The least number is the minimum feedback arc set of the graph; a local search from the order of degrees finds a close bound.
func upward(files []*file) (up, all int, which []string) {
	order := slices.Clone(files)
	slices.SortFunc(order, func(a, b *file) int { return (len(b.uses) - used(b, files)) - (len(a.uses) - used(a, files)) })
	for improved := true; improved; {
		improved = false
		for i := range order {
			if at := bestPlace(order, i); at != i {
				f := order[i]
				order = slices.Insert(slices.Delete(order, i, i+1), at, f)
				improved = true
			}
		}
	}
	for i, f := range order {
		for j, g := range order {
			if !f.uses[g] {
				continue
			}
			all++
			if j < i {
				up++
				which = append(which, f.name+" → "+g.name)
			}
		}
	}
	slices.Sort(which)
	return up, all, which
}

// bestPlace returns the best new index of the file at i; i without a gain.
func bestPlace(order []*file, i int) int {
	best, at := 0, i
	for _, step := range []int{-1, 1} {
		gain := 0
		for j := i + step; j >= 0 && j < len(order); j += step {
			// order[i] passes order[j].
			down, back := order[i].uses[order[j]], order[j].uses[order[i]]
			if step > 0 {
				down, back = back, down
			}
			if down {
				gain++
			}
			if back {
				gain--
			}
			if gain > best {
				best, at = gain, j
			}
		}
	}
	return at
}

// used returns the number of users of f.
func used(f *file, files []*file) int {
	n := 0
	for _, g := range files {
		if g.uses[f] {
			n++
		}
	}
	return n
}
