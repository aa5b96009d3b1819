package dcgm

import (
	"encoding/csv"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Family is a field as a metric family, or as a label of the other families.
type Family struct {
	*Field
	Name        string
	Scale       float64
	Type        Type
	Help        string
	Generations []Generation // those whose labels the series have
}

// Counters are the families of DCGM's fields that podgauge exports. The zero value has none.
type Counters struct {
	Families []Family
	Unserved []Unserved
	Errors   []error // wrong lines of the counters file, which are ignored
}

// Unserved is a field of a counters file that podgauge cannot give.
type Unserved struct{ Field, Reason string }

// ParseGenerations returns the generations of a flag's value: 4.8, 4.9 or both; a true boolean means 4.8. It returns
// none for a false one and the empty value.
func ParseGenerations(value string) ([]Generation, error) {
	enabled, err := strconv.ParseBool(value)
	switch {
	case value == "", err == nil && !enabled:
		return nil, nil
	case value == "4.8", enabled:
		return []Generation{V48}, nil
	case value == "4.9":
		return []Generation{V49}, nil
	case value == "both":
		return []Generation{V48, V49}, nil
	}
	return nil, fmt.Errorf("%q: expected 4.8, 4.9 or both", value)
}

// Defaults are the families of dcgm-exporter's default counters files. A family with the same name in both generations
// has the labels of both.
func Defaults(generations ...Generation) (c Counters) {
	if len(generations) == 0 {
		return c
	}
	fields := Fields()
	for i := range fields {
		f := &fields[i]
		for _, g := range generations {
			n, last := f.Names[g], len(c.Families)-1
			switch {
			case n.Help == "" || n.Name == "":
			case last >= 0 && c.Families[last].Name == n.Name:
				c.Families[last].Generations = append(c.Families[last].Generations, g)
			default:
				c.Families = append(c.Families, Family{f, n.Name, n.Scale, n.Type, n.Help, []Generation{g}})
			}
		}
	}
	return c
}

// Find returns the field with a name of either generation, or an alias, and its generation. A name of both has the
// first. It returns nil for names that are not in the table.
func Find(name string) (*Field, Generation) {
	f := byName()[name]
	if f != nil && f.Names[V49].Name == name && f.Names[V48].Name != name {
		return f, V49
	}
	return f, V48
}

var byName = sync.OnceValue(func() map[string]*Field {
	fields, all := map[string]*Field{}, Fields()
	for i := range all {
		f := &all[i]
		for _, name := range append(f.Aliases, f.Names[V48].Name, f.Names[V49].Name) {
			fields[name] = f
		}
	}
	delete(fields, "") // of fields without a known name
	return fields
})

// ReasonFor returns why podgauge lacks a name that is not in the table.
func ReasonFor(name string) string {
	for _, p := range missingPrefixes {
		if strings.HasPrefix(name, p.prefix) {
			return p.reason
		}
	}
	return "not in podgauge's table of DCGM's fields"
}

var familyName = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_]*$`)

// Parse reads a counters file of dcgm-exporter: lines of field, type and help, and comments after #. Families have the
// labels of the given generations. Without one, they have those of 4.9 if the file has a name of 4.9, otherwise those
// of 4.8. Wrong lines and fields without a reading leave the others as they are.
func Parse(file, text string, generations ...Generation) (c Counters) {
	lines := map[string]int{} // by field
	newest := V48
	text = strings.TrimPrefix(strings.ToValidUTF8(text, "\uFFFD"), "\uFEFF")
	number := 0
	for line := range strings.Lines(text) {
		number++
		if line = strings.TrimSpace(line); line == "" || line[0] == '#' {
			continue
		}
		wrong := func(format string, args ...any) {
			c.Errors = append(c.Errors, fmt.Errorf("%s:%d: "+format, append([]any{file, number}, args...)...))
		}
		r := csv.NewReader(strings.NewReader(line))
		r.TrimLeadingSpace = true
		record, err := r.Read()
		if parse := (*csv.ParseError)(nil); errors.As(err, &parse) {
			wrong("expected field, type, help: %v", parse.Err) // without the line's number in the reader
			continue
		}
		if len(record) < 3 {
			wrong("got %d of field, type, help", len(record))
			continue
		}
		name, kind := strings.TrimSpace(record[0]), Type(strings.TrimSpace(record[1]))
		help := strings.TrimSpace(strings.Join(record[2:], ", ")) // of a help with commas and without quotes
		switch reason := unserved(name, kind); {
		case !familyName.MatchString(name):
			wrong("%q is not the name of a field", name)
		case !slices.Contains(types, kind):
			wrong("type %q of %s: expected gauge, counter or label", kind, name)
		case lines[name] != 0:
			wrong("%s is already on line %d", name, lines[name])
		case reason != "":
			c.Unserved = append(c.Unserved, Unserved{name, reason})
		default:
			f, g := Find(name)
			newest = max(newest, g)
			family := Family{f, name, f.Names[g].Scale, kind, help, []Generation{g}}
			if kind == Label || f.Names[V48].Name == f.Names[V49].Name {
				family.Generations = generations
			}
			c.Families = append(c.Families, family)
		}
		if lines[name] == 0 {
			lines[name] = number
		}
	}
	if len(generations) == 0 {
		generations = []Generation{newest}
	}
	if len(generations) == 1 { // otherwise each family has those of its name, and labels have both
		for i := range c.Families {
			c.Families[i].Generations = generations
		}
	}
	return c
}

// types are the types in dcgm-exporter's files.
var types = []Type{Gauge, Counter, Label, "histogram", "summary"}

// unserved returns why a field cannot be exported with a type; empty if it can.
func unserved(name string, t Type) string {
	f, _ := Find(name)
	switch {
	case f == nil:
		return ReasonFor(name)
	case f.Missing != "":
		return f.Missing
	case t != Gauge && t != Counter && t != Label:
		return "a field has a single value: use type gauge or counter"
	case t != Label && f.InfoLabel != "" && f.InfoLabel != "gpu" && f.InfoLabel != "minor":
		return "a text: use type label"
	}
	return ""
}

// maxListed limits the wrong lines, and the unserved fields, that are named.
const maxListed = 100

// FirstUnserved returns the first hundred unserved fields.
func (c *Counters) FirstUnserved() []Unserved { return c.Unserved[:min(len(c.Unserved), maxListed)] }

// Problems returns what a counters file has in vain: its wrong lines, and the unserved fields by reason; the first
// hundred of each, and the number of the others.
func (c *Counters) Problems() (problems []string) {
	wrong := c.Errors[:min(len(c.Errors), maxListed)]
	for _, err := range wrong {
		problems = append(problems, err.Error())
	}
	unserved := slices.SortedStableFunc(slices.Values(c.FirstUnserved()),
		func(a, b Unserved) int { return strings.Compare(a.Reason, b.Reason) })
	for i, u := range unserved {
		if i > 0 && unserved[i-1].Reason == u.Reason {
			problems[len(problems)-1] += ", " + u.Field
		} else {
			problems = append(problems, u.Reason+": "+u.Field)
		}
	}
	if more := len(c.Errors) - len(wrong) + len(c.Unserved) - len(unserved); more > 0 {
		problems = append(problems, fmt.Sprintf("%d more lines", more))
	}
	return problems
}

// Reads reports whether a family derives from a series of podgauge, in PromQL.
func (c *Counters) Reads(selector string) bool {
	return c.any(func(s Source) bool { return s.Selector == selector })
}

// PerLink reports whether a family derives from readings of single NVLinks.
func (c *Counters) PerLink() bool {
	return c.any(func(s Source) bool { return strings.HasPrefix(s.Selector, "nvidia_gpu_nvlink_link_") })
}

func (c *Counters) any(matches func(Source) bool) bool {
	return slices.ContainsFunc(c.Families, func(f Family) bool {
		return slices.ContainsFunc(f.Sources, matches) || slices.ContainsFunc(f.Per, matches)
	})
}
