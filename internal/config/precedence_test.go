package config

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/plugin/response"
	"github.com/spf13/pflag"
)

func testSettings() []setting { return settingsOf(new(Settings), new(FileLocation)) }

// sampleValues returns two different valid values of a setting.
func sampleValues(s setting) (a, b string) {
	switch {
	case s.isBool:
		return "true", "false"
	case len(s.allowed) > 1:
		return s.allowed[0], s.allowed[1]
	case s.flag == "ignore-claims":
		return "a/b", "a/*/c"
	case s.flag == "imex-channel-ids":
		return "0", "" // no third value exists
	}
	return "11", "12" // valid as strings, Xids and devices
}

// configText returns a file with a value of the setting.
func (s setting) configText(value string) string {
	if s.path == "" {
		return "version: v1\n"
	}
	text, keys := "version: v1\n", strings.Split(s.path, ".")
	for i, key := range keys {
		text += strings.Repeat(" ", i) + key + ":"
		if i < len(keys)-1 {
			text += "\n"
		}
	}
	if s.isList {
		value = "[" + value + "]"
	}
	return text + " " + value + "\n"
}

// loadedValue returns the value of the setting after loading a file.
func (s setting) loadedValue(t *testing.T, b *Builder, file string) string {
	t.Helper()
	l, err := b.LoadFrom(FileLocation{File: writeTemp(t, "config.yaml", file)})
	if err != nil {
		t.Fatal(err)
	}
	source, err := b.Location()
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range settingsOf(&l.Settings, &source) {
		if row.flag == s.flag {
			return row.text()
		}
	}
	t.Fatal("no such setting")
	return ""
}

// TestPrecedence checks for each setting that a flag overrides a variable, a
// variable overrides the file, and the file overrides the default.
func TestPrecedence(t *testing.T) {
	for _, r := range testSettings() {
		if r.flag == "" {
			continue
		}
		one, two := sampleValues(r)
		for _, c := range [][2]string{{one, two}, {two, one}} {
			high, low := c[0], c[1]
			want := r.loadedValue(t, newTestBuilder(t, nil, "--"+r.flag+"="+high), "version: v1\n")
			for _, variable := range r.env {
				got := r.loadedValue(t, newTestBuilder(t, map[string]string{variable: low}, "--"+r.flag+"="+high),
					r.configText(low))
				if !reflect.DeepEqual(got, want) {
					t.Errorf("--%s=%s with %s=%s and in the file: got %v, want %v", r.flag, high, variable, low, got,
						want)
				}
				got = r.loadedValue(t, newTestBuilder(t, map[string]string{variable: high}), r.configText(low))
				if high != "" && !reflect.DeepEqual(got, want) {
					t.Errorf("%s=%s with %s in the file: got %v, want %v", variable, high, low, got, want)
				}
			}
			got := r.loadedValue(t, newTestBuilder(t, nil), r.configText(high))
			if r.path != "" && !reflect.DeepEqual(got, want) {
				t.Errorf("%s: %s in the file: got %v, want %v", r.path, high, got, want)
			}
			for _, alias := range r.aliases {
				got := r.loadedValue(t, newTestBuilder(t, nil, "--"+alias+"="+high), r.configText(low))
				if !reflect.DeepEqual(got, want) {
					t.Errorf("--%s=%s: got %v, want %v", alias, high, got, want)
				}
			}
		}
	}
}

// TestFirstVariableWins checks settings with two variables of NVIDIA.
func TestFirstVariableWins(t *testing.T) {
	for _, r := range testSettings() {
		if len(r.env) < 2 {
			continue
		}
		got := r.loadedValue(t, newTestBuilder(t, map[string]string{r.env[0]: "a", r.env[1]: "b"}), "version: v1\n")
		if got != "a" {
			t.Errorf("%v: got %v, want a", r.env, got)
		}
	}
}

// TestSettingsComplete checks that each setting has a unique name, a help text
// and a field.
func TestSettingsComplete(t *testing.T) {
	flags := pflag.NewFlagSet("podgauge", pflag.ContinueOnError)
	NewBuilder(nil).AddFlags(flags)
	seen := map[string]bool{}
	for _, r := range testSettings() {
		for _, name := range append(append([]string{r.path, r.flag}, r.aliases...), r.env...) {
			if name != "" && seen[name] {
				t.Errorf("name %s: got two settings", name)
			}
			seen[name] = true
		}
		if r.help == "" || r.text == nil {
			t.Errorf("%s %s: help text or field is missing", r.flag, r.path)
		}
		f := flags.Lookup(r.flag)
		if r.flag != "" && (f.DefValue != r.defaultValue || !reflect.DeepEqual(f.Annotations[EnvAnnotation], r.env)) {
			t.Errorf("--%s: got default %q and variables %v", r.flag, f.DefValue, f.Annotations)
		}
	}
}

