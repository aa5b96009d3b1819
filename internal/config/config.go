// Package config has the settings of the device plugin: flags, environment
// variables and a file, spelled as NVIDIA's device plugin spells them.
//
// A table (settings.go) has each setting once. The flags, the known keys of the
// file, the precedence and docs/reference/config.md derive from the table. A
// Builder makes Settings, and a Watcher makes new Settings when the file
// changes.
package config

import (
	"github.com/podgauge/podgauge/plugin/preferred"
	"github.com/podgauge/podgauge/plugin/response"
)

// Settings are all settings of the device plugin. Published Settings are
// immutable.
type Settings struct {
	MIGStrategy     string
	FailOnInitError bool

	// DriverRoot and DevRoot are paths on the host. ContainerDriverRoot is the
	// mount of the driver root in this container.
	DriverRoot, DevRoot, ContainerDriverRoot string

	PassDeviceSpecs     bool
	DeviceListStrategy  []response.DeviceListStrategy // at least one, each once
	DeviceIDStrategy    response.DeviceIDStrategy
	GDRCopy, GDS, MOFED bool

	CDIAnnotationPrefix string
	CDIHookPath         string
	CDIFeatureFlags     []string
	CDIDisabledHooks    []string

	MPSRoot          string
	AllocationPolicy preferred.AllocationPolicy
	DeviceDiscovery  string
	IMEX             IMEX
	KubeletSocket    string // empty: no registration
	Health           HealthConfig

	Sharing       SharingConfig
	Resources     ResourceNames
	DeviceFilter  DeviceFilter
	Claims        ClaimsConfig
	PreStartCheck bool
	ExpectedGPUs  int // 0: any number
}

// IMEX has the channels of the NVLink fabric for every container.
type IMEX struct {
	ChannelIDs []int // none, or 0
	Required   bool  // a missing channel is an error
}
