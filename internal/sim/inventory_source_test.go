package sim_test

import (
	"context"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/plugin"
)

// inventorySource lists each device of an inventory. It implements
// plugin.DeviceSource.
type inventorySource struct{ *device.Inventory }

func (s inventorySource) Statuses() ([]device.Status, <-chan struct{}) { return s.Get() }
func (inventorySource) Rules() (plugin.Rules, <-chan struct{})         { return plugin.Rules{}, nil }
func (inventorySource) Links() []device.Link                           { return nil }
func (inventorySource) Allocations() (device.Allocations, <-chan struct{}) {
	return device.Allocations{}, nil
}
func (inventorySource) CheckUsable(context.Context, plugin.UsabilityCheck) error { return nil }

// noHooks ignores all events of a plugin.
type noHooks struct{}

func (noHooks) OnResourceAdded(string)                                               {}
func (noHooks) OnRegistered(string, error)                                           {}
func (noHooks) OnStreamCount(string, int)                                            {}
func (noHooks) OnListSent(string, int, int)                                          {}
func (noHooks) OnCallServed(string, time.Duration, error)                            {}
func (noHooks) OnAllocated(string, []device.AdvertisedID)                            {}
func (noHooks) OnRejected(string, []device.AdvertisedID, plugin.RejectReason, error) {}
func (noHooks) OnResourceReleased(string)                                            {}
func (noHooks) OnOtherPlugin(string, bool)                                           {}
