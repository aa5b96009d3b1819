package config

import (
	"fmt"
	"log/slog"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/plugin/response"
)

// TestRejectedFiles checks that each file is rejected with one line that has
// the place and the reason.
func TestRejectedFiles(t *testing.T) {
	const v1 = "version: v1\n"
	shared := func(s string) string { return "version: v1\nsharing:\n  timeSlicing:\n" + s }
	for _, c := range []struct{ file, wantErr string }{ // "config.yaml:" and wantErr
		// The file as a whole.
		{"", " is empty"},
		{"# nothing\n", " is empty"},
		{"---\n", "2: is empty"},
		{"hello\n", "1: expected a mapping"},
		{"- version: v1\n", "1: expected a mapping"},
		{v1 + "---\nversion: v1\n", "2: expected one document"},
		{"version: v2\n", `1: version: "v2": expected v1`},
		{"version: 1\n", `1: version: "1": expected v1`},
		{"version: [v1]\n", `1: version: "": expected v1`},
		{v1 + "flags: {\n", "2: did not find expected node content"},
		{v1 + "\tflags: x\n", "2: found a tab character that violates indentation"},
		{"\xff\xfe\x00", " incomplete UTF-16 character"},
		{v1 + "flags: \x01\n", " control characters are not allowed"},
		{"version: v1 # " + strings.Repeat("x", maxFileBytes), " more than 128 KiB"},
		// Keys.
		{v1 + "unknown: {a: 1,\n a: 2}\n", `3: mapping key "a" already defined at line 2`},
		{v1 + "version: v1\n", `2: mapping key "version" already defined at line 1`},
		{"{\"version\": \"v1\",\n\"imex\": {}, \"imex\": {}}", `2: mapping key "imex" already defined at line 2`},
		{v1 + "? [a]\n: b\n", ` invalid map key: []interface {}{"a"}`},
		{v1 + "flags: mixed\n", "2: flags: expected a mapping"},
		{v1 + "flags: []\n", "2: flags: expected a mapping"},
		// Values.
		{v1 + "flags: {migStrategy: some}\n", `2: flags.migStrategy: "some": expected none, single or mixed`},
		{v1 + "flags: {migStrategy: [none]}\n", "2: flags.migStrategy: cannot unmarshal !!seq into string"},
		{v1 + "flags: {migStrategy: true}\n", `2: flags.migStrategy: "true": expected none, single or mixed`},
		{
			v1 + "flags: {failOnInitError: \"true\"}\n",
			"2: flags.failOnInitError: cannot unmarshal !!str `true` into bool",
		},
		{v1 + "flags: {failOnInitError: 1}\n", "2: flags.failOnInitError: cannot unmarshal !!int `1` into bool"},
		{
			v1 + "flags: {deviceDiscoveryStrategy: tegra}\n",
			`2: flags.deviceDiscoveryStrategy: "tegra": expected auto or nvml`,
		},
		{
			v1 + "flags:\n  plugin:\n    deviceListStrategy: [envvar, cdi]\n",
			`4: flags.plugin.deviceListStrategy: "cdi": expected envvar, volume-mounts, cdi-annotations ` +
				`or cdi-cri`,
		},
		{
			v1 + "flags: {plugin: {deviceListStrategy: []}}\n",
			"2: flags.plugin.deviceListStrategy: expected at least one of envvar, volume-mounts, " +
				"cdi-annotations, cdi-cri",
		},
		{
			v1 + "flags: {plugin: {deviceListStrategy: {a: b}}}\n",
			"2: flags.plugin.deviceListStrategy: cannot unmarshal !!map into []string",
		},
		{v1 + "imex: {channelIDs: [0, 1]}\n", `2: imex.channelIDs: "1": expected no channel, or channel 0`},
		{
			v1 + "podgauge: {disableHealthChecks: [48, x]}\n",
			`2: podgauge.disableHealthChecks: "x": expected the number of an Xid, or all`,
		},
		{v1 + "podgauge: {xids: [94]}\n", "2: podgauge.xids: cannot unmarshal !!seq into map[string]string"},
		{v1 + "podgauge: {xids: warn}\n", "2: podgauge.xids: cannot unmarshal !!str `warn` into map[string]string"},
		{
			v1 + "podgauge:\n  xids:\n    94: warn\n    95: sick\n",
			`3: podgauge.xids: 95: "sick": expected ignore, warn or unhealthy`,
		},
		{
			v1 + "podgauge: {xids: {94: default}}\n",
			`2: podgauge.xids: 94: "default": expected ignore, warn or unhealthy`,
		},
		{v1 + "podgauge: {xids: {94: [warn]}}\n", "2: podgauge.xids: cannot unmarshal !!seq into string"},
		{v1 + "podgauge: {xids: {94: true}}\n", `2: podgauge.xids: 94: "true": expected ignore, warn or unhealthy`},
		{v1 + "podgauge: {xids: {all: warn}}\n", `2: podgauge.xids: "all": expected the number of an Xid`},
		{v1 + "podgauge: {xids: {0: warn}}\n", `2: podgauge.xids: "0": expected the number of an Xid`},
		{v1 + "podgauge: {xids: {-1: warn}}\n", `2: podgauge.xids: "-1": expected the number of an Xid`},
		{v1 + "podgauge: {xids: {0x1f: warn}}\n", `2: podgauge.xids: "0x1f": expected the number of an Xid`},
		{
			v1 + "podgauge: {xids: {31: warn, \"031\": ignore}}\n",
			`2: podgauge.xids: "031": expected the number of an Xid`,
		},
		{v1 + "podgauge: {xids: {31: warn, \"31\": ignore}}\n", `2: mapping key "31" already defined at line 2`},
		{
			v1 + "podgauge: {select: {include: [gpu0]}}\n",
			`2: podgauge.select.include: "gpu0": expected an index (0), a MIG index (0:1), a UUID ` +
				`(GPU-…, MIG-…), a PCI address (0000:3b:00.0) or model:GLOB`,
		},
		// Sharing.
		{shared("    resources: []\n"), "3: sharing.timeSlicing: no resources"},
		{shared("    renameByDefault: true\n"), "3: sharing.timeSlicing: no resources"},
		{shared("    resources: {}\n"), "4: sharing.timeSlicing: cannot unmarshal !!map into " +
			"[]config.SharedResource"},
		{shared("    resources:\n    - gpu\n"), "5: sharing.timeSlicing.resources[0]: expected a mapping"},
		{
			shared("    resources:\n    - name: gpu\n      replicas: 2\n    - replicas: 4\n"),
			"7: sharing.timeSlicing: expected a name and replicas",
		},
		{shared("    resources: [{name: gpu}]\n"), "4: sharing.timeSlicing: expected a name and replicas"},
		{
			shared("    resources: [{name: gpu, replicas: 1}]\n"),
			`4: sharing.timeSlicing: replicas: "1": expected a whole number from 2 to 65536`,
		},
		{
			shared("    resources: [{name: gpu, replicas: 1000000000}]\n"),
			`4: sharing.timeSlicing: replicas: "1000000000": expected a whole number from 2 to 65536`,
		},
		{
			shared("    resources: [{name: gpu, replicas: 2.5}]\n"),
			`4: sharing.timeSlicing: replicas: "2.5": expected a whole number from 2 to 65536`,
		},
		{
			shared("    resources: [{name: \"a b\", replicas: 2}]\n"),
			`4: sharing.timeSlicing: "nvidia.com/a b": expected up to 63 letters, digits, -, _ and . ` +
				`after the /, beginning and ending with a letter or digit`,
		},
		{
			shared("    resources: [{name: gpu, replicas: 2, devices: some}]\n"),
			`4: sharing.timeSlicing: devices: "some": expected all, a count, or a list of devices`,
		},
		{
			shared("    resources: [{name: gpu, replicas: 2, devices: 0}]\n"),
			`4: sharing.timeSlicing: devices: "0": expected all, a count, or a list of devices`,
		},
		{
			shared("    resources: [{name: gpu, replicas: 2, devices: {}}]\n"),
			`4: sharing.timeSlicing: devices: "": expected all, a count, or a list of devices`,
		},
		{
			shared("    resources: [{name: gpu, replicas: 2, devices: []}]\n"),
			`4: sharing.timeSlicing: devices: "": expected all, a count, or a list of devices`,
		},
		{
			shared("    resources: [{name: gpu, replicas: 2, devices: [null]}]\n"),
			`4: sharing.timeSlicing: devices: "": expected all, a count, or a list of devices`,
		},
		{
			shared("    resources: [{name: gpu, replicas: 2, devices: [[0]]}]\n"),
			"4: sharing.timeSlicing: cannot unmarshal !!seq into string",
		},
		{
			shared("    renameByDefault: true\n    resources: [{name: " + strings.Repeat("a", 60) +
				", replicas: 2}]\n"),
			`3: sharing.timeSlicing: "nvidia.com/` + strings.Repeat("a",
				60) + `.shared": expected up to 63 letters, digits, -, _ and . after the /, beginning and ending ` +
				`with a letter or digit`,
		},
		// Incompatible settings.
		{
			v1 + "sharing: {mps: {resources: [{name: gpu, replicas: 2}]}}\n",
			"2: sharing.mps: requires --mps-root (MPS_ROOT, flags.mpsRoot), the folder of a running MPS " +
				"control daemon",
		},
		{v1 + "flags: {mpsRoot: /mps, migStrategy: mixed}\nsharing: {mps: {resources: [{name: gpu, " +
			"replicas: 2}]}}\n", "3: sharing.mps: incompatible with MIG strategy mixed (config.yaml:2): " +
			"MPS shares whole GPUs only"},
		// Resource names.
		{
			v1 + "resources: {gpus: [{pattern: \"*\"}]}\n",
			`2: resources.gpus: "": expected a domain name before the /, as in nvidia.com/gpu`,
		},
		{v1 + "resources: {gpus: [{name: gpu}]}\n", "2: resources.gpus: no pattern"},
		{
			v1 + "resources: {mig: [{pattern: \"*\", name: kubernetes.io/gpu}]}\n",
			`2: resources.mig: "kubernetes.io/gpu": kubernetes.io and requests. are reserved`,
		},
	} {
		path := writeTemp(t, "config.yaml", c.file)
		got := loadError(t, nil, FileLocation{File: path}, filepath.Dir(path))
		if got != "config.yaml:"+c.wantErr || strings.Contains(got, "\n") {
			t.Errorf("%.80q: got error\n%s\nwant\n%s", c.file, got, "config.yaml:"+c.wantErr)
		}
	}
}

