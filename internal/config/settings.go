package config

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// setting is a row of the table of settings: flag, variables, key in the file, default and help. A new setting is a field of
// Settings and a row.
type setting struct {
	flag         string   // empty: only a file can express the setting
	aliases      []string // of the flag in NVIDIA's plugin
	env          []string // the first set variable counts
	path         string   // in the file; empty: the file cannot express the setting
	keys         []string // below the path, of a setting without a flag
	defaultValue string   // as a flag spells it
	allowed      []string // valid values; nil: all
	help         string   // with the name of the value in `quotes`

	field func(*loadState) any // returns the address of the field
	check func(string) error
	// lenient: invalid values of the variable are skipped, as by NVIDIA's plugin.
	lenient bool
	// allowEmpty: an empty variable means an empty value. By default, an empty variable counts as unset, because charts write empty
	// variables for missing values.
	allowEmpty bool
}

// loadState has the fields of all rows.
type loadState struct {
	Settings
	location FileLocation
}

var (
	sharingKeys = []string{
		".renameByDefault", ".failRequestsGreaterThanOne", ".resources[].name", ".resources[].rename", ".resources[].devices", ".resources[].replicas",
	}
	patternKeys = []string{"[].pattern", "[].name"}
)

var allSettings = []setting{
	// Settings of NVIDIA's plugin, under NVIDIA's names.
	{
		flag: "mig-strategy", env: []string{"MIG_STRATEGY"}, path: "flags.migStrategy", defaultValue: MIGNone, allowed: []string{MIGNone, MIGSingle, MIGMixed},
		help: "resources of a MIG-enabled GPU: none (no resource), single (MIG devices as GPUs) or mixed (MIG devices by profile)", field: func(t *loadState) any { return &t.MIGStrategy },
	},
	{
		flag: "fail-on-init-error", env: []string{"FAIL_ON_INIT_ERROR"}, path: "flags.failOnInitError", defaultValue: "false",
		help: "exit if the driver cannot be used at start, instead of waiting for the driver", field: func(t *loadState) any { return &t.FailOnInitError },
	},
	{
		flag: "driver-root", aliases: []string{"nvidia-driver-root"}, env: []string{"NVIDIA_DRIVER_ROOT"}, path: "flags.nvidiaDriverRoot", defaultValue: "/",
		help: "`folder` of the driver on the host", field: func(t *loadState) any { return &t.DriverRoot },
	},
	{
		flag: "dev-root", aliases: []string{"nvidia-dev-root"}, env: []string{"NVIDIA_DEV_ROOT"}, path: "flags.nvidiaDevRoot",
		help: "`folder` with dev/nvidia* on the host (default --driver-root)", field: func(t *loadState) any { return &t.DevRoot },
	},
	{
		flag: "driver-root-ctr-path", aliases: []string{"container-driver-root"}, env: []string{"DRIVER_ROOT_CTR_PATH", "CONTAINER_DRIVER_ROOT"},
		path: "flags.plugin.containerDriverRoot", defaultValue: "/driver-root",
		help: "`folder` on which the driver root is mounted in the container", field: func(t *loadState) any { return &t.ContainerDriverRoot },
	},
	{
		flag: "pass-device-specs", env: []string{"PASS_DEVICE_SPECS"}, path: "flags.plugin.passDeviceSpecs", defaultValue: "false",
		help: "return device nodes from Allocate as well", field: func(t *loadState) any { return &t.PassDeviceSpecs },
	},
	{
		flag: "device-list-strategy", env: []string{"DEVICE_LIST_STRATEGY"}, path: "flags.plugin.deviceListStrategy", defaultValue: ListEnvvar,
		allowed: []string{ListEnvvar, ListVolumeMounts, ListCDIAnnotations, ListCDICRI},
		help:    "`strategies` for passing devices to containers: envvar, volume-mounts, cdi-annotations, cdi-cri", field: func(t *loadState) any { return &t.DeviceListStrategy },
	},
	{
		flag: "device-id-strategy", env: []string{"DEVICE_ID_STRATEGY"}, path: "flags.plugin.deviceIDStrategy", defaultValue: "uuid", allowed: []string{"uuid", "index"},
		help: "device names for the container runtime: uuid or index", field: func(t *loadState) any { return &t.DeviceIDStrategy },
	},
	{
		flag: "gdrcopy-enabled", env: []string{"GDRCOPY_ENABLED"}, path: "flags.gdrcopyEnabled", defaultValue: "false",
		help: "pass GDRCopy to containers", field: func(t *loadState) any { return &t.GDRCopy },
	},
	{
		flag: "gds-enabled", env: []string{"GDS_ENABLED"}, path: "flags.gdsEnabled", defaultValue: "false",
		help: "pass GPUDirect Storage to containers", field: func(t *loadState) any { return &t.GDS },
	},
	{
		flag: "mofed-enabled", env: []string{"MOFED_ENABLED"}, path: "flags.mofedEnabled", defaultValue: "false",
		help: "pass MOFED devices to containers", field: func(t *loadState) any { return &t.MOFED },
	},
	{
		flag: "cdi-annotation-prefix", env: []string{"CDI_ANNOTATION_PREFIX"}, path: "flags.plugin.cdiAnnotationPrefix", defaultValue: "cdi.k8s.io/",
		help: "`prefix` of the annotation keys of cdi-annotations", field: func(t *loadState) any { return &t.CDIAnnotationPrefix },
	},
	{
		flag: "nvidia-cdi-hook-path", aliases: []string{"nvidia-ctk-path"}, env: []string{"NVIDIA_CDI_HOOK_PATH", "NVIDIA_CTK_PATH"},
		path: "flags.plugin.nvidiaCTKPath", defaultValue: "/usr/bin/nvidia-ctk",
		help: "`path` on the host of the program for CDI hooks", field: func(t *loadState) any { return &t.CDIHookPath },
	},
	{
		flag: "cdi-feature-flags", env: []string{"CDI_FEATURE_FLAGS"},
		help: "`features` of the CDI spec generator", field: func(t *loadState) any { return &t.CDIFeatureFlags },
	},
	{
		flag: "cdi-disable-hooks", aliases: []string{"cdi-disabled-hooks"}, env: []string{"CDI_DISABLE_HOOKS"},
		help: "`hooks` to omit from the CDI spec, or all", field: func(t *loadState) any { return &t.CDIDisabledHooks },
	},
	{
		flag: "mps-root", env: []string{"MPS_ROOT"}, path: "flags.mpsRoot",
		help: "`folder` on the host of the MPS control daemon's pipes, logs and shared memory", field: func(t *loadState) any { return &t.MPSRoot },
	},
	{
		flag: "shared-devices-allocation-policy", env: []string{"SHARED_DEVICES_ALLOCATION_POLICY"}, path: "flags.plugin.sharedDevicesAllocationPolicy",
		defaultValue: "distributed", allowed: []string{"distributed", "packed", "distinct"},
		help: "replicas for a container: distributed, packed or distinct (at most one replica of a GPU)", field: func(t *loadState) any { return &t.AllocationPolicy },
	},
	{
		flag: "device-discovery-strategy", env: []string{"DEVICE_DISCOVERY_STRATEGY"}, path: "flags.deviceDiscoveryStrategy", defaultValue: "auto", allowed: []string{"auto", "nvml"},
		help: "device discovery: auto or nvml", field: func(t *loadState) any { return &t.DeviceDiscovery },
	},
	{
		flag: "imex-channel-ids", env: []string{"IMEX_CHANNEL_IDS"}, path: "imex.channelIDs",
		help: "IMEX `channels` for every container: none or 0", field: func(t *loadState) any { return &t.IMEX.ChannelIDs }, check: checkChannel,
	},
	{
		flag: "imex-required", env: []string{"IMEX_REQUIRED"}, path: "imex.required", defaultValue: "false",
		help: "treat a missing IMEX channel as an error", field: func(t *loadState) any { return &t.IMEX.Required },
	},
	{
		flag: "kubelet-socket", env: []string{"KUBELET_SOCKET"}, defaultValue: "/var/lib/kubelet/device-plugins/kubelet.sock", allowEmpty: true,
		help: "`path` of the kubelet's registration socket; empty disables the device plugin", field: func(t *loadState) any { return &t.KubeletSocket },
	},
	{
		path: "sharing.timeSlicing", keys: sharingKeys, field: func(t *loadState) any { return &t.Sharing.TimeSlicing },
		help: "replicas of devices, shared by time-slicing",
	},
	{
		path: "sharing.mps", keys: sharingKeys, field: func(t *loadState) any { return &t.Sharing.MPS },
		help: "replicas of devices, shared through MPS",
	},
	{
		path: "resources.gpus", keys: patternKeys, field: func(t *loadState) any { return &t.Resources.GPUs },
		help: "resource names of whole GPUs, by a glob over the model",
	},
	{
		path: "resources.mig", keys: patternKeys, field: func(t *loadState) any { return &t.Resources.MIGs },
		help: "resource names of MIG devices, by a glob over the profile",
	},
	// Settings of NVIDIA's plugin with variables only.
	{
		flag: "disable-health-checks", env: []string{"DP_DISABLE_HEALTHCHECKS"}, path: "podgauge.disableHealthChecks", lenient: true,
		help: "`xids` that leave a device healthy, or all", field: func(t *loadState) any { return &t.Health.Ignored }, check: checkXid,
	},
	{
		flag: "enable-health-checks", env: []string{"DP_ENABLE_HEALTHCHECKS"}, path: "podgauge.enableHealthChecks", lenient: true,
		help: "`xids` that make a device unhealthy, or all; overrides --disable-health-checks", field: func(t *loadState) any { return &t.Health.Enabled }, check: checkXid,
	},
	// Settings of podgauge.
	{
		path: "podgauge.xids", field: func(t *loadState) any { return &t.Health.Xids },
		help: "policy for single Xids: ignore, warn or unhealthy; overrides both lists",
	},
	{
		flag: "include-devices", env: []string{"INCLUDE_DEVICES"}, path: "podgauge.select.include",
		help: "`devices` to advertise (default all), by index, UUID, PCI address or model:GLOB", field: func(t *loadState) any { return &t.DeviceFilter.Include },
	},
	{
		flag: "exclude-devices", env: []string{"EXCLUDE_DEVICES"}, path: "podgauge.select.exclude",
		help: "`devices` not to advertise; overrides --include-devices", field: func(t *loadState) any { return &t.DeviceFilter.Exclude },
	},
	{
		flag: "ignore-claims", env: []string{"IGNORE_CLAIMS"}, path: "podgauge.claims.ignore",
		help: "resource `claims` not counted as allocations, NAMESPACE/NAME or NAMESPACE/NAME/DRIVER, * for any characters: monitoring/*", field: func(t *loadState) any { return &t.Claims.Ignore },
	},
	{
		flag: "reserve-claimed-devices", env: []string{"RESERVE_CLAIMED_DEVICES"}, path: "podgauge.claims.reserveDevices", defaultValue: "false",
		help: "mark claimed devices unhealthy in the device plugin's list while a container uses the claim", field: func(t *loadState) any { return &t.Claims.ReserveDevices },
	},
	{
		flag: "pre-start-check", env: []string{"PRE_START_CHECK"}, path: "podgauge.preStartCheck", defaultValue: "false",
		help: "before each container start, check that the device responds, is healthy and has no processes", field: func(t *loadState) any { return &t.PreStartCheck },
	},
	{
		flag: "expected-gpus", env: []string{"EXPECTED_GPUS"}, path: "podgauge.expectedGPUs", defaultValue: "0",
		help: "expected `number` of GPUs; fewer GPUs are a fault; 0: no check", field: func(t *loadState) any { return &t.ExpectedGPUs },
	},
	// Where the file is.
	{
		flag: "config-file", env: []string{"CONFIG_FILE"},
		help: "`path` of a config, a file of named configs, or a folder of configs", field: func(t *loadState) any { return &t.location.File },
	},
	{
		flag: "config-name", env: []string{"CONFIG_NAME"},
		help: "`name` of the config, if there are several", field: func(t *loadState) any { return &t.location.Name },
	},
	{
		flag: "config-name-file", env: []string{"CONFIG_NAME_FILE"},
		help: "`path` of a file with the name of the config; podgauge follows changes", field: func(t *loadState) any { return &t.location.NameFile },
	},
}

