package exporter

import (
	"fmt"
	"path"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// FamilyFilter is which families are shown, by patterns of names in which * stands for any
// characters. The zero one is all.
type FamilyFilter struct{ include, exclude []string }

// NewFamilyFilter takes what a pattern of include has, or everything where there is none,
// but for what one of exclude has. The error names the pattern that is none.
func NewFamilyFilter(include, exclude []string) (FamilyFilter, error) {
	for _, pattern := range slices.Concat(include, exclude) {
		if _, err := path.Match(pattern, ""); err != nil || pattern == "" {
			return FamilyFilter{}, fmt.Errorf("%q is no pattern of a name", pattern)
		}
	}
	return FamilyFilter{include, exclude}, nil
}

// Matches tells whether a family is among the chosen.
func (f FamilyFilter) Matches(name string) bool {
	matches := func(pattern string) bool {
		ok, _ := path.Match(pattern, name) // NewFamilyFilter has tried it
		return ok
	}
	return (len(f.include) == 0 || slices.ContainsFunc(f.include, matches)) && !slices.ContainsFunc(f.exclude, matches)
}

// UnmatchedPatterns are the patterns that no name has: slips of the pen, mostly.
func (f FamilyFilter) UnmatchedPatterns(names []string) []string {
	return slices.DeleteFunc(slices.Concat(f.include, f.exclude), func(pattern string) bool {
		return slices.ContainsFunc(names, func(name string) bool {
			ok, _ := path.Match(pattern, name)
			return ok
		})
	})
}

// matchesAny tells whether a collector has a family that is chosen.
func (f FamilyFilter) matchesAny(collector prometheus.Collector) bool {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collector)
	families, err := registry.Gather()
	return err != nil || slices.ContainsFunc(families, func(family *dto.MetricFamily) bool { return f.Matches(family.GetName()) })
}

// filteredGatherer gathers the chosen ones of a registry's families.
type filteredGatherer struct {
	registry *prometheus.Registry
	filter   FamilyFilter
}

// Gather is prometheus.Gatherer's.
func (g filteredGatherer) Gather() ([]*dto.MetricFamily, error) {
	families, err := g.registry.Gather()
	return slices.DeleteFunc(families, func(f *dto.MetricFamily) bool { return !g.filter.Matches(f.GetName()) }), err
}