// TestUnknownKeys checks that unknown keys are ignored, each with one line that
// has the place and the valid keys.
func TestUnknownKeys(t *testing.T) {
	shared := func(s string) string { return "version: v1\nsharing:\n  timeSlicing:\n" + s }
	for _, c := range []struct{ file, wantErr string }{
		{
			"version: v1\nflags:\n  migStrateg: none\n",
			"config.yaml:3: flags.migStrateg: unknown key; valid keys are deviceDiscoveryStrategy, failOnInitError, " +
				"gdrcopyEnabled, gdsEnabled, migStrategy, mofedEnabled, mpsRoot, nvidiaDevRoot, nvidiaDriverRoot, " +
				"plugin",
		},
		{"version: v1\nFlags: {}\n", "config.yaml:2: Flags: unknown key; valid keys are flags, imex, podgauge, " +
			"resources, sharing, version"},
		{"version: v1\nflag: {}\n", "config.yaml:2: flag: unknown key; valid keys are flags, imex, podgauge, " +
			"resources, sharing, version"},
		{
			"version: v1\nresources: {migs: []}\n",
			"config.yaml:2: resources.migs: unknown key; valid keys are gpus, mig",
		},
		{"version: v1\nimex:\n  x: 1\n", "config.yaml:3: imex.x: unknown key; valid keys are channelIDs, required"},
		{
			"version: v1\npodgauge: {select: {includes: []}}\n",
			"config.yaml:2: podgauge.select.includes: unknown key; valid keys are exclude, include",
		},
		{
			"version: v1\n\"a\\nb\\e[31m\": {}\n",
			`config.yaml:2: (not a name): unknown key; valid keys are flags, imex, podgauge, resources, sharing, ` +
				`version`,
		},
		{"version: v1\nflags:\n  \"\": 1\n", "config.yaml:3: flags.: unknown key; valid keys are " +
			"deviceDiscoveryStrategy, failOnInitError, gdrcopyEnabled, gdsEnabled, migStrategy, mofedEnabled, " +
			"mpsRoot, nvidiaDevRoot, nvidiaDriverRoot, plugin"},
		{
			shared("    resources: [{name: gpu, replica: 2, replicas: 3}]\n"),
			"config.yaml:4: sharing.timeSlicing.resources[0].replica: unknown key; valid keys are devices, name, " +
				"rename, replicas",
		},
		{
			"version: v1\nresources: {mig: [{name: a, pattern: b, Name: c}]}\n",
			"config.yaml:2: resources.mig[0].Name: unknown key; valid keys are name, pattern",
		},
		{
			"version: v1\nconfigs: {a: {}}\nflags: {}\n",
			"config.yaml:3: flags: unknown key; valid keys are configs, default, version",
		},
		{
			"version: v1\nconfigs: {a: {\n  configs: {}}}\n",
			"config.yaml:3: configs: unknown key; valid keys are flags, imex, podgauge, resources, sharing, version",
		},
	} {
		path := writeTemp(t, "config.yaml", c.file)
		l, err := newTestBuilder(t, nil).LoadFrom(FileLocation{File: path})
		if err != nil || len(l.UnknownKeys) != 1 {
			t.Errorf("%q: got error %v, unknown keys %v, want one unknown key", c.file, err, l.UnknownKeys)
			continue
		}
		got := strings.ReplaceAll(l.UnknownKeys[0].String(), filepath.Dir(path)+"/", "")
		if got != c.wantErr || strings.Contains(got, "\n") {
			t.Errorf("%q: got\n%s\nwant\n%s", c.file, got, c.wantErr)
		}
	}
}