// name returns the flag or, without a flag, the path in the file.
func (s *setting) name() string { return cmp.Or(s.flag, s.path) }

// isList reports whether a setting takes several values.
func isList(dst any) bool { return reflect.TypeOf(dst).Elem().Kind() == reflect.Slice }

// isBool reports whether a setting is a switch: a flag without a value means true.
func isBool(dst any) bool { return reflect.TypeOf(dst).Elem().Kind() == reflect.Bool }

// maxNumber bounds the settings that are numbers.
const maxNumber = 1024

// splitList splits the value of a list in a flag or variable.
func splitList(s string) []string {
	var values []string
	for value := range strings.SplitSeq(s, ",") {
		if value = strings.TrimSpace(value); value != "" {
			values = append(values, value)
		}
	}
	return values
}

// set checks values, and assigns unique values to the field.
func (s *setting) set(t *loadState, values []string) error {
	if len(s.allowed) > 0 && len(values) == 0 {
		return fmt.Errorf("expected at least one of %s", strings.Join(s.allowed, ", "))
	}
	unique := make([]string, 0, len(values))
	for _, v := range values {
		if len(s.allowed) > 0 && !slices.Contains(s.allowed, v) {
			return fmt.Errorf("%q: expected %s", v, joinOr(s.allowed))
		}
		if s.check != nil {
			if err := s.check(v); err != nil {
				return err
			}
		}
		if !slices.Contains(unique, v) {
			unique = append(unique, v)
		}
	}
	return assignValues(s.field(t), unique)
}

