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

// pluginRules are what the settings ask of the plugin. HasSpec tells of what there is a
// CDI spec; channels are the IMEX channels that the node has.
func pluginRules(s config.Settings, hasSpec func(class string) bool, channels []int) plugin.Rules {
	return plugin.Rules{
		MIGStrategy: migStrategies[s.MIGStrategy],
		Select:      func(d device.Device) bool { return s.DeviceFilter.Allows(configDevice(d)) },
		ResourceName: func(d device.Device) string {
			if d.WholeGPU() {
				return s.Resources.GPU(d.Model)
			}
			return s.Resources.MIG(s.MIGStrategy, d.Profile)
		},
		Sharing: func(resource string, devices []device.Device) []plugin.Sharing {
			return replicasOf(s.Sharing, resource, devices)
		},
		ResponseOptions: func(resource string) response.Options {
			o := responseOptions(s, channels)
			o.HasCDISpec = hasSpec
			if usesMPS(s.Sharing, resource) {
				o.MPSRoot = s.MPSRoot
			}
			return o
		},
		Policy:        preferred.AllocationPolicy(s.AllocationPolicy),
		PreStartCheck: s.PreStartCheck, ReserveClaimed: s.Claims.ReserveDevices,
	}
}

// What the words of the settings mean.
var migStrategies = map[string]plugin.MIGStrategy{config.MIGNone: plugin.MIGNone, config.MIGSingle: plugin.MIGSingle, config.MIGMixed: plugin.MIGMixed}

// configDevice is a device as a config names it.
func configDevice(d device.Device) config.DeviceIdentity {
	c := config.DeviceIdentity{UUID: string(d.ID), Index: strconv.Itoa(d.Index), PCI: d.PCI, Model: d.Model}
	if !d.WholeGPU() {
		c.GPU, c.Index = string(d.GPU), c.Index+":"+strconv.Itoa(d.MIGDeviceIndex)
	}
	return c
}

// replicasOf says how devices of one resource are shared.
func replicasOf(s config.SharingConfig, resource string, devices []device.Device) []plugin.Sharing {
	method, _ := s.Active()
	configDevices := make([]config.DeviceIdentity, len(devices))
	for i, d := range devices {
		configDevices[i] = configDevice(d)
	}
	all := make([]plugin.Sharing, len(devices))
	for i, replicas := range method.ReplicasFor(resource, configDevices) {
		all[i] = plugin.Sharing{Resource: replicas.Resource, Replicas: replicas.Replicas, OnePerContainer: method.FailRequestsGreaterThanOne}
	}
	return all
}

// usesMPS tells whether replicas are offered under this name whose holders
// share through MPS.
func usesMPS(s config.SharingConfig, resource string) bool {
	return slices.ContainsFunc(s.MPS.Resources, func(r config.SharedResource) bool {
		return resource == r.Rename || r.Rename == "" && resource == r.Name
	})
}

// responseOptions says how devices are passed on to a container's runtime.
func responseOptions(s config.Settings, channels []int) response.Options {
	o := response.Options{
		IDStrategy: response.DeviceIDStrategy(s.DeviceIDStrategy), DeviceSpecs: s.PassDeviceSpecs, DevRoot: s.DevRoot,
		AnnotationPrefix: s.CDIAnnotationPrefix, GDRCopy: s.GDRCopy, GDS: s.GDS, MOFED: s.MOFED, IMEXChannels: channels,
	}
	for _, strategy := range s.DeviceListStrategy {
		o.Strategies = append(o.Strategies, response.DeviceListStrategy(strategy))
	}
	return o
}
