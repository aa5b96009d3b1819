package config

import (
	"cmp"
	"strings"

	"github.com/podgauge/podgauge/plugin/preferred"
	"github.com/podgauge/podgauge/plugin/response"
)

// setting is a row of the table of settings: flag, variables, key in the file,
// field and help. A new setting is a field of Settings and a row.
type setting struct {
	flag    string   // empty: only a file can express the setting
	aliases []string // of the flag in NVIDIA's plugin
	env     []string // the first set variable counts
	path    string   // in the file; empty: the file cannot express the setting
	help    string   // with the name of the value in `quotes`
	value
}

// row makes a setting. Of the names, a key in the file has a dot, a variable is
// in upper case, and others are flags.
func row(names string, v value, help string) setting {
	s := setting{value: v, help: help}
	for name := range strings.FieldsSeq(names) {
		switch {
		case strings.Contains(name, "."):
			s.path = name
		case strings.ToUpper(name) == name:
			s.env = append(s.env, name)
		case s.flag == "":
			s.flag = name
		default:
			s.aliases = append(s.aliases, name)
		}
	}
	return s
}

// settingsOf returns the table of settings. Its rows set the fields of s and l.
func settingsOf(s *Settings, l *FileLocation) []setting {
	return append(nvidiaSettings(s), podgaugeSettings(s, l)...)
}

// nvidiaSettings returns the settings of NVIDIA's plugin, under NVIDIA's names.
func nvidiaSettings(s *Settings) []setting {
	return []setting{
		row("mig-strategy MIG_STRATEGY flags.migStrategy", oneOf(&s.MIGStrategy, MIGNone, MIGSingle, MIGMixed),
			"resources of a MIG-enabled GPU: none (no resource), single (MIG devices as GPUs) or "+
				"mixed (MIG devices by profile)"),
		row("fail-on-init-error FAIL_ON_INIT_ERROR flags.failOnInitError", boolean(&s.FailOnInitError),
			"exit if the driver cannot be used at start, instead of waiting for the driver"),
		row("driver-root nvidia-driver-root NVIDIA_DRIVER_ROOT flags.nvidiaDriverRoot", oneText(&s.DriverRoot, "/"),
			"`folder` of the driver on the host"),
		row("dev-root nvidia-dev-root NVIDIA_DEV_ROOT flags.nvidiaDevRoot", oneText(&s.DevRoot, ""),
			"`folder` with dev/nvidia* on the host (default --driver-root)"),
		row("driver-root-ctr-path container-driver-root DRIVER_ROOT_CTR_PATH CONTAINER_DRIVER_ROOT "+
			"flags.plugin.containerDriverRoot",
			oneText(&s.ContainerDriverRoot, "/driver-root"),
			"`folder` on which the driver root is mounted in the container"),
		row("pass-device-specs PASS_DEVICE_SPECS flags.plugin.passDeviceSpecs", boolean(&s.PassDeviceSpecs),
			"return device nodes from Allocate as well"),
		row("device-list-strategy DEVICE_LIST_STRATEGY flags.plugin.deviceListStrategy",
			someOf(&s.DeviceListStrategy,
				response.EnvVar, response.VolumeMounts, response.CDIAnnotations, response.CDICRI),
			"`strategies` for passing devices to containers: envvar, volume-mounts, cdi-annotations, cdi-cri"),
		row("device-id-strategy DEVICE_ID_STRATEGY flags.plugin.deviceIDStrategy",
			oneOf(&s.DeviceIDStrategy, response.UUID, response.Index),
			"device names for the container runtime: uuid or index"),
		row("gdrcopy-enabled GDRCOPY_ENABLED flags.gdrcopyEnabled", boolean(&s.GDRCopy), "pass GDRCopy to containers"),
		row("gds-enabled GDS_ENABLED flags.gdsEnabled", boolean(&s.GDS), "pass GPUDirect Storage to containers"),
		row("mofed-enabled MOFED_ENABLED flags.mofedEnabled", boolean(&s.MOFED), "pass MOFED devices to containers"),
		row("cdi-annotation-prefix CDI_ANNOTATION_PREFIX flags.plugin.cdiAnnotationPrefix",
			oneText(&s.CDIAnnotationPrefix, response.DefaultAnnotationPrefix),
			"`prefix` of the annotation keys of cdi-annotations"),
		row("nvidia-cdi-hook-path nvidia-ctk-path NVIDIA_CDI_HOOK_PATH NVIDIA_CTK_PATH flags.plugin.nvidiaCTKPath",
			oneText(&s.CDIHookPath, "/usr/bin/nvidia-ctk"), "`path` on the host of the program for CDI hooks"),
		row("cdi-feature-flags CDI_FEATURE_FLAGS", list(&s.CDIFeatureFlags, anyText),
			"`features` of the CDI spec generator"),
		row("cdi-disable-hooks cdi-disabled-hooks CDI_DISABLE_HOOKS", list(&s.CDIDisabledHooks, anyText),
			"`hooks` to omit from the CDI spec, or all"),
		row("mps-root MPS_ROOT flags.mpsRoot", oneText(&s.MPSRoot, ""),
			"`folder` on the host of the MPS control daemon's pipes, logs and shared memory"),
		row("shared-devices-allocation-policy SHARED_DEVICES_ALLOCATION_POLICY "+
			"flags.plugin.sharedDevicesAllocationPolicy",
			oneOf(&s.AllocationPolicy, preferred.Distributed, preferred.Packed, preferred.Distinct),
			"replicas for a container: distributed, packed or distinct (at most one replica of a GPU)"),
		row("device-discovery-strategy DEVICE_DISCOVERY_STRATEGY flags.deviceDiscoveryStrategy",
			oneOf(&s.DeviceDiscovery, "auto", "nvml"), "device discovery: auto or nvml"),
		row("imex-channel-ids IMEX_CHANNEL_IDS imex.channelIDs", list(&s.IMEX.ChannelIDs, parseChannel),
			"IMEX `channels` for every container: none or 0"),
		row("imex-required IMEX_REQUIRED imex.required", boolean(&s.IMEX.Required),
			"treat a missing IMEX channel as an error"),
		row("kubelet-socket KUBELET_SOCKET",
			oneText(&s.KubeletSocket, "/var/lib/kubelet/device-plugins/kubelet.sock"),
			"`path` of the kubelet's registration socket; empty disables the device plugin"),
		row("sharing.timeSlicing", fromFile(&s.Sharing.TimeSlicing, sharingKeys...),
			"replicas of devices, shared by time-slicing"),
		row("sharing.mps", fromFile(&s.Sharing.MPS, sharingKeys...), "replicas of devices, shared through MPS"),
		row("resources.gpus", fromFile(&s.Resources.GPUs, patternKeys...),
			"resource names of whole GPUs, by a glob over the model"),
		row("resources.mig", fromFile(&s.Resources.MIGs, patternKeys...),
			"resource names of MIG devices, by a glob over the profile"),
	}
}