// TestUnknownKeysInOrder checks that unknown keys are sorted by line, across
// all readers.
func TestUnknownKeysInOrder(t *testing.T) {
	l := mustLoad(t, "sharing:\n  timeSlicing:\n    a: 1\n    resources: [{name: gpu, replicas: 2, b: 1}]\nflags: "+
		"{c: {d: 1}}\nversion: v1\n")
	var got []string
	for _, k := range l.UnknownKeys {
		got = append(got, fmt.Sprint(k.Line, " ", k.Key))
	}
	want := []string{"3 sharing.timeSlicing.a", "4 sharing.timeSlicing.resources[0].b", "5 flags.c"}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestReport checks that each unknown key is logged as a warning with its
// place.
func TestReport(t *testing.T) {
	report := func(file string) []string {
		log := &lockedBuffer{}
		mustLoad(t, file).Report(slog.New(slog.NewTextHandler(log, nil)))
		return log.take()
	}
	got := report("version: v1\nflags: {migStrateg: none}\n")
	if len(got) != 1 || !strings.Contains(got[0], `level=WARN msg="unknown config key ignored" key=flags.migStrateg`) ||
		!strings.Contains(got[0], `line=2 hint="valid keys are deviceDiscoveryStrategy, failOnInitError, `+
			`gdrcopyEnabled, gdsEnabled, migStrategy, mofedEnabled, mpsRoot, nvidiaDevRoot, nvidiaDriverRoot, `+
			`plugin"`) {
		t.Errorf("got log %q, want one warning with the place", got)
	}
}

// TestHostileFiles checks that small files cannot take unlimited resources.
func TestHostileFiles(t *testing.T) {
	bomb := "version: v1\nflags:\n  a: &a [x, x, x, x, x, x, x, x, x, x]\n"
	for c := 'b'; c < 'k'; c++ {
		bomb += fmt.Sprintf("  %c: &%c [*%c, *%[3]c, *%[3]c, *%[3]c, *%[3]c, *%[3]c, *%[3]c, *%[3]c, *%[3]c, *%[3]c]\n",
			c, c, c-1)
	}
	manyKeys := ""
	for i := range maxFileBytes / 16 {
		manyKeys += fmt.Sprintf("x%d: 1\n", i)
	}
	for _, c := range []struct{ name, file, wantErr string }{
		{"alias bomb", bomb, "document contains excessive aliasing"},
		{"alias in its own anchor", "version: v1\nflags: &a [*a]\n", "anchor 'a' value contains itself"},
		{"merge of the anchor itself", "version: v1\nflags: &a {<<: *a}\n", "anchor 'a' value contains itself"},
		{
			"deep", "version: v1\nflags: " + strings.Repeat("[", 5000) + strings.Repeat("]", 5000),
			"flags: expected a mapping",
		},
		{"deeper", strings.Repeat("[", maxFileBytes), "exceeded max depth of 10000"},
		{"deep mappings", strings.Repeat("{a: ", 30000), "exceeded max depth of 10000"},
		{"many items", "[" + strings.Repeat("1,", maxFileBytes/2-1), "did not find expected"},
		{"many keys", "version: v1\n" + manyKeys + "flags: 0\n", "flags: expected a mapping"},
		{"unknown anchor", "version: *v\n", "unknown anchor 'v' referenced"},
		{"merge of a scalar", "version: v1\n<<: 5\n", "map merge requires map or sequence of maps as the value"},
	} {
		path := writeTemp(t, "config.yaml", c.file)
		got := loadError(t, nil, FileLocation{File: path}, filepath.Dir(path))
		if !strings.Contains(got, c.wantErr) || strings.Contains(got, "\n") {
			t.Errorf("%s: got error %q, want %q", c.name, got, c.wantErr)
		}
	}
}

// TestAcceptedFiles checks that files that NVIDIA's parser reads have the same
// effect.
func TestAcceptedFiles(t *testing.T) {
	for _, c := range []struct {
		name, file string
		want       func(*Settings)
	}{
		{"no settings", "version: v1\n", func(*Settings) {}},
		{"null values", "version: v1\nflags:\nsharing: null\nimex: ~\nresources: {gpus: }\n", func(*Settings) {}},
		{"no version", "flags: {migStrategy: mixed}\n", func(s *Settings) { s.MIGStrategy = MIGMixed }},
		{"booleans of YAML 1.1", "version: v1\nflags: {failOnInitError: no, gdsEnabled: On, mofedEnabled: Y, " +
			"plugin: {passDeviceSpecs: yes}}\n", func(s *Settings) {
			s.FailOnInitError, s.GDS, s.MOFED, s.PassDeviceSpecs = false, true, true, true
		}},
		{
			"anchors and merges", "version: v1\nflags: &f\n  plugin: {<<: [{deviceIDStrategy: index}, " +
				"{deviceIDStrategy: uuid, passDeviceSpecs: true}], passDeviceSpecs: false}\n",
			func(s *Settings) { s.DeviceIDStrategy = "index" },
		},
		{
			"number for a string", "version: v1\nflags: {nvidiaDriverRoot: 5}\n",
			func(s *Settings) { s.DriverRoot, s.DevRoot = "5", "5" },
		},
		{
			"string for a list", "version: v1\nflags: {plugin: {deviceListStrategy: cdi-cri}}\n",
			func(s *Settings) { s.DeviceListStrategy = []response.DeviceListStrategy{response.CDICRI} },
		},
		{
			"dev root from the driver root", "version: v1\nflags: {nvidiaDriverRoot: /run/nvidia/driver}\n",
			func(s *Settings) {
				s.DriverRoot, s.DevRoot = "/run/nvidia/driver", "/run/nvidia/driver"
			},
		},
		{"YAML numbers", "version: v1\nsharing: {timeSlicing: {resources: [{name: a, replicas: 0x10}, {name: b, " +
			"replicas: 010}, {name: c, replicas: 1_000}, {name: d, replicas: 4}]}}\n", func(s *Settings) {
			for i, n := range []ReplicaCount{16, 8, 1000, 4} {
				s.Sharing.TimeSlicing.Resources = append(s.Sharing.TimeSlicing.Resources,
					SharedResource{
						Name: "nvidia.com/" + string(rune('a'+i)), Devices: DeviceSelection{All: true},
						Replicas: n,
					})
			}
		}},
		{"time-slicing and MPS", "version: v1\nflags: {mpsRoot: /mps}\nsharing:\n  timeSlicing: {resources: [{name: " +
			"gpu, replicas: 4}]}\n  mps: {resources: [{name: gpu, replicas: 2}]}\n", func(s *Settings) {
			s.MPSRoot = "/mps"
			s.Sharing.MPS = SharingMethod{
				FailRequestsGreaterThanOne: true,
				Resources: []SharedResource{
					{Name: GPUResource, Devices: DeviceSelection{All: true}, Replicas: 2},
				},
			}
		}},
		{
			"MPS with requests for several replicas",
			"version: v1\nflags: {mpsRoot: /mps}\nsharing:\n  mps: {failRequestsGreaterThanOne: false, resources: " +
				"[{name: gpu, replicas: 2}]}\n", func(s *Settings) {
				s.MPSRoot = "/mps"
				s.Sharing.MPS = SharingMethod{Resources: []SharedResource{{
					Name:    GPUResource,
					Devices: DeviceSelection{All: true}, Replicas: 2,
				}}}
			},
		},
		{"podgauge's keys", "version: v1\npodgauge:\n  expectedGPUs: 8\n  preStartCheck: true\n  select: {include: " +
			"[0, 3B:00.0, \"model:*A100*\"], exclude: 01}\n  disableHealthChecks: [79, 48, 79]\n  " +
			"enableHealthChecks: all\n", func(s *Settings) {
			s.PreStartCheck, s.ExpectedGPUs = true, 8
			s.DeviceFilter = DeviceFilter{
				Include: []DeviceSelector{"0", "0000:3b:00.0", "model:*A100*"},
				Exclude: []DeviceSelector{"1"},
			}
			s.Health = HealthConfig{Ignored: []string{"79", "48"}, Enabled: []string{"all"}}
		}},
		{"claims", "version: v1\npodgauge: {claims: {ignore: [monitoring/*, \"*/dcgm-*/gpu.nvidia.com\"], " +
			"reserveDevices: true}}\n", func(s *Settings) {
			s.Claims = ClaimsConfig{Ignore: []ClaimPattern{
				mustParseClaim(t, "monitoring/*/*"),
				mustParseClaim(t, "*/dcgm-*/gpu.nvidia.com"),
			}, ReserveDevices: true}
		}},
		{
			"single Xids", "version: v1\npodgauge: {xids: {\"94\": warn, 31: unhealthy, 43: ignore, 45: null}}\n",
			func(s *Settings) {
				s.Health = HealthConfig{Xids: map[uint64]device.Policy{
					94: device.PolicyWarn,
					31: device.PolicyUnhealthy,
					43: device.PolicyIgnore,
				}}
			},
		},
		{"no single Xids", "{\"version\": \"v1\", \"podgauge\": {\"xids\": {}}}", func(*Settings) {}},
	} {
		want := mustLoad(t, "version: v1\n").Settings
		c.want(&want)
		if got := mustLoad(t, c.file).Settings; !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got\n%+v\nwant\n%+v", c.name, got, want)
		}
	}
}

