package exporter

import (
	"strings"

	"github.com/podgauge/podgauge/internal/device"
)

// familyDesc is the name, help and type of a metric family.
type familyDesc struct {
	name, help string
	counter    bool
	labels     []string // in addition to the labels of all series of a device
}

func gaugeDesc(name, help string, labels ...string) familyDesc {
	return familyDesc{name: name, help: help, labels: labels}
}

func counterDesc(name, help string, labels ...string) familyDesc {
	return familyDesc{name: name, help: help, counter: true, labels: labels}
}

// rowDesc returns the family of a row.
func rowDesc(m device.Metric) familyDesc {
	d := familyDesc{name: m.Name, help: m.Help, counter: m.Kind == device.OwnerCounter || m.Kind == device.FaultCounter}
	for _, l := range m.Labels {
		d.labels = append(d.labels, l.Name)
	}
	return d
}

// labelled returns the family's own labels with their values.
func (d *familyDesc) labelled(values []string) []device.Label {
	labels := make([]device.Label, len(values))
	for i, value := range values {
		labels[i] = device.Label{Name: d.labels[i], Value: value}
	}
	return labels
}

func (d *familyDesc) typeName() string {
	if d.counter {
		return "counter"
	}
	return "gauge"
}

// header returns the HELP and TYPE lines. OpenMetrics drops a counter's _total, has no counter without that suffix, as
// dcgm-exporter has, and escapes quotes in the help as well.
func (d *familyDesc) header(openMetrics bool) []byte {
	name, kind, escaper := d.name, d.typeName(), helpEscaper
	if openMetrics {
		escaper = labelEscaper
		if short, ok := strings.CutSuffix(name, "_total"); ok && d.counter {
			name = short
		} else if d.counter {
			kind = "unknown"
		}
	}
	return []byte("# HELP " + name + " " + escaper.Replace(d.help) + "\n# TYPE " + name + " " + kind + "\n")
}

// Characters to escape in a help text, and in the value of a label.
var (
	helpEscaper  = strings.NewReplacer(`\`, `\\`, "\n", `\n`)
	labelEscaper = strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)
)
