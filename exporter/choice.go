package exporter

import (
	"fmt"
	"path"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// Choice is which families are shown, by patterns of names in which * stands for any
// characters. The zero one is all.
type Choice struct{ include, exclude []string }

// NewChoice takes what a pattern of include has, or everything where there is none,
// but for what one of exclude has. The error names the pattern that is none.
func NewChoice(include, exclude []string) (Choice, error) {
	for _, pattern := range slices.Concat(include, exclude) {
		if _, err := path.Match(pattern, ""); err != nil || pattern == "" {
			return Choice{}, fmt.Errorf("%q is no pattern of a name", pattern)
		}
	}
	return Choice{include, exclude}, nil
}

// Takes tells whether a family is among the chosen.
func (c Choice) Takes(name string) bool {
	has := func(pattern string) bool {
		ok, _ := path.Match(pattern, name) // NewChoice has tried it
		return ok
	}
	return (len(c.include) == 0 || slices.ContainsFunc(c.include, has)) && !slices.ContainsFunc(c.exclude, has)
}

// Idle are the patterns that no name has: slips of the pen, mostly.
func (c Choice) Idle(names []string) []string {
	return slices.DeleteFunc(slices.Concat(c.include, c.exclude), func(pattern string) bool {
		return slices.ContainsFunc(names, func(name string) bool {
			ok, _ := path.Match(pattern, name)
			return ok
		})
	})
}

// takesOf tells whether a collector has a family that is chosen.
func (c Choice) takesOf(of prometheus.Collector) bool {
	registry := prometheus.NewRegistry()
	registry.MustRegister(of)
	families, err := registry.Gather()
	return err != nil || slices.ContainsFunc(families, func(f *dto.MetricFamily) bool { return c.Takes(f.GetName()) })
}

// chosen gathers the chosen ones of a registry's families.
type chosen struct {
	registry *prometheus.Registry
	choice   Choice
}

// Gather is prometheus.Gatherer's.
func (c chosen) Gather() ([]*dto.MetricFamily, error) {
	families, err := c.registry.Gather()
	return slices.DeleteFunc(families, func(f *dto.MetricFamily) bool { return !c.choice.Takes(f.GetName()) }), err
}
