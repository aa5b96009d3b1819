package app

import (
	"slices"
	"strconv"

	"github.com/podgauge/podgauge/internal/config"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/plugin"
	"github.com/podgauge/podgauge/plugin/answer"
	"github.com/podgauge/podgauge/plugin/preferred"
)

// rules are what the settings ask of the plugin. HasSpec tells of what there is a
// CDI spec; channels are the IMEX channels that the node has.
func rules(s config.Settings, hasSpec func(class string) bool, channels []int) plugin.Rules {
	return plugin.Rules{
		MIG:      strategies[s.MIGStrategy],
		Selected: func(d device.Device) bool { return s.Select.Allows(described(d)) },
		Name: func(d device.Device) string {
			if d.WholeGPU() {
				return s.Resources.GPU(d.Model)
			}
			return s.Resources.MIG(s.MIGStrategy, d.Profile)
		},
		Share: func(resource string, devices []device.Device) []plugin.Share {
			return shares(s.Sharing, resource, devices)
		},
		Answer: func(resource string) answer.Options {
			o := answers(s, channels)
			o.HasSpec = hasSpec
			if sharedByMPS(s.Sharing, resource) {
				o.MPSRoot = s.MPSRoot
			}
			return o
		},
		Policy:   policies[s.AllocationPolicy],
		PreStart: s.PreStartCheck, ReserveClaimed: s.Claims.ReserveDevices,
	}
}

// What the words of the settings mean.
var (
	strategies = map[string]plugin.MIG{config.MIGNone: plugin.MIGNone, config.MIGSingle: plugin.MIGSingle, config.MIGMixed: plugin.MIGMixed}
	policies   = map[string]preferred.Policy{
		config.AllocateDistributed: preferred.Distributed, config.AllocatePacked: preferred.Packed, config.AllocateDistinct: preferred.Distinct,
	}
)

// described is a device as a config names it.
func described(d device.Device) config.Device {
	c := config.Device{UUID: string(d.ID), Index: strconv.Itoa(d.Index), PCI: d.PCI, Model: d.Model}
	if !d.WholeGPU() {
		c.GPU, c.Index = string(d.GPU), c.Index+":"+strconv.Itoa(d.Slice)
	}
	return c
}

// shares says how devices of one resource are shared.
func shares(s config.Sharing, resource string, devices []device.Device) []plugin.Share {
	shared, _ := s.Active()
	named := make([]config.Device, len(devices))
	for i, d := range devices {
		named[i] = described(d)
	}
	all := make([]plugin.Share, len(devices))
	for i, share := range shared.Shares(resource, named) {
		all[i] = plugin.Share{Resource: share.Resource, Replicas: share.Replicas, OnlyOne: shared.FailRequestsGreaterThanOne}
	}
	return all
}

// sharedByMPS tells whether replicas are offered under this name whose holders
// share through MPS.
func sharedByMPS(s config.Sharing, resource string) bool {
	return slices.ContainsFunc(s.MPS.Resources, func(r config.SharedResource) bool {
		return resource == r.Rename || r.Rename == "" && resource == r.Name
	})
}

// answers says how devices are passed on to a container's runtime.
func answers(s config.Settings, channels []int) answer.Options {
	o := answer.Options{
		IDs: answer.IDStrategy(s.DeviceIDStrategy), DeviceSpecs: s.PassDeviceSpecs, DevRoot: s.DevRoot,
		AnnotationPrefix: s.CDIAnnotationPrefix, GDRCopy: s.GDRCopy, GDS: s.GDS, MOFED: s.MOFED, IMEXChannels: channels,
	}
	for _, strategy := range s.DeviceListStrategy {
		o.Strategies = append(o.Strategies, answer.Strategy(strategy))
	}
	return o
}