func podgaugeSettings(s *Settings, l *FileLocation) []setting {
	return []setting{
		// Settings of NVIDIA's plugin with variables only.
		row("disable-health-checks DP_DISABLE_HEALTHCHECKS podgauge.disableHealthChecks",
			list(&s.Health.Ignored, parseXid), "`xids` that leave a device healthy, or all"),
		row("enable-health-checks DP_ENABLE_HEALTHCHECKS podgauge.enableHealthChecks",
			list(&s.Health.Enabled, parseXid),
			"`xids` that make a device unhealthy, or all; overrides --disable-health-checks"),
		// Settings of podgauge.
		row("podgauge.xids", fromFile(&s.Health.Xids),
			"policy for single Xids: ignore, warn or unhealthy, at each report or from the Nth within a time; "+
				"overrides both lists"),
		row("include-devices INCLUDE_DEVICES podgauge.select.include",
			list(&s.DeviceFilter.Include, ParseDeviceSelector),
			"`devices` to advertise (default all), by index, UUID, PCI address or model:GLOB"),
		row("exclude-devices EXCLUDE_DEVICES podgauge.select.exclude",
			list(&s.DeviceFilter.Exclude, ParseDeviceSelector),
			"`devices` not to advertise; overrides --include-devices"),
		row("ignore-claims IGNORE_CLAIMS podgauge.claims.ignore", list(&s.Claims.Ignore, ParseClaimPattern),
			"resource `claims` not counted as allocations, NAMESPACE/NAME or NAMESPACE/NAME/DRIVER, "+
				"* for any characters: monitoring/*"),
		row("reserve-claimed-devices RESERVE_CLAIMED_DEVICES podgauge.claims.reserveDevices",
			boolean(&s.Claims.ReserveDevices),
			"mark claimed devices unhealthy in the device plugin's list while a container uses the claim"),
		row("pre-start-check PRE_START_CHECK podgauge.preStartCheck", boolean(&s.PreStartCheck),
			"before each container start, check that the device responds, is healthy and has no processes"),
		row("expected-gpus EXPECTED_GPUS podgauge.expectedGPUs", one(&s.ExpectedGPUs, "0", parseNumber),
			"expected `number` of GPUs; fewer GPUs are a fault; 0: no check"),
		// Where the file is.
		row("config-file CONFIG_FILE", oneText(&l.File, ""),
			"`path` of a config, a file of named configs, or a folder of configs"),
		row("config-name CONFIG_NAME", oneText(&l.Name, ""), "`name` of the config, if there are several"),
		row("config-name-file CONFIG_NAME_FILE", oneText(&l.NameFile, ""),
			"`path` of a file with the name of the config; podgauge follows changes"),
	}
}

// name returns the flag or, without a flag, the path in the file.
func (s *setting) name() string { return cmp.Or(s.flag, s.path) }
