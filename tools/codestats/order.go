package main

import "slices"

// upward returns the references between the files of a package against the best
// order found, and the number of all references.
//
// The least number is the minimum feedback arc set of the graph; a local search
// from the order of degrees finds a close bound.
func upward(files []*file) (up []string, all int) {
	users := map[*file]int{}
	for _, f := range files {
		all += len(f.uses)
		for used := range f.uses {
			users[used]++
		}
	}
	order := slices.Clone(files)
	slices.SortFunc(order, func(a, b *file) int { return (len(b.uses) - users[b]) - (len(a.uses) - users[a]) })
	up = against(order)
	for improved := true; improved; {
		improved = false
		for i := range order {
			for j := range order {
				moved := slices.Delete(slices.Clone(order), i, i+1)
				moved = slices.Insert(moved, j, order[i])
				if fewer := against(moved); len(fewer) < len(up) {
					order, up, improved = moved, fewer, true
				}
			}
		}
	}
	slices.Sort(up)
	return up, all
}

// against returns the references to files before.
func against(order []*file) (up []string) {
	for i, f := range order {
		for _, before := range order[:i] {
			if f.uses[before] {
				up = append(up, f.name+" → "+before.name)
			}
		}
	}
	return up
}
