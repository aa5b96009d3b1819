package status

import (
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/web/api"
)

// viewBuilder has the state from which all parts of a page are built.
type viewBuilder struct {
	PageState
	now             time.Time
	readings        Readings
	node            api.DevicesResponse
	statuses        []device.Status
	allocations     device.Allocations
	pluginResources []PluginResource
	anchors         map[string]int // devices per anchor
}

func newViewBuilder(state PageState, o *PageOptions, readings Readings, now time.Time) *viewBuilder {
	b := &viewBuilder{
		PageState: state, now: now, readings: readings, node: api.Devices(o.Node, state, now),
		pluginResources: state.PluginResources(), anchors: map[string]int{},
	}
	b.statuses, _ = state.Statuses()
	b.allocations, _ = state.Allocations()
	return b
}

// statusOf returns the published status of a device.
func (b *viewBuilder) statusOf(id device.ID) device.Status {
	for i := range b.statuses {
		if b.statuses[i].ID == id {
			return b.statuses[i]
		}
	}
	return device.Status{Device: device.Device{GI: -1}}
}

// nameValue is a name and a value.
type nameValue struct{ Name, Value string }

// addKnown appends the pairs with a value.
func addKnown(list []nameValue, pairs ...nameValue) []nameValue {
	for _, p := range pairs {
		if p.Value != "" {
			list = append(list, nameValue{p.Name, sanitize(p.Value)})
		}
	}
	return list
}
