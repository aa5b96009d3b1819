package migrate

import (
	"cmp"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
)

const (
	rateReason = "%s is a rate already, and %s of it has no meaning: use rate(%s%s)"
	sinceStart = "DCGM counts from the driver's start, podgauge from its own for each owner: only an increase, " +
		"as rate(%s[5m]), is equal"
	migNote = "translations without --mig are equal in clusters without partitioned GPUs"
)

// reading translates a term that reads a field.
func (t *translator) reading(v *parser.VectorSelector, f field, u use) (parser.Expr, labelFlow) {
	flow := t.flowOf(v, f)
	if f.note != "" {
		t.note(f.note)
	}
	span := u.span
	isComputed := f.kind == rate && !u.presence || !f.isSimple()
	ofCounters := strings.HasSuffix(f.sum[0].name, "_total") && slices.Contains(counterFunctions, u.name)
	switch {
	case f.kind == ownerCounter && !u.increase && !u.presence:
		t.fail(fmt.Sprintf(sinceStart, f.sum[0].name))
	case f.kind == rate && u.increase:
		t.fail(fmt.Sprintf(rateReason, v.Name, u.name, f.sum[0].name, span))
	case isComputed && slices.Contains(sampleFunctions, u.name):
		t.fail(fmt.Sprintf("%s depends on samples of %s, which podgauge computes from other series", u.name, v.Name))
	case f.kind == rate && !u.presence && (span == "" || u.name == "avg_over_time"):
		outer := u.apply
		if span != "" {
			outer = instant.apply
		}
		u.apply = func(selector string) string { return outer("rate(" + selector + ")") }
		u.span = cmp.Or(span, "["+t.window+"]")
	case span != "" && isComputed && !ofCounters:
		inner, _ := t.reading(v, f, instant)
		return t.parse(u.apply(fmt.Sprintf("(%s)%s:]", unwrap(inner), strings.TrimSuffix(span, "]")))), flow
	}
	if len(t.reasons) > 0 {
		return v, flow
	}
	return paren(t.parse(t.term(v, f, u))), flow
}

// flowOf returns what is known of the labels of a field's series.
func (t *translator) flowOf(v *parser.VectorSelector, f field) labelFlow {
	onlyMIG := slices.ContainsFunc(v.LabelMatchers, selectsMIGDevices) // with owners of nvidia_gpu_allocated
	flow := labelFlow{ofDCGM: true, variant: f.variant(), noOwner: f.kind == ofDevice && !onlyMIG}
	for _, l := range labelsOfDCGM {
		if l.isInfo && !slices.Contains(t.info, l.name) {
			flow.noInfo = union(flow.noInfo, []string{l.name})
		}
	}
	return flow
}

// term returns scale × sum ÷ per of a field's series.
func (t *translator) term(v *parser.VectorSelector, f field, u use) string {
	matchers, info := t.matchers(v, t.flowOf(v, f))
	if u.anyGPU && (len(info) > 0 || slices.ContainsFunc(v.LabelMatchers, selectsMIGDevices)) {
		t.fail(u.name + " by labels of nvidia_gpu_info: write it by hand")
	}
	text := t.sum(v, f, f.sum, matchers, u)
	if len(f.per) > 0 {
		text = fmt.Sprintf("(%s) / (%s)", text, t.sum(v, f, f.per, matchers, u))
	} else if len(f.sum) > 1 {
		text = "(" + text + ")"
	}
	if !u.anyGPU && len(info)+len(t.info) > 0 {
		text += fmt.Sprintf(" * %s group_left (%s) %s", deviceMatching, strings.Join(t.info, ", "),
			at(v, "nvidia_gpu_info", info...))
	}
	if !u.unscaled {
		text += factorText(f.scale)
	}
	if u.squared {
		text += factorText(f.scale)
	}
	return text
}

// sum returns the sum of families.
func (t *translator) sum(
	v *parser.VectorSelector, f field, all []family, matchers []*labels.Matcher, u use,
) string {
	var text strings.Builder
	for i, summand := range all {
		sign := 1.0
		if i > 0 {
			sign = summand.rows[0].weight
			text.WriteString(map[bool]string{true: " - ", false: " + "}[sign < 0])
		}
		var rows, differing []string
		for _, r := range summand.rows {
			rows = append(rows, t.row(v, f, summand.name, r, matchers, u)+factorText(r.weight*sign))
			differing = union(differing, r.labelNames())
		}
		if len(rows) > 1 {
			fmt.Fprintf(&text, "sum without (%s) (%s)", strings.Join(differing, ", "), strings.Join(rows, " or "))
		} else {
			text.WriteString(rows[0])
		}
	}
	return text.String()
}

