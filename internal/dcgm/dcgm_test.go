package dcgm_test

import (
	"math"
	"regexp"
	"slices"
	"testing"

	"github.com/podgauge/podgauge/internal/dcgm"
)

// TestFieldsAreWellFormed checks that names are found and unique, and that each field has one kind of answer.
func TestFieldsAreWellFormed(t *testing.T) {
	selector := regexp.MustCompile(`^nvidia_gpu_[a-z0-9_]+({[a-z]+="[a-z0-9_]+"(,[a-z]+="[a-z0-9_]+")?})?$`)
	numbers := map[int]bool{}
	for i := range dcgm.Fields() {
		f := &dcgm.Fields()[i]
		old, renamed := f.Names[dcgm.V48], f.Names[dcgm.V49]
		for i, name := range append([]string{renamed.Name, old.Name}, f.Aliases...) {
			want := dcgm.V48
			if i == 0 && name != old.Name {
				want = dcgm.V49
			}
			if found, generation := dcgm.Find(name); name != "" && (found != f || generation != want) {
				t.Errorf("%s: found %p in generation %d, want %p in %d", name, found, generation, f, want)
			}
		}
		given := []bool{len(f.Sources) > 0, f.InfoLabel != "", f.Missing != ""}
		if len(slices.DeleteFunc(given, func(b bool) bool { return !b })) != 1 {
			t.Errorf("%s: want either sources, a label or a reason", old.Name)
		}
		for _, s := range append(f.Sources, f.Per...) {
			if !selector.MatchString(s.Selector) || math.IsNaN(s.Weight) {
				t.Errorf("%s: source %s × %v", old.Name, s.Selector, s.Weight)
			}
		}
		if len(f.Sources) > 0 && (old.Scale == 0 || renamed.Scale == 0) {
			t.Errorf("%s: no scale", old.Name)
		}
		if numbers[old.Number] {
			t.Errorf("%s: number %d occurs twice", old.Name, old.Number)
		}
		numbers[old.Number] = true
	}
}