func TestNotices(t *testing.T) {
	l := mustLoad(t, `flags: {gfd: {oneshot: true, anything: 1}, useNodeFeatureAPI: true, mpsRoot: /m}
resources: {gpus: [{pattern: "*", name: a}]}
sharing:
  timeSlicing: {resources: [{name: gpu, replicas: 4, rename: x}]}
  mps:
    resources:
    - {name: gpu, replicas: 4, devices: all}
    - {name: gpu, replicas: 4, devices: [0]}
`)
	want := []string{
		"config.yaml:1: flags.gfd: key of NVIDIA's GPU feature discovery, ignored",
		"config.yaml:1: flags.useNodeFeatureAPI: key of NVIDIA's GPU feature discovery, ignored",
		"config.yaml:2: resources.gpus: used by podgauge, ignored by NVIDIA's plugin",
		"config.yaml:8: sharing.mps.resources[1].devices: used by podgauge, ignored by NVIDIA's plugin",
		"config.yaml:4: sharing.timeSlicing.resources[0].rename: used by podgauge, ignored by NVIDIA's plugin",
		"config.yaml:1: no version; read as v1",
		"config.yaml:4: sharing.timeSlicing: ignored because of sharing.mps, as by NVIDIA's plugin",
	}
	var got []string
	for _, notice := range l.Notices {
		_, text, _ := strings.Cut(notice, "/config.yaml:")
		got = append(got, "config.yaml:"+text)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
