package exporter

import (
	_ "embed"
	"strings"

	"github.com/podgauge/podgauge/internal/device"
)

// Family is a metric family.
type Family struct {
	Name, Help string
	Type       string   // "gauge" or "counter"
	Labels     []string // in addition to uuid, gpu, mig_uuid, namespace, pod and container
}

func gaugeDesc(name, help string, labels ...string) Family {
	return Family{name, help, "gauge", labels}
}

func counterDesc(name, help string, labels ...string) Family {
	return Family{name, help, "counter", labels}
}

// rowDesc returns the family of a row. Sources.Metrics has the labels.
func rowDesc(m device.Metric) Family {
	if m.Kind == device.OwnerCounter || m.Kind == device.FaultCounter {
		return counterDesc(m.Name, m.Help)
	}
	return gaugeDesc(m.Name, m.Help)
}

// labelled returns the family's own labels with their values.
func (f *Family) labelled(values []string) []device.Label {
	labels := make([]device.Label, len(values))
	for i, value := range values {
		labels[i] = device.Label{Name: f.Labels[i], Value: value}
	}
	return labels
}

// header returns the HELP and TYPE lines. OpenMetrics drops a counter's _total, has no counter without that suffix, as
// dcgm-exporter has, and escapes quotes in the help as well.
func (f *Family) header(openMetrics bool) []byte {
	name, kind, escaper := f.Name, f.Type, helpEscaper
	if openMetrics {
		escaper = labelEscaper
		if short, ok := strings.CutSuffix(name, "_total"); ok && kind == "counter" {
			name = short
		} else if kind == "counter" {
			kind = "unknown"
		}
	}
	return []byte("# HELP " + name + " " + escaper.Replace(f.Help) + "\n# TYPE " + name + " " + kind + "\n")
}

// Characters to escape in a help text, and in the value of a label.
var (
	helpEscaper  = strings.NewReplacer(`\`, `\\`, "\n", `\n`)
	labelEscaper = strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)
)

// familyTable has the families not made from rows of readings, by name. A line has the name, the type, the labels as in Family, and the
// help.
//
//go:embed families.txt
var familyTable string

// Families returns all families not made from rows of readings, by name. Podgauge's own, in a registry, are not included.
func Families() (families []Family) {
	for line := range strings.Lines(familyTable) {
		column := strings.SplitN(strings.TrimSpace(line), " | ", 4)
		families = append(families, Family{column[0], column[3], column[1], strings.Fields(column[2])})
	}
	return families
}
