package exporter

import (
	"cmp"
	"slices"

	"github.com/podgauge/podgauge/internal/device"
)

// familyDesc is what is known of a family before there is a series of it.
type familyDesc struct {
	name, help string
	counter    bool
	labels     []string // beside those that all of its kind have
}

func gaugeDesc(name, help string, labels ...string) familyDesc {
	return familyDesc{name: name, help: help, labels: labels}
}

func counterDesc(name, help string, labels ...string) familyDesc {
	return familyDesc{name: name, help: help, counter: true, labels: labels}
}

// rowDesc is a row's family.
func rowDesc(m device.Metric) familyDesc {
	d := familyDesc{name: m.Name, help: m.Help, counter: m.Kind == device.OwnerCounter || m.Kind == device.FaultCounter}
	for _, l := range m.Labels {
		d.labels = append(d.labels, l.Name)
	}
	return d
}

// Family is one that a scrape may have, for those who document it.
type Family struct {
	Name, Help, Type string
	// Labels are those beside uuid, gpu, mig_uuid, namespace, pod and container.
	Labels []string
}

// Families are all that no row of a backend makes, by name. Those of this process, which
// a registry has, are not among them.
func Families() []Family {
	rm := newRenderedMetrics(&Sources{}, &Options{})
	families := make([]Family, 0, len(rm.families))
	for _, f := range rm.families {
		kind := "gauge"
		if f.counter {
			kind = "counter"
		}
		families = append(families, Family{f.name, f.help, kind, f.labels})
	}
	slices.SortFunc(families, func(a, b Family) int { return cmp.Compare(a.Name, b.Name) })
	return families
}
