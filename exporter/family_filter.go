package exporter

import (
	_ "embed"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/podgauge/podgauge/internal/device"
)

// seriesSets has the series of the sets minimal and default: a family, or a row of a family (device.Metric.RowName), on each line.
// `make golden` generates the file from the rules and dashboards.
//
//go:embed series_sets.txt
var seriesSets string

// The sets without a line in seriesSets.
const (
	fullSet = "full"
	noSet   = "none"
)

// FamilyFilter selects families and rows. The zero filter selects all.
type FamilyFilter struct {
	set              map[string]bool // lines of seriesSets; nil: all
	include, exclude []string
}

// NewFamilyFilter returns a filter for the families of a set (none, minimal, default or full) and of include, except those of exclude.
// In the patterns, * matches any characters.
func NewFamilyFilter(set string, include, exclude []string) (FamilyFilter, error) {
	for _, pattern := range slices.Concat(include, exclude) {
		if _, err := path.Match(pattern, ""); err != nil || pattern == "" {
			return FamilyFilter{}, fmt.Errorf("%q is not a valid name pattern", pattern)
		}
	}
	f := FamilyFilter{include: include, exclude: exclude}
	if set == fullSet {
		return f, nil
	}
	f.set = map[string]bool{}
	for line := range strings.Lines(seriesSets) {
		if series, ok := strings.CutPrefix(line, set+" "); ok {
			f.set[strings.TrimSpace(series)] = true
		}
	}
	if len(f.set) == 0 && set != noSet {
		return FamilyFilter{}, fmt.Errorf("%q is not a set: expected none, minimal, default or full", set)
	}
	return f, nil
}

// Matches reports whether the filter selects a family. Rows of readings have row.
func (f FamilyFilter) Matches(name string) bool {
	return (f.set == nil || f.set[name] || matchesAny(f.include, name)) && !matchesAny(f.exclude, name)
}

func matchesAny(patterns []string, name string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool {
		ok, _ := path.Match(pattern, name) // NewFamilyFilter has checked the pattern
		return ok
	})
}

// rowExport is the condition for exporting a row's series.
type rowExport uint8

const (
	neverExported rowExport = iota
	exportedIfSet           // if the value is not 0
	alwaysExported
)

// row returns the condition for a row. Of an enumeration in a set, the other states than those in the set are exported while they hold.
func (f FamilyFilter) row(m *device.Metric) rowExport {
	switch {
	case matchesAny(f.exclude, m.Name):
		return neverExported
	case f.set == nil || f.set[m.RowName()] || matchesAny(f.include, m.Name):
		return alwaysExported
	case !f.set[m.Name]:
		return neverExported
	case m.Enum:
		return exportedIfSet
	default:
		return alwaysExported
	}
}
