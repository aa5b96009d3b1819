package sim_test

import (
	"context"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/plugin"
)

// inventorySource offers each device of an inventory. It implements plugin.DeviceSource.
type inventorySource struct{ *device.Inventory }

func (s inventorySource) Statuses() ([]device.Status, <-chan struct{}) { return s.Get() }
func (inventorySource) Rules() (plugin.Rules, <-chan struct{})         { return plugin.Rules{}, nil }
func (inventorySource) Links() []device.Link                           { return nil }
func (inventorySource) Allocations() (device.Allocations, <-chan struct{}) {
	return device.Allocations{}, nil
}
func (inventorySource) CheckUsable(context.Context, plugin.UsabilityCheck) error { return nil }