// read reads the value of the file. A setting with a flag has the meaning of the flag.
func (s *setting) read(t *loadState, n *yaml.Node) (err error) {
	dst := s.field(t)
	var values []string
	switch {
	case s.flag == "":
		return n.Decode(dst)
	case isBool(dst):
		var b bool
		err = n.Decode(&b)
		values = []string{strconv.FormatBool(b)}
	case !isList(dst):
		values = make([]string, 1)
		err = n.Decode(&values[0])
	case n.Kind == yaml.ScalarNode: // NVIDIA's deviceListStrategy is a string or a list
		values = splitList(n.Value)
	default:
		err = n.Decode(&values)
	}
	if err != nil {
		return err
	}
	return s.set(t, values)
}

// assignValues parses values into a field. Flags, variables and files share the text form, and so the meaning.
func assignValues(dst any, values []string) (err error) {
	switch dst := dst.(type) {
	case *string:
		*dst = values[0]
	case *bool:
		if *dst, err = strconv.ParseBool(values[0]); err != nil {
			err = fmt.Errorf("%q: expected true or false", values[0])
		}
	case *int:
		if *dst, err = strconv.Atoi(values[0]); err != nil || *dst < 0 || *dst > maxNumber {
			err = fmt.Errorf("%q: expected a whole number from 0 to %d", values[0], maxNumber)
		}
	case *[]string:
		*dst = values
	case *[]int:
		*dst, err = parseEach(values, strconv.Atoi)
	case *[]DeviceSelector:
		*dst, err = parseEach(values, ParseDeviceSelector)
	case *[]ClaimPattern:
		*dst, err = parseEach(values, ParseClaimPattern)
	default:
		panic(fmt.Sprintf("config: a setting of type %T", dst))
	}
	return err
}

func parseEach[T any](values []string, parse func(string) (T, error)) ([]T, error) {
	parsed := make([]T, 0, len(values))
	for _, v := range values {
		value, err := parse(v)
		if err != nil {
			return nil, err
		}
		parsed = append(parsed, value)
	}
	return parsed, nil
}

// joinOr joins two or more words as a sentence does.
func joinOr(words []string) string {
	last := len(words) - 1
	return strings.Join(words[:last], ", ") + " or " + words[last]
}

// checkChannel accepts the same channel as NVIDIA's plugin.
func checkChannel(s string) error {
	if s != "0" {
		return fmt.Errorf("%q: expected no channel, or channel 0", s)
	}
	return nil
}
