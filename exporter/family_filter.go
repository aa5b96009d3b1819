package exporter

import (
	"fmt"
	"path"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// FamilyFilter selects families by patterns of names, in which * matches any characters. The zero filter selects all.
type FamilyFilter struct{ include, exclude []string }

// NewFamilyFilter returns a filter for the families of include, or all without include, except those of exclude.
func NewFamilyFilter(include, exclude []string) (FamilyFilter, error) {
	for _, pattern := range slices.Concat(include, exclude) {
		if _, err := path.Match(pattern, ""); err != nil || pattern == "" {
			return FamilyFilter{}, fmt.Errorf("%q is no pattern of a name", pattern)
		}
	}
	return FamilyFilter{include, exclude}, nil
}

// Matches reports whether the filter selects a family.
func (f FamilyFilter) Matches(name string) bool {
	matches := func(pattern string) bool {
		ok, _ := path.Match(pattern, name) // NewFamilyFilter has checked the pattern
		return ok
	}
	return (len(f.include) == 0 || slices.ContainsFunc(f.include, matches)) && !slices.ContainsFunc(f.exclude, matches)
}

// matchesAny reports whether the filter selects a family of a collector.
func (f FamilyFilter) matchesAny(collector prometheus.Collector) bool {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collector)
	families, err := f.gather(registry)()
	return err != nil || len(families) > 0
}

// gather returns a Gatherer of the selected families of a registry.
func (f FamilyFilter) gather(registry *prometheus.Registry) prometheus.GathererFunc {
	return func() ([]*dto.MetricFamily, error) {
		families, err := registry.Gather()
		return slices.DeleteFunc(families, func(family *dto.MetricFamily) bool { return !f.Matches(family.GetName()) }), err
	}
}