// TestDefaults checks that the defaults are NVIDIA's.
func TestDefaults(t *testing.T) {
	b := newTestBuilder(t, nil)
	l, err := b.Load()
	want := Settings{
		MIGStrategy: "none", DriverRoot: "/", DevRoot: "/", ContainerDriverRoot: "/driver-root",
		DeviceListStrategy: []response.DeviceListStrategy{"envvar"}, DeviceIDStrategy: "uuid",
		CDIAnnotationPrefix: "cdi.k8s.io/", CDIHookPath: "/usr/bin/nvidia-ctk",
		AllocationPolicy: "distributed", DeviceDiscovery: "auto",
		KubeletSocket: "/var/lib/kubelet/device-plugins/kubelet.sock",
	}
	if err != nil || !reflect.DeepEqual(l.Settings, want) || len(l.Origins) > 0 || len(l.Notices) > 0 {
		t.Errorf("got %+v, error %v, want NVIDIA's defaults", l, err)
	}
}

// TestSpellings checks the spellings of values that NVIDIA's plugin accepts.
func TestSpellings(t *testing.T) {
	b := newTestBuilder(t, map[string]string{
		"CDI_DISABLE_HOOKS": "disable-device-node-modification, update-ldcache", "GDS_ENABLED": "1", "MPS_ROOT": "",
		"FAIL_ON_INIT_ERROR": "", "KUBELET_SOCKET": "",
	}, "--device-list-strategy=envvar,cdi-cri", "--device-list-strategy=volume-mounts", "--device-list-strategy=envvar",
		"--pass-device-specs", "--nvidia-dev-root=/x")
	l, err := b.Load()
	s := l.Settings
	if err != nil || !reflect.DeepEqual(s.DeviceListStrategy,
		[]response.DeviceListStrategy{"envvar", "cdi-cri", "volume-mounts"}) || !s.PassDeviceSpecs ||
		s.DevRoot != "/x" ||
		!reflect.DeepEqual(s.CDIDisabledHooks, []string{"disable-device-node-modification", "update-ldcache"}) ||
		!s.GDS ||
		s.MPSRoot != "" || s.FailOnInitError || s.KubeletSocket != "" {
		t.Errorf("got %+v, error %v", s, err)
	}
	for name, from := range map[string]string{
		"pass-device-specs": "--pass-device-specs", "gds-enabled": "GDS_ENABLED",
		"mps-root": "", "kubelet-socket": "KUBELET_SOCKET",
	} {
		if l.Origins[name] != from {
			t.Errorf("origin of %s: got %q, want %q", name, l.Origins[name], from)
		}
	}
}

// TestInvalidValues checks the errors of invalid flags and variables.
func TestInvalidValues(t *testing.T) {
	for flag, wantErr := range map[string]string{
		"--mig-strategy=some": `invalid argument "some" for "--mig-strategy" flag: "some": expected ` +
			`none, single or mixed`,
		"--fail-on-init-error=maybe": `invalid argument "maybe" for "--fail-on-init-error" flag: "maybe": ` +
			`expected true or false`,
		"--device-list-strategy=envvar,cdi": `invalid argument "envvar,cdi" for "--device-list-strategy" flag: ` +
			`"cdi": expected envvar, volume-mounts, cdi-annotations or cdi-cri`,
		"--expected-gpus=eight": `invalid argument "eight" for "--expected-gpus" flag: "eight": ` +
			`expected a whole number from 0 to 1024`,
		"--expected-gpus=-1": `invalid argument "-1" for "--expected-gpus" flag: "-1": expected a ` +
			`whole number from 0 to 1024`,
		"--imex-channel-ids=2": `invalid argument "2" for "--imex-channel-ids" flag: "2": expected ` +
			`no channel, or channel 0`,
		"--device-discovery-strategy=nothing": `invalid argument "nothing" for "--device-discovery-strategy" flag: ` +
			`"nothing": expected auto or nvml`,
	} {
		f := pflag.NewFlagSet("podgauge", pflag.ContinueOnError)
		NewBuilder(nil).AddFlags(f)
		if err := f.Parse([]string{flag}); fmt.Sprint(err) != wantErr {
			t.Errorf("%s: got %v, want %s", flag, err, wantErr)
		}
	}
	for variable, wantErr := range map[string]string{
		"MIG_STRATEGY":      `MIG_STRATEGY: "x y": expected none, single or mixed`,
		"PASS_DEVICE_SPECS": `PASS_DEVICE_SPECS: "x y": expected true or false`,
		"DEVICE_LIST_STRATEGY": `DEVICE_LIST_STRATEGY: "x y": expected envvar, volume-mounts, cdi-annotations or ` +
			`cdi-cri`,
		"EXCLUDE_DEVICES": `EXCLUDE_DEVICES: "x y": expected an index (0), a MIG index (0:1), a UUID (GPU-…, ` +
			`MIG-…), a PCI address (0000:3b:00.0) or model:GLOB`,
	} {
		if got := loadError(t, map[string]string{variable: "x y"}, FileLocation{}, ""); got != wantErr {
			t.Errorf("%s: got %s, want %s", variable, got, wantErr)
		}
	}
}