// row returns the term of one row of a family.
func (t *translator) row(
	v *parser.VectorSelector, f field, name string, r row, matchers []*labels.Matcher, u use,
) string {
	of := func(matchers ...*labels.Matcher) string {
		out := *v
		out.Name = name
		out.LabelMatchers = slices.Concat(matchers, r.matchers)
		return u.apply(selectorText(&out, u.span))
	}
	text := of(matchers...)
	onlyMIG := slices.ContainsFunc(v.LabelMatchers, selectsMIGDevices)
	ofMIGDevice := labels.MustNewMatcher(labels.MatchNotEqual, "mig_uuid", "")
	whole := "(" + text + " unless " + deviceMatching + " " + at(v, "nvidia_gpu_mig_enabled", enabledNow) + " == 1"
	switch {
	case !t.mig && !onlyMIG || u.anyGPU:
		return text
	case onlyMIG && (ofMIGDevices(name, r) || f.ownOnly):
		return of(slices.Concat(matchers, []*labels.Matcher{ofMIGDevice})...)
	case f.ownOnly && !ofMIGDevices(name, r):
		return text // no value in MIG mode
	case ofMIGDevices(name, r):
		return whole + ")"
	}
	// The GPU's value on each of its MIG devices, with the device's owner.
	gpuMatchers := slices.DeleteFunc(slices.Clone(matchers), func(m *labels.Matcher) bool {
		return slices.Contains(ownerLabels, m.Name) || m.Name == "mig_uuid"
	})
	devices := at(v, "nvidia_gpu_allocated", slices.Concat(matchers, []*labels.Matcher{ofMIGDevice})...)
	if u.span != "" && f.kind != ofDevice { // also of owners before the GPU was partitioned
		gpuMatchers = append(gpuMatchers, labels.MustNewMatcher(labels.MatchEqual, "pod", ""))
	}
	spread := fmt.Sprintf("%s * 0 + on (node, uuid) group_left (%s) %s",
		devices, strings.Join(r.labelNames(), ", "), of(gpuMatchers...))
	if onlyMIG {
		return "(" + spread + ")"
	}
	return whole + " or " + spread + ")"
}

var enabledNow = labels.MustNewMatcher(labels.MatchEqual, "when", "now")

// at returns a selector of another family at the same time.
func at(v *parser.VectorSelector, name string, matchers ...*labels.Matcher) string {
	out := *v
	out.Name, out.LabelMatchers = name, matchers
	return out.String()
}

// selectorText returns an instant vector selector, or a range vector selector with a span such as [5m].
func selectorText(v *parser.VectorSelector, span string) string {
	modifier := strings.TrimPrefix((&parser.VectorSelector{
		Name: "x", OriginalOffset: v.OriginalOffset, OriginalOffsetExpr: v.OriginalOffsetExpr,
		Timestamp: v.Timestamp, StartOrEnd: v.StartOrEnd,
	}).String(), "x")
	return strings.TrimSuffix(v.String(), modifier) + span + modifier
}

// selectsMIGDevices reports whether a matcher selects GPU instances only.
func selectsMIGDevices(m *labels.Matcher) bool {
	return isMIGLabel(m.Name) && !m.Matches("") && !hasVariable(m.Value)
}

// selectsSomeMIGDevices reports whether a matcher can select both whole GPUs and GPU instances.
func selectsSomeMIGDevices(m *labels.Matcher) bool {
	return isMIGLabel(m.Name) && m.Value != "" && !selectsMIGDevices(m)
}

// matchers returns the matchers of a selector for the labels of podgauge's series, and those for nvidia_gpu_info. A
// recorded series has the labels of both, and those of its rule.
func (t *translator) matchers(v *parser.VectorSelector, flow labelFlow) (own, info []*labels.Matcher) {
	ofExporter := t.readsPrefixedOwners(v)
	_, isRecorded := t.records[v.Name]
	for _, m := range v.LabelMatchers {
		l := labelOf(m.Name)
		isOwner := slices.Contains(ownerLabels, m.Name)
		isOwn := slices.Contains(flow.own, m.Name)
		if l.value != nil && !isOwn && hasVariable(m.Value) {
			t.note(l.note)
		}
		switch {
		case m.Name == model.MetricNameLabel:
		case isOwn:
			own = append(own, m)
		case l.reason != "":
			t.fail(l.reason)
		case selectsDCGMExporter(m), isOwner && (ofExporter || exporterPattern.MatchString(m.Value)):
			t.note("left out the matcher " + m.String() + " of dcgm-exporter's scrape job")
		case m.Name == "GPU_I_ID" && m.Value == "" && !isRecorded:
			own = append(own, labels.MustNewMatcher(m.Type, "mig_uuid", ""))
		case l.isInfo && !isRecorded:
			info = append(info, renamedMatcher(m, l))
		default:
			t.requireLabels(flow, []string{m.Name})
			own = append(own, renamedMatcher(m, l))
		}
	}
	return own, info
}

// readsPrefixedOwners reports whether the query reads owners as Prometheus renames them without honor_labels. Then the
// plain labels are of dcgm-exporter's pod.
func (t *translator) readsPrefixedOwners(v *parser.VectorSelector) bool {
	isPlain := func(name string) bool { return slices.Contains(ownerLabels, name) }
	isPrefixed := func(name string) bool { return !isPlain(name) && isPlain(labelOf(name).name) }
	return slices.ContainsFunc(v.LabelMatchers, func(m *labels.Matcher) bool { return isPrefixed(m.Name) }) ||
		slices.ContainsFunc(t.outer, isPrefixed) && !slices.ContainsFunc(t.outer, isPlain)
}

func renamedMatcher(m *labels.Matcher, l label) *labels.Matcher {
	value := m.Value
	if l.value != nil {
		value = l.value(value)
	}
	out, err := labels.NewMatcher(m.Type, l.name, value)
	if err != nil { // the expression is no longer valid with the other values
		return labels.MustNewMatcher(m.Type, l.name, m.Value)
	}
	return out
}

// factorText returns a factor as an operation.
func factorText(scale float64) string {
	switch {
	case scale == 1:
		return ""
	case scale > 1 || scale == 0:
		return " * " + strconv.FormatFloat(scale, 'f', -1, 64)
	default:
		return " / " + strconv.FormatFloat(math.Round(1/scale), 'f', -1, 64)
	}
}

var exporterPattern = regexp.MustCompile(`(?i)dcgm`)

// selectsDCGMExporter reports whether a matcher selects the scrape job of dcgm-exporter.
func selectsDCGMExporter(m *labels.Matcher) bool {
	return m.Name != model.MetricNameLabel && !isLabelOfDCGM(m.Name) && exporterPattern.MatchString(m.Value)
}
