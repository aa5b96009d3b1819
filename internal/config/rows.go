package config

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// row is one setting, once: all that is known of how it is said. A new setting
// is a field of Settings and a row.
type row struct {
	flag    string   // its name
	aliases []string // further flags that NVIDIA's plugin takes for it
	env     []string // the first that is set holds
	path    string   // in the file; empty: it cannot be said there
	byDef   string   // as a flag would say it
	oneOf   []string // the words that there are; none: any
	help    string   // with the name of its value in `quotes`

	into  func(*target) any // the field, by address
	check func(string) error
	// lax: NVIDIA's plugin skips what it cannot read in the variable.
	lax bool
	// empty: an empty variable says that the setting is empty. Of all others it
	// says nothing, since charts write them for values that nobody gave.
	empty bool
	// restart: a file that changes it is rejected until the process is restarted.
	restart bool
	// read is of a setting that has parts, and that only a file can say.
	read func(d *document, t *target, n *node, path string) error
}

// target is what a row sets: the Settings, or where these are to be found.
type target struct {
	Settings
	source                Source
	ignoreXids, countXids []string
	singleXids            map[uint64]Policy
}

var rows = []row{
	// What NVIDIA's plugin has too, under its names.
	{
		flag: "mig-strategy", env: []string{"MIG_STRATEGY"}, path: "flags.migStrategy", byDef: MIGNone, oneOf: []string{MIGNone, MIGSingle, MIGMixed},
		help: "what a partitioned GPU is offered as: none (not at all), single (its slices as GPUs) or mixed (its slices by profile)", into: func(t *target) any { return &t.MIGStrategy },
	},
	{
		flag: "fail-on-init-error", env: []string{"FAIL_ON_INIT_ERROR"}, path: "flags.failOnInitError", byDef: "false",
		help: "end when the driver cannot be used at start, rather than wait for it", into: func(t *target) any { return &t.FailOnInitError },
	},
	{
		flag: "driver-root", aliases: []string{"nvidia-driver-root"}, env: []string{"NVIDIA_DRIVER_ROOT"}, path: "flags.nvidiaDriverRoot", byDef: "/",
		help: "`folder` in which the driver is installed, as the host sees it", into: func(t *target) any { return &t.DriverRoot }, restart: true,
	},
	{
		flag: "dev-root", aliases: []string{"nvidia-dev-root"}, env: []string{"NVIDIA_DEV_ROOT"}, path: "flags.nvidiaDevRoot",
		help: "`folder` that holds dev/nvidia*, as the host sees it (default --driver-root)", into: func(t *target) any { return &t.DevRoot },
	},
	{
		flag: "driver-root-ctr-path", aliases: []string{"container-driver-root"}, env: []string{"DRIVER_ROOT_CTR_PATH", "CONTAINER_DRIVER_ROOT"},
		path: "flags.plugin.containerDriverRoot", byDef: "/driver-root",
		help: "`folder` under which the driver root is mounted here", into: func(t *target) any { return &t.ContainerDriverRoot }, restart: true,
	},
	{
		flag: "pass-device-specs", env: []string{"PASS_DEVICE_SPECS"}, path: "flags.plugin.passDeviceSpecs", byDef: "false",
		help: "have Allocate answer the device nodes as well", into: func(t *target) any { return &t.PassDeviceSpecs },
	},
	{
		flag: "device-list-strategy", env: []string{"DEVICE_LIST_STRATEGY"}, path: "flags.plugin.deviceListStrategy", byDef: ListEnvvar,
		oneOf: []string{ListEnvvar, ListVolumeMounts, ListCDIAnnotations, ListCDICRI},
		help:  "`how` a container gets its devices, one or several: envvar, volume-mounts, cdi-annotations, cdi-cri", into: func(t *target) any { return &t.DeviceListStrategy },
	},
	{
		flag: "device-id-strategy", env: []string{"DEVICE_ID_STRATEGY"}, path: "flags.plugin.deviceIDStrategy", byDef: IDsUUID, oneOf: []string{IDsUUID, IDsIndex},
		help: "what a device is called towards the container runtime: uuid or index", into: func(t *target) any { return &t.DeviceIDStrategy },
	},
	{
		flag: "gdrcopy-enabled", env: []string{"GDRCOPY_ENABLED"}, path: "flags.gdrcopyEnabled", byDef: "false",
		help: "give containers GDRCopy", into: func(t *target) any { return &t.GDRCopy },
	},
	{
		flag: "gds-enabled", env: []string{"GDS_ENABLED"}, path: "flags.gdsEnabled", byDef: "false",
		help: "give containers GPUDirect Storage", into: func(t *target) any { return &t.GDS },
	},
	{
		flag: "mofed-enabled", env: []string{"MOFED_ENABLED"}, path: "flags.mofedEnabled", byDef: "false",
		help: "give containers MOFED", into: func(t *target) any { return &t.MOFED },
	},
	{
		flag: "cdi-annotation-prefix", env: []string{"CDI_ANNOTATION_PREFIX"}, path: "flags.plugin.cdiAnnotationPrefix", byDef: "cdi.k8s.io/",
		help: "`prefix` of the annotations' keys of cdi-annotations", into: func(t *target) any { return &t.CDIAnnotationPrefix },
	},
	{
		flag: "nvidia-cdi-hook-path", aliases: []string{"nvidia-ctk-path"}, env: []string{"NVIDIA_CDI_HOOK_PATH", "NVIDIA_CTK_PATH"},
		path: "flags.plugin.nvidiaCTKPath", byDef: "/usr/bin/nvidia-ctk",
		help: "`path` on the host of the program that runs CDI's hooks", into: func(t *target) any { return &t.CDIHookPath },
	},
	{
		flag: "cdi-feature-flags", env: []string{"CDI_FEATURE_FLAGS"},
		help: "`features` of the CDI specification's generator, one or several", into: func(t *target) any { return &t.CDIFeatureFlags },
	},
	{
		flag: "cdi-disable-hooks", aliases: []string{"cdi-disabled-hooks"}, env: []string{"CDI_DISABLE_HOOKS"},
		help: "`hooks` to leave out of the CDI specification, one or several, or all", into: func(t *target) any { return &t.CDIDisabledHooks },
	},
	{
		flag: "mps-root", env: []string{"MPS_ROOT"}, path: "flags.mpsRoot",
		help: "`folder` on the host of the MPS control daemon's pipes, logs and shared memory", into: func(t *target) any { return &t.MPSRoot },
	},
	{
		flag: "shared-devices-allocation-policy", env: []string{"SHARED_DEVICES_ALLOCATION_POLICY"}, path: "flags.plugin.sharedDevicesAllocationPolicy",
		byDef: AllocateDistributed, oneOf: []string{AllocateDistributed, AllocatePacked, AllocateDistinct},
		help: "which replicas a container gets: distributed, packed or distinct (never two of one GPU)", into: func(t *target) any { return &t.AllocationPolicy },
	},
	{
		flag: "device-discovery-strategy", env: []string{"DEVICE_DISCOVERY_STRATEGY"}, path: "flags.deviceDiscoveryStrategy", byDef: DiscoverAuto,
		help: "how devices are found: auto or nvml", into: func(t *target) any { return &t.DeviceDiscovery }, check: checkDiscovery,
	},
	{
		flag: "imex-channel-ids", env: []string{"IMEX_CHANNEL_IDS"}, path: "imex.channelIDs",
		help: "`channels` of the fabric that every container gets: none or 0", into: func(t *target) any { return &t.IMEX.ChannelIDs }, check: checkChannel,
	},
	{
		flag: "imex-required", env: []string{"IMEX_REQUIRED"}, path: "imex.required", byDef: "false",
		help: "a missing IMEX channel is an error", into: func(t *target) any { return &t.IMEX.Required },
	},
	{
		flag: "kubelet-socket", env: []string{"KUBELET_SOCKET"}, byDef: "/var/lib/kubelet/device-plugins/kubelet.sock", empty: true,
		help: "`path` of the kubelet's registration socket; empty registers nowhere", into: func(t *target) any { return &t.KubeletSocket },
	},
	{
		path: "sharing.timeSlicing", help: "replicas of devices whose holders take turns",
		read: func(d *document, t *target, n *node, path string) error {
			return readShared(d, &t.Sharing.TimeSlicing, n, path)
		},
	},
	{
		path: "sharing.mps", help: "replicas of devices whose holders share through MPS",
		read: func(d *document, t *target, n *node, path string) error {
			t.Sharing.MPS.FailRequestsGreaterThanOne = true // unless it says false
			return readShared(d, &t.Sharing.MPS, n, path)
		},
	},
	{
		path: "resources.gpus", help: "what whole GPUs are offered as, by a glob over their model",
		read: func(d *document, t *target, n *node, path string) error {
			return readPatterns(d, &t.Resources.GPUs, n, path)
		},
	},
	{
		path: "resources.mig", help: "what MIG slices are offered as, by a glob over their profile",
		read: func(d *document, t *target, n *node, path string) error {
			return readPatterns(d, &t.Resources.MIGs, n, path)
		},
	},
	// What NVIDIA's plugin has as variables only.
	{
		flag: "disable-health-checks", env: []string{"DP_DISABLE_HEALTHCHECKS"}, path: "podgauge.disableHealthChecks", lax: true,
		help: "`xids` that leave a device healthy, one or several, or all", into: func(t *target) any { return &t.ignoreXids }, check: checkXid,
	},
	{
		flag: "enable-health-checks", env: []string{"DP_ENABLE_HEALTHCHECKS"}, path: "podgauge.enableHealthChecks", lax: true,
		help: "`xids` that make a device unhealthy whatever else is said of them, or all", into: func(t *target) any { return &t.countXids }, check: checkXid,
	},
	// What is ours.
	{
		path: "podgauge.xids", help: "what becomes of single xids: ignore, warn or unhealthy, whatever else is said of them",
		read: func(_ *document, t *target, n *node, path string) error { return readXids(&t.singleXids, n, path) },
	},
	{
		flag: "include-devices", env: []string{"INCLUDE_DEVICES"}, path: "podgauge.select.include",
		help: "`devices` to offer (default all), by index, UUID, PCI address or model:GLOB", into: func(t *target) any { return &t.Select.Include },
	},
	{
		flag: "exclude-devices", env: []string{"EXCLUDE_DEVICES"}, path: "podgauge.select.exclude",
		help: "`devices` not to offer, whatever is included", into: func(t *target) any { return &t.Select.Exclude },
	},
	{
		flag: "ignore-claims", env: []string{"IGNORE_CLAIMS"}, path: "podgauge.claims.ignore",
		help: "resource `claims` that are not an allocation of their devices, NAMESPACE/NAME or NAMESPACE/NAME/DRIVER, * for any characters: monitoring/*", into: func(t *target) any { return &t.Claims.Ignore },
	},
	{
		flag: "reserve-claimed-devices", env: []string{"RESERVE_CLAIMED_DEVICES"}, path: "podgauge.claims.reserveDevices", byDef: "false",
		help: "make a device that a resource claim has been given unhealthy in the device plugin's list, as long as a container uses the claim", into: func(t *target) any { return &t.Claims.ReserveDevices },
	},
	{
		flag: "pre-start-check", env: []string{"PRE_START_CHECK"}, path: "podgauge.preStartCheck", byDef: "false",
		help: "ask a device before each container's start whether it answers, is healthy, and is free", into: func(t *target) any { return &t.PreStartCheck },
	},
	// Where the file is.
	{
		flag: "config-file", env: []string{"CONFIG_FILE"},
		help: "`path` of a config, of a file with several, or of a folder of them", into: func(t *target) any { return &t.source.File },
	},
	{
		flag: "config-name", env: []string{"CONFIG_NAME"},
		help: "`name` of the config to use of several", into: func(t *target) any { return &t.source.Name },
	},
	{
		flag: "config-name-file", env: []string{"CONFIG_NAME_FILE"},
		help: "`path` of a file that holds that name, and may change", into: func(t *target) any { return &t.source.NameFile },
	},
}

// or lists two words or more as a sentence does.
func or(words []string) string {
	last := len(words) - 1
	return strings.Join(words[:last], ", ") + " or " + words[last]
}

func checkDiscovery(s string) error {
	switch s {
	case DiscoverAuto, DiscoverNVML:
		return nil
	case "tegra":
		return errors.New(`"tegra": podgauge finds GPUs through NVML, which Tegra lacks; keep NVIDIA's plugin on such nodes`)
	}
	return fmt.Errorf("%q: want auto or nvml", s)
}

// checkChannel allows what NVIDIA's plugin allows.
func checkChannel(s string) error {
	if s != "0" {
		return fmt.Errorf("%q: want no channel, or channel 0", s)
	}
	return nil
}

// Variables are the environment variables that stand for a flag.
func Variables(flag string) []string {
	for _, r := range rows {
		if r.flag == flag {
			return slices.Clone(r.env)
		}
	}
	return nil
}
