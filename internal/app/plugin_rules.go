package app

import (
	"slices"
	"strconv"

	"github.com/podgauge/podgauge/internal/config"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/plugin"
	"github.com/podgauge/podgauge/plugin/preferred"
	"github.com/podgauge/podgauge/plugin/response"
)

var migStrategies = map[string]plugin.MIGStrategy{config.MIGNone: plugin.MIGNone, config.MIGSingle: plugin.MIGSingle, config.MIGMixed: plugin.MIGMixed}

// pluginRules returns the Rules of the settings. hasSpec reports whether a CDI class has a spec; channels are the node's IMEX channels.
func pluginRules(s config.Settings, hasSpec func(class string) bool, channels []int) plugin.Rules {
	options := response.Options{
		IDStrategy: response.DeviceIDStrategy(s.DeviceIDStrategy), DeviceSpecs: s.PassDeviceSpecs, DevRoot: s.DevRoot, HasCDISpec: hasSpec,
		AnnotationPrefix: s.CDIAnnotationPrefix, GDRCopy: s.GDRCopy, GDS: s.GDS, MOFED: s.MOFED, IMEXChannels: channels,
	}
	for _, strategy := range s.DeviceListStrategy {
		options.Strategies = append(options.Strategies, response.DeviceListStrategy(strategy))
	}
	return plugin.Rules{
		MIGStrategy: migStrategies[s.MIGStrategy],
		Select:      func(d device.Device) bool { return s.DeviceFilter.Allows(deviceIdentity(d)) },
		ResourceName: func(d device.Device) string {
			if d.WholeGPU() {
				return s.Resources.GPU(d.Model)
			}
			return s.Resources.MIG(s.MIGStrategy, d.Profile)
		},
		Sharing: func(resource string, devices []device.Device) []plugin.Sharing {
			return sharingOf(s.Sharing, resource, devices)
		},
		ResponseOptions: func(resource string) response.Options {
			o := options
			if usesMPS(s.Sharing, resource) {
				o.MPSRoot = s.MPSRoot
			}
			return o
		},
		Policy:        preferred.AllocationPolicy(s.AllocationPolicy),
		PreStartCheck: s.PreStartCheck, ReserveClaimed: s.Claims.ReserveDevices,
	}
}

// deviceIdentity returns a device's names for selectors.
func deviceIdentity(d device.Device) config.DeviceIdentity {
	c := config.DeviceIdentity{UUID: string(d.ID), Index: strconv.Itoa(d.Index), PCI: d.PCI, Model: d.Model}
	if !d.WholeGPU() {
		c.GPU, c.Index = string(d.GPU), c.Index+":"+strconv.Itoa(d.MIGDeviceIndex)
	}
	return c
}

// sharingOf returns how each device of a resource is shared.
func sharingOf(s config.SharingConfig, resource string, devices []device.Device) []plugin.Sharing {
	method, _ := s.Active()
	identities := make([]config.DeviceIdentity, len(devices))
	for i, d := range devices {
		identities[i] = deviceIdentity(d)
	}
	all := make([]plugin.Sharing, len(devices))
	for i, replicas := range method.ReplicasFor(resource, identities) {
		all[i] = plugin.Sharing{Resource: replicas.Resource, Replicas: replicas.Replicas, OnePerContainer: method.FailRequestsGreaterThanOne}
	}
	return all
}

// usesMPS reports whether a resource is shared through MPS.
func usesMPS(s config.SharingConfig, resource string) bool {
	return slices.ContainsFunc(s.MPS.Resources, func(r config.SharedResource) bool {
		return resource == r.Rename || r.Rename == "" && resource == r.Name
	})
}
