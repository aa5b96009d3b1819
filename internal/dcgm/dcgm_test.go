package dcgm_test

import (
	"math"
	"regexp"
	"testing"

	"github.com/podgauge/podgauge/internal/dcgm"
)

// TestFieldsAreWellFormed checks that names are found and unique, and that each field has one kind of answer.
func TestFieldsAreWellFormed(t *testing.T) {
	selector := regexp.MustCompile(`^nvidia_gpu_[a-z0-9_]+({[a-z]+="[a-z0-9_]+"(,[a-z]+="[a-z0-9_]+")?})?$`)
	numbers := map[int]bool{}
	for i := range dcgm.Fields {
		f := &dcgm.Fields[i]
		old, renamed := f.Names[dcgm.V48], f.Names[dcgm.V49]
		names := append([]string{old.Name}, f.Aliases...)
		if renamed.Name != "" && renamed.Name != old.Name {
			names = append(names, renamed.Name)
		}
		for _, name := range names {
			want := dcgm.V48
			if name == renamed.Name && name != old.Name {
				want = dcgm.V49
			}
			if found, generation := dcgm.Find(name); found != f || generation != want {
				t.Errorf("%s: found %p in generation %d, want %p in %d", name, found, generation, f, want)
			}
		}
		answers := 0
		for _, given := range []bool{len(f.Sources) > 0, f.InfoLabel != "", f.Missing != ""} {
			if given {
				answers++
			}
		}
		if answers != 1 {
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
