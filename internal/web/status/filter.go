package status

import (
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/incident"
	"github.com/podgauge/podgauge/internal/web/api"
)

// filter selects the devices shown. The zero filter selects all.
type filter struct {
	Pod   string // part of a pod's name, or "namespace/pod"
	State string // one of filterStates
}

// filterStates are health states and states of allocation, in the order of the page.
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

// href returns the link to the page with this filter.
func (f filter) href() string {
	query := url.Values{}
	for name, value := range map[string]string{"pod": f.Pod, "state": f.State} {
		if value != "" {
			query.Set(name, value)
		}
	}
	if len(query) == 0 {
		return "./"
	}
	return "?" + query.Encode()
}

// podHref returns the link to the devices of a pod.
func podHref(o *device.Owner) string { return filter{Pod: o.Namespace + "/" + o.Pod}.href() }

func (f filter) matchesOwner(o *device.Owner) bool {
	if strings.Contains(f.Pod, "/") { // no name of a pod has one
		return o.Namespace+"/"+o.Pod == f.Pod
	}
	return strings.Contains(o.Pod, f.Pod)
}

// matchesPod reports whether a matching pod has the device, or was affected by the incident shown with the device.
func (f filter) matchesPod(card *deviceCard) bool {
	return f.Pod == "" || slices.ContainsFunc(card.Owners, func(o api.OwnerJSON) bool { return f.matchesOwner(&o.Owner) }) ||
		card.LastFault != nil && f.affects(card.LastFault.Affected)
}

func (f filter) affects(all []incident.AffectedContainer) bool {
	return slices.ContainsFunc(all, func(c incident.AffectedContainer) bool { return f.matchesOwner(&c.Owner) })
}

// hasState reports whether the device is in a state.
func (c *deviceCard) hasState(state string) bool {
	switch state {
	case "":
		return true
	case "allocated":
		return c.IsAllocated()
	case "unallocated":
		return c.isUnallocated()
	}
	return c.Health == state
}

func (f filter) matches(card *deviceCard) bool { return card.hasState(f.State) && f.matchesPod(card) }

// apply returns the matching GPUs, with the matching MIG devices only.
func (f filter) apply(gpus []*deviceCard) (matching []*deviceCard) {
	if f == (filter{}) {
		return gpus
	}
	for _, g := range gpus {
		all := len(g.MIGDevices)
		g.MIGDevices = slices.DeleteFunc(g.MIGDevices, func(m *deviceCard) bool { return !f.matches(m) })
		if len(g.MIGDevices) < all {
			g.Partition = nil // the map links to all MIG devices
		}
		if len(g.MIGDevices) > 0 || all == 0 && f.matches(g) {
			matching = append(matching, g)
		}
	}
	return matching
}

// filterLink is a link to the devices in a state.
type filterLink struct {
	filter
	Count   int
	Current bool
}

// links returns links to all devices and to each state, in fixed places. The filter of pods stays.
func (f filter) links(gpus []*deviceCard) (links []filterLink) {
	var devices []*deviceCard
	for _, g := range gpus {
		if len(g.MIGDevices) == 0 {
			devices = append(devices, g)
		}
		devices = append(devices, g.MIGDevices...)
	}
	for _, state := range append([]string{""}, filterStates...) {
		link := filter{f.Pod, state}
		links = append(links, filterLink{link, countCards(devices, link.matches), state == f.State})
	}
	return links
}
