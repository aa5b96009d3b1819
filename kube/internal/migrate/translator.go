package migrate

import (
	"fmt"
	"slices"
	"strings"

	"github.com/prometheus/prometheus/promql/parser"
)

// deviceMatching joins series of a device with its nvidia_gpu_info.
const deviceMatching = "on (node, uuid, mig_uuid)"

// translator translates one query.
type translator struct {
	records map[string]labelFlow // labels of the user's own recorded series
	mig     bool                 // the cluster has partitioned GPUs, or the query reads labels of GPU instances
	window  string               // of a rate where the query has none

	info    []string // labels of nvidia_gpu_info that the query reads
	needed  []string // names of dcgm-exporter's labels that the query reads
	outer   []string // names of labels that are read from the result of the current expression
	reasons []string // why there is no translation
	notes   []string
}

func (t *translator) fail(reason string) {
	if !slices.Contains(t.reasons, reason) {
		t.reasons = append(t.reasons, reason)
	}
}

func (t *translator) note(note string) {
	if !slices.Contains(t.notes, note) {
		t.notes = append(t.notes, note)
	}
}

// parse parses a query made of parts of valid ones.
func (t *translator) parse(text string) parser.Expr {
	e, err := promQL.ParseExpr(text)
	if err != nil {
		t.fail(fmt.Sprintf("the translation is not valid PromQL: %v", err))
		return &parser.NumberLiteral{}
	}
	return e
}

var promQL = parser.NewParser(parser.Options{EnableExperimentalFunctions: true, ExperimentalDurationExpr: true})

// labelFlow is what is known of the labels of an expression's result.
type labelFlow struct {
	ofDCGM  bool     // it reads fields of DCGM
	foreign bool     // it reads other series
	own     []string // labels that the query creates: its own names, which stay
	variant []string // labels of podgauge's series that DCGM's lack: clock="sm"
	grouped []string // labels of dcgm-exporter by which the query groups
	noOwner bool     // podgauge's series have empty owner labels
	noInfo  []string // labels of nvidia_gpu_info that are not joined
}

func (f labelFlow) with(other labelFlow) labelFlow {
	f.ofDCGM = f.ofDCGM || other.ofDCGM
	f.foreign = f.foreign || other.foreign
	f.noOwner = f.noOwner || other.noOwner
	f.own = union(f.own, other.own)
	f.variant = union(f.variant, other.variant)
	f.noInfo = union(f.noInfo, other.noInfo)
	f.grouped = union(f.grouped, other.grouped)
	return f
}

func (f labelFlow) variantNames() (names []string) {
	for _, v := range f.variant {
		name, _, _ := strings.Cut(v, "=")
		names = append(names, name)
	}
	return names
}

// rename returns podgauge's name of a label in the result.
func (f labelFlow) rename(name string) string {
	if !f.ofDCGM || slices.Contains(f.own, name) {
		return name
	}
	return labelOf(name).name
}

// requireLabels fails if the result lacks a label that is read.
func (t *translator) requireLabels(flow labelFlow, names []string) {
	for _, name := range names {
		switch to := flow.rename(name); {
		case slices.Contains(flow.own, name):
		case flow.noOwner && slices.Contains(ownerLabels, to):
			t.fail(fmt.Sprintf(noOwnerReason, name))
		case slices.Contains(flow.noInfo, to):
			t.fail(fmt.Sprintf(noInfoReason, name))
		}
	}
}

// use is how a query reads a selector.
type use struct {
	name     string                       // of a function or an aggregation
	apply    func(selector string) string // the term around a selector
	span     string                       // of a range vector
	unscaled bool                         // the factor does not change the result
	presence bool                         // the result depends only on which samples there are
	anyGPU   bool                         // the result does not depend on the number of series
	squared  bool
	increase bool // the result does not depend on where a counter begins
}

// instant is the use of a plain selector.
var instant = use{apply: func(selector string) string { return selector }}

// Functions by what they read.
var (
	presenceFunctions = []string{
		"absent", "absent_over_time", "count", "count_over_time", "present_over_time", "timestamp",
	}
	unscaledFunctions = []string{
		"changes", "resets", "ts_of_first_over_time", "ts_of_last_over_time", "ts_of_max_over_time",
		"ts_of_min_over_time",
	}
	counterFunctions  = []string{"increase", "irate", "rate"}
	increaseFunctions = append([]string{"changes", "delta", "deriv", "idelta", "resets"}, counterFunctions...)
	// sampleFunctions depend on the number or times of samples, or on the selector's matchers.
	sampleFunctions = []string{"absent", "absent_over_time", "count_over_time", "sum_over_time", "timestamp"}
)

// useBy returns the use by a function.
func useBy(function, span string, apply func(selector string) string) use {
	presence := slices.Contains(presenceFunctions, function)
	return use{
		name: function, apply: apply, span: span,
		unscaled: presence || slices.Contains(unscaledFunctions, function), presence: presence,
		anyGPU:   strings.HasPrefix(function, "absent"),
		squared:  function == "stdvar_over_time",
		increase: slices.Contains(increaseFunctions, function),
	}
}

// paren puts an expression into parentheses if an operator next to it could change its meaning.
func paren(e parser.Expr) parser.Expr {
	switch e.(type) {
	case *parser.BinaryExpr, *parser.UnaryExpr:
		return &parser.ParenExpr{Expr: e}
	default:
		return e
	}
}

// unwrap returns an expression without its outer parentheses.
func unwrap(e parser.Expr) parser.Expr {
	for {
		p, ok := e.(*parser.ParenExpr)
		if !ok {
			return e
		}
		e = p.Expr
	}
}

// union returns the names of both lists, sorted.
func union(a, b []string) []string {
	all := slices.Concat(a, b)
	slices.Sort(all)
	return slices.Compact(all)
}
