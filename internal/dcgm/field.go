// Package dcgm is the table of DCGM's fields: names, units and types in dcgm-exporter before and since 4.9, and
// podgauge's families with the same readings.
//
// Sources: dcgm_fields.h of DCGM 4.6.0 (https://github.com/NVIDIA/DCGM), etc/ of dcgm-exporter 4.8, the base-unit
// fields of go-dcgm 4.7, and NVIDIA's release notes and field identifiers of DCGM 4.7.
package dcgm

import (
	"slices"
	"strings"
)

// Type is the type of a family in a counters file of dcgm-exporter.
type Type string

// The types with a reading. Label is a text, which becomes a label of the other families.
const (
	Gauge   Type = "gauge"
	Counter Type = "counter"
	Label   Type = "label"
)

// Generation is a set of names and units of dcgm-exporter.
type Generation int

// The generations: up to 4.8, and since 4.9.
const (
	V48 Generation = iota
	V49
)

// Name is a field in one generation.
type Name struct {
	Number int    // field id of DCGM; 0 for dcgm-exporter's own families
	Name   string // empty: no public source has the name
	// Scale is the value in this generation, divided by that of Field.Sources.
	Scale float64
	Type  Type
	Help  string // in the default counters file; empty: not a default field
}

// Field is a field of DCGM.
type Field struct {
	Names   [2]Name  // by Generation
	Aliases []string // further names of the first generation: those of dcgm-exporter 1.x, and of DCGM 4.6
	// Sources are podgauge's series. The field is the sum of values times weights, times Scale.
	Sources []Source
	// Per divides the sum, without Scale; empty: undivided.
	Per []Source
	// Enum marks sums of which the driver may lack states. Other sums need all their sources.
	Enum bool
	// Rate makes the field the sum's increase per second.
	Rate bool
	// OwnOnly leaves out MIG devices without a value of their own. Other fields have the GPU's value there.
	OwnOnly bool
	// InfoLabel is the label of nvidia_gpu_info with a field of type Label.
	InfoLabel string
	// Xid marks the field with the code of the latest Xid, whose sources are counters and times by code.
	Xid bool
	// Missing is the reason why podgauge cannot give the field; empty: it can.
	Missing string
	// Note is what differs from DCGM, but for the unit.
	Note string
}

// Source is a row of podgauge's families.
type Source struct {
	Selector string // of a series, in PromQL: nvidia_gpu_clock_hertz{clock="sm"}
	Weight   float64
}

// Family returns the metric family of the source.
func (s Source) Family() string {
	family, _, _ := strings.Cut(s.Selector, "{")
	return family
}

func field(t Type, number int, name string, scale float64, sources ...string) Field {
	n := Name{Number: number, Name: name, Scale: scale, Type: t}
	return Field{Names: [2]Name{n, n}, Sources: weighted(sources)}
}

func gauge(number int, name string, scale float64, sources ...string) Field {
	return field(Gauge, number, name, scale, sources...)
}

func counter(number int, name string, scale float64, sources ...string) Field {
	return field(Counter, number, name, scale, sources...)
}

// enum is a gauge whose value is the weight of the current state.
func enum(number int, name, family, label string, states map[string]float64) Field {
	f := gauge(number, name, 1)
	f.Enum = true
	for state, weight := range states {
		f.Sources = append(f.Sources, Source{family + "{" + label + `="` + state + `"}`, weight})
	}
	slices.SortFunc(f.Sources, func(a, b Source) int { return strings.Compare(a.Selector, b.Selector) })
	return f
}

func label(number int, name, name49, infoLabel string) Field {
	f := field(Label, number, name, 0).renamed(name49)
	f.InfoLabel = infoLabel
	return f
}

func missing(number int, name, name49, reason string) Field {
	f := gauge(number, name, 0).renamed(name49)
	f.Missing = reason
	return f
}

func weighted(selectors []string) (sources []Source) {
	for _, s := range selectors {
		sources = append(sources, Source{s, 1})
	}
	return sources
}

// renamed sets the name since 4.9, of the same number and unit.
func (f Field) renamed(name string) Field {
	f.Names[V49].Name = name
	return f
}

// rebased sets the field in base units since 4.9. Number 0 and no name: no public source has them.
func (f Field) rebased(number int, name string, scale float64) Field {
	f.Names[V49].Number, f.Names[V49].Name, f.Names[V49].Scale = number, name, scale
	return f
}

// byDefault sets the helps of a field of the default counters files. The second is of 4.9, whose own file is not
// public; empty: the same.
func (f Field) byDefault(help, help49 string) Field {
	f.Names[V48].Help, f.Names[V49].Help = help, help49
	if help49 == "" {
		f.Names[V49].Help = help
	}
	return f
}

func (f Field) alias(names ...string) Field {
	f.Aliases = append(f.Aliases, names...)
	return f
}

func (f Field) noted(note string) Field {
	f.Note = note
	return f
}

func (f Field) own() Field {
	f.OwnOnly = true
	return f
}

func (f Field) rate() Field {
	f.Rate, f.Names[V49].Type = true, Gauge // one is a counter in 4.8's file
	return f
}

func (f Field) per(sources ...Source) Field {
	f.Per = sources
	return f
}

func (f Field) less(selector string) Field {
	f.Sources = append(f.Sources, Source{selector, -1})
	return f
}
