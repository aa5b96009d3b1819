package exporter

import (
	"fmt"
	"path"
	"slices"

	"github.com/podgauge/podgauge/internal/device"
)

// setNames are the values of --metrics.set.
var setNames = []string{
	device.SetNone:    "none",
	device.SetMinimal: "minimal",
	device.SetDefault: "default",
	device.SetFull:    "full",
}

// FamilyFilter selects families and rows. The zero filter selects all.
type FamilyFilter struct {
	set              device.MetricSet
	include, exclude []string
}

// NewFamilyFilter returns a filter for the families of a set (none, minimal,
// default or full) and of include, except those of exclude. In the patterns, *
// matches any characters.
func NewFamilyFilter(set string, include, exclude []string) (FamilyFilter, error) {
	for _, pattern := range slices.Concat(include, exclude) {
		if _, err := path.Match(pattern, ""); err != nil || pattern == "" {
			return FamilyFilter{}, fmt.Errorf("%q is not a valid name pattern", pattern)
		}
	}
	i := slices.Index(setNames, set)
	if i < 0 {
		return FamilyFilter{}, fmt.Errorf("%q is not a set: expected none, minimal, default or full", set)
	}
	return FamilyFilter{device.MetricSet(i), include, exclude}, nil
}

// Matches reports whether the filter selects a family that is not made from rows
// of readings.
func (f FamilyFilter) Matches(name string) bool {
	return (setOf(name) >= f.set || matchesAny(f.include, name)) && !matchesAny(f.exclude, name)
}

func matchesAny(patterns []string, name string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool {
		ok, _ := path.Match(pattern, name) // NewFamilyFilter has checked the pattern
		return ok
	})
}

// MatchesRow reports whether the filter selects a row.
func (f FamilyFilter) MatchesRow(m *device.Metric) bool { return f.row(m) != neverExported }

// rowExport is the condition for exporting a row's series.
type rowExport uint8

const (
	neverExported rowExport = iota
	exportedIfSet           // if the value is not 0
	alwaysExported
)

// row returns the condition for a row.
func (f FamilyFilter) row(m *device.Metric) rowExport {
	switch {
	case matchesAny(f.exclude, m.Name):
		return neverExported
	case f.set == device.SetFull || matchesAny(f.include, m.Name):
		return alwaysExported
	case m.Set < f.set:
		return neverExported
	case m.Enum && !m.AlwaysInSet:
		return exportedIfSet
	default:
		return alwaysExported
	}
}
