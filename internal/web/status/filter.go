package status

import (
	"fmt"
	"slices"
	"strings"

	"github.com/podgauge/podgauge/internal/allocation"
	"github.com/podgauge/podgauge/internal/incident"
	"github.com/podgauge/podgauge/internal/web/api"
)

// filter selects the devices shown. The zero filter selects all.
type filter struct {
	Pod   string // part of a pod's name, or "namespace/pod"
	State string // one of filterStates
}

// filterStates are health states, the most urgent first, and states of
// allocation.
var filterStates = []string{"unhealthy", "recovering", "suspect", "healthy", "allocated", "unallocated"}

// parseFilter parses the parameters of the page's URL.
func parseFilter(rawQuery string) (filter, error) {
	parameters, err := api.ParseParameters(rawQuery, []string{"pod", "state"})
	f := filter{parameters["pod"], parameters["state"]}
	if f.State != "" && !slices.Contains(filterStates, f.State) {
		err = fmt.Errorf("state %q: expected %s", f.State, strings.Join(filterStates, ", "))
	}
	return f, err
}

func (f filter) matchesOwner(o allocation.Owner) bool {
	if strings.Contains(f.Pod, "/") { // no name of a pod has one
		return o.Namespace+"/"+o.Pod == f.Pod
	}
	return strings.Contains(o.Pod, f.Pod)
}

// affects reports whether a matching pod was affected by an incident.
func (f filter) affects(all []incident.AffectedContainer) bool {
	return slices.ContainsFunc(all, func(c incident.AffectedContainer) bool { return f.matchesOwner(c.Owner) })
}