// TestHealthVariables checks that invalid parts of the variables are skipped,
// as by NVIDIA's plugin.
func TestHealthVariables(t *testing.T) {
	for _, c := range []struct {
		disable, enable string
		want            HealthConfig
		notices         int
	}{
		{"", "", HealthConfig{}, 0},
		{"all", "", HealthConfig{Ignored: []string{"all"}}, 0},
		{"XIDS", "", HealthConfig{Ignored: []string{"all"}}, 0},
		{"0", "", HealthConfig{Ignored: []string{}}, 1},
		{"79, 48,x,,-1,0", "", HealthConfig{Ignored: []string{"79", "48"}}, 1},
		{"all", "79", HealthConfig{Ignored: []string{"all"}, Enabled: []string{"79"}}, 0},
		{"all", "all", HealthConfig{Ignored: []string{"all"}, Enabled: []string{"all"}}, 0},
		{"48", "all", HealthConfig{Ignored: []string{"48"}, Enabled: []string{"all"}}, 0},
	} {
		l, err := newTestBuilder(t, map[string]string{
			"DP_DISABLE_HEALTHCHECKS": c.disable,
			"DP_ENABLE_HEALTHCHECKS":  c.enable,
		}).Load()
		if err != nil || !reflect.DeepEqual(l.Settings.Health, c.want) || len(l.Notices) != c.notices {
			t.Errorf("%q, %q: got %+v, notices %v, error %v", c.disable, c.enable, l.Settings.Health, l.Notices, err)
		}
	}
	h := HealthConfig{Ignored: []string{"48", "all"}, Enabled: []string{"13", "48"}}
	for xid, want := range map[uint64]device.Policy{
		13: device.PolicyUnhealthy, 48: device.PolicyUnhealthy,
		79: device.PolicyWarn,
	} {
		if got := h.Policy(xid); got != want {
			t.Errorf("Xid %d: got %v, want %v", xid, got, want)
		}
	}
	if (HealthConfig{}).Policy(13) != device.PolicyDefault ||
		(HealthConfig{Enabled: []string{"all"}}).Policy(13) != device.PolicyUnhealthy {
		t.Error("want the table's policy without lists, and unhealthy with all enabled")
	}
}

// TestPolicies checks that the policy of a single Xid overrides NVIDIA's lists,
// and that the lists override the table.
func TestPolicies(t *testing.T) {
	const file = "version: v1\npodgauge: {xids: {94: warn, 31: unhealthy, 48: ignore, 79: ignore}}\n"
	for _, c := range []struct {
		disable, enable string
		want            map[uint64]device.Policy
	}{
		{"", "", map[uint64]device.Policy{
			94: device.PolicyWarn, 31: device.PolicyUnhealthy, 48: device.PolicyIgnore,
			79: device.PolicyIgnore, 13: device.PolicyDefault, 95: device.PolicyDefault,
		}},
		{"all", "", map[uint64]device.Policy{
			94: device.PolicyWarn, 31: device.PolicyUnhealthy, 48: device.PolicyIgnore,
			13: device.PolicyWarn, 95: device.PolicyWarn,
		}},
		{"31,95", "", map[uint64]device.Policy{
			31: device.PolicyUnhealthy, 95: device.PolicyWarn,
			13: device.PolicyDefault,
		}},
		{"", "all", map[uint64]device.Policy{
			94: device.PolicyWarn, 31: device.PolicyUnhealthy, 48: device.PolicyIgnore,
			13: device.PolicyUnhealthy, 95: device.PolicyUnhealthy,
		}},
		{"95", "94,95,48", map[uint64]device.Policy{
			94: device.PolicyWarn, 48: device.PolicyIgnore,
			95: device.PolicyUnhealthy, 13: device.PolicyDefault,
		}},
	} {
		b := newTestBuilder(t, map[string]string{
			"DP_DISABLE_HEALTHCHECKS": c.disable,
			"DP_ENABLE_HEALTHCHECKS":  c.enable,
		})
		l, err := b.LoadFrom(FileLocation{File: writeTemp(t, "config.yaml", file)})
		if err != nil {
			t.Fatal(err)
		}
		h := l.Settings.Health
		for xid, want := range c.want {
			if got := h.Policy(xid); got != want {
				t.Errorf("%q, %q: Xid %d: got %v, want %v", c.disable, c.enable, xid, got, want)
			}
		}
		if origin := l.Origins["podgauge.xids"]; !strings.HasSuffix(origin, "config.yaml:2") {
			t.Errorf("origin of the policies: got %q, want config.yaml:2", origin)
		}
	}
}
