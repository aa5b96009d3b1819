package config

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"go.uber.org/goleak"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/plugin/response"
	"github.com/podgauge/podgauge/test/helpers/expect"
	"github.com/podgauge/podgauge/test/helpers/require"
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
	text := v1
	if s.path == "" {
		return text
	}
	if s.isList {
		value = "[" + value + "]"
	}
	keys := strings.Split(s.path, ".")
	for i, key := range keys[:len(keys)-1] {
		text += strings.Repeat(" ", i) + key + ":\n"
	}
	return text + strings.Repeat(" ", len(keys)) + keys[len(keys)-1] + ": " + value + "\n"
}

// loadedValue returns the value of the setting after loading a file.
func (s setting) loadedValue(t *testing.T, b *Builder, file string) string {
	t.Helper()
	l, err := b.LoadFrom(FileLocation{File: writeFiles(t, "config.yaml", file) + "/config.yaml"})
	require.NoError(t, err)
	location, err := b.Location()
	require.NoError(t, err)
	for _, row := range settingsOf(&l.Settings, &location) {
		if row.flag == s.flag {
			return row.text()
		}
	}
	t.Fatal("no such setting")
	return ""
}

// TestPrecedence checks for each setting that a flag overrides a variable, a variable overrides the file, and the file
// overrides the default. Of several variables, the first counts.
func TestPrecedence(t *testing.T) {
	for _, r := range testSettings() {
		if r.flag == "" {
			continue
		}
		one, two := sampleValues(r)
		for _, c := range [][2]string{{one, two}, {two, one}} {
			high, low := c[0], c[1]
			want := r.loadedValue(t, newTestBuilder(t, nil, "--"+r.flag+"="+high), v1)
			check := func(what, file string, env map[string]string, args ...string) {
				t.Helper()
				if got := r.loadedValue(t, newTestBuilder(t, env, args...), file); got != want {
					t.Errorf("--%s: %s: got %v, want %v", r.flag, what, got, want)
				}
			}
			for _, flag := range append(r.aliases, r.flag) {
				check("flag and file", r.configText(low), nil, "--"+flag+"="+high)
			}
			for i, variable := range r.env {
				check("flag, variable and file", r.configText(low), map[string]string{variable: low}, "--"+r.flag+"="+high)
				env := map[string]string{variable: high}
				for _, later := range r.env[i+1:] {
					env[later] = low
				}
				if high != "" {
					check("variables and file", r.configText(low), env)
				}
			}
			if r.path != "" {
				check("file", r.configText(high), nil)
			}
		}
	}
}

// TestDefaults checks that the defaults are NVIDIA's.
func TestDefaults(t *testing.T) {
	l, err := newTestBuilder(t, nil).Load()
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
	l, err := newTestBuilder(t, map[string]string{
		"CDI_DISABLE_HOOKS": "disable-device-node-modification, update-ldcache", "GDS_ENABLED": "1", "MPS_ROOT": "",
		"FAIL_ON_INIT_ERROR": "", "KUBELET_SOCKET": "",
	}, "--device-list-strategy=envvar,cdi-cri", "--device-list-strategy=volume-mounts", "--device-list-strategy=envvar",
		"--pass-device-specs", "--nvidia-dev-root=/x").Load()
	want := mustLoad(t, v1).Settings
	want.DeviceListStrategy = []response.DeviceListStrategy{"envvar", "cdi-cri", "volume-mounts"}
	want.CDIDisabledHooks = []string{"disable-device-node-modification", "update-ldcache"}
	want.PassDeviceSpecs, want.DevRoot, want.GDS, want.KubeletSocket = true, "/x", true, ""
	require.NoError(t, err)
	expect.DeepEqual(t, l.Settings, want)
	wantOrigins := map[string]string{
		"pass-device-specs": "--pass-device-specs", "dev-root": "--dev-root", "device-list-strategy": "--device-list-strategy",
		"gds-enabled": "GDS_ENABLED", "cdi-disable-hooks": "CDI_DISABLE_HOOKS", "kubelet-socket": "KUBELET_SOCKET",
	}
	expect.DeepEqual(t, l.Origins, wantOrigins)
}

// TestInvalidValues checks the errors of invalid flags and variables.
func TestInvalidValues(t *testing.T) {
	for flag, want := range map[string]string{
		"mig-strategy=some":                 `"some": expected none, single or mixed`,
		"fail-on-init-error=maybe":          `"maybe": expected true or false`,
		"device-list-strategy=envvar,cdi":   `"cdi": expected envvar, volume-mounts, cdi-annotations or cdi-cri`,
		"expected-gpus=eight":               `"eight": expected a whole number from 0 to 1024`,
		"expected-gpus=-1":                  `"-1": expected a whole number from 0 to 1024`,
		"imex-channel-ids=2":                `"2": expected no channel, or channel 0`,
		"device-discovery-strategy=nothing": `"nothing": expected auto or nvml`,
	} {
		f := pflag.NewFlagSet("podgauge", pflag.ContinueOnError)
		NewBuilder(nil).AddFlags(f)
		name, value, _ := strings.Cut(flag, "=")
		want = fmt.Sprintf("invalid argument %q for \"--%s\" flag: %s", value, name, want)
		expect.Equal(t, fmt.Sprint(f.Parse([]string{"--" + flag})), want, flag)
	}
	for variable, want := range map[string]string{
		"MIG_STRATEGY":         `"x y": expected none, single or mixed`,
		"PASS_DEVICE_SPECS":    `"x y": expected true or false`,
		"DEVICE_LIST_STRATEGY": `"x y": expected envvar, volume-mounts, cdi-annotations or cdi-cri`,
		"EXCLUDE_DEVICES":      `"x y": expected an index (0), a MIG index (0:1), a UUID (GPU-…, MIG-…), a PCI address (0000:3b:00.0) or model:GLOB`,
	} {
		if _, err := newTestBuilder(t, map[string]string{variable: "x y"}).Load(); fmt.Sprint(err) != variable+": "+want {
			t.Errorf("%s: got %v, want %s", variable, err, want)
		}
	}
}

// TestHealthVariables checks that invalid parts of the variables are skipped, as by NVIDIA's plugin.
func TestHealthVariables(t *testing.T) {
	for _, c := range []struct {
		disable, enable string
		want            HealthConfig
		notice          string
	}{
		{"", "", HealthConfig{}, ""},
		{"all", "79", HealthConfig{Ignored: []string{"all"}, Enabled: []string{"79"}}, ""},
		{"XIDS", "all", HealthConfig{Ignored: []string{"all"}, Enabled: []string{"all"}}, ""},
		{"0", "", HealthConfig{Ignored: []string{}}, `DP_DISABLE_HEALTHCHECKS: skipped ["0"]: not Xids`},
		{"79, 48,x,,-1,0", "", HealthConfig{Ignored: []string{"79", "48"}}, `DP_DISABLE_HEALTHCHECKS: skipped ["x" "-1" "0"]: not Xids`},
	} {
		env := map[string]string{"DP_DISABLE_HEALTHCHECKS": c.disable, "DP_ENABLE_HEALTHCHECKS": c.enable}
		l, err := newTestBuilder(t, env).Load()
		if err != nil || !reflect.DeepEqual(l.Settings.Health, c.want) || strings.Join(l.Notices, "\n") != c.notice {
			t.Errorf("%q, %q: got %+v, notices %v, error %v", c.disable, c.enable, l.Settings.Health, l.Notices, err)
		}
	}
}

// TestPolicies checks that the policy of a single Xid overrides NVIDIA's lists, and that the lists override the table.
func TestPolicies(t *testing.T) {
	const file = v1 + "podgauge: {xids: {94: warn, 31: unhealthy, 48: ignore}}\n"
	names := map[device.Policy]string{
		device.PolicyDefault: "default", device.PolicyIgnore: "ignore", device.PolicyWarn: "warn", device.PolicyUnhealthy: "unhealthy",
	}
	for _, c := range []struct{ file, disable, enable, want string }{ // the policies of Xids 94, 31, 48, 13 and 95
		{v1, "", "", "default default default default default"},
		{v1, "all,48", "13,48", "warn warn unhealthy unhealthy warn"},
		{file, "", "", "warn unhealthy ignore default default"},
		{file, "all", "", "warn unhealthy ignore warn warn"},
		{file, "31,95", "", "warn unhealthy ignore default warn"},
		{file, "", "all", "warn unhealthy ignore unhealthy unhealthy"},
		{file, "95", "94,95,48", "warn unhealthy ignore default unhealthy"},
	} {
		b := newTestBuilder(t, map[string]string{"DP_DISABLE_HEALTHCHECKS": c.disable, "DP_ENABLE_HEALTHCHECKS": c.enable})
		l, err := b.LoadFrom(FileLocation{File: writeFiles(t, "config.yaml", c.file) + "/config.yaml"})
		require.NoError(t, err)
		var got []string
		for _, xid := range []uint64{94, 31, 48, 13, 95} {
			got = append(got, names[l.Settings.Health.Policy(xid).Policy])
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%+v: got %v", c, got)
		}
	}
}

// TestXidThreshold checks the policies with a count of reports in a window.
func TestXidThreshold(t *testing.T) {
	unhealthy := device.PolicyUnhealthy
	for text, want := range map[string]device.XidPolicy{
		"unhealthy":                  {Policy: unhealthy},
		"unhealthy at 2 in 1m":       {Policy: unhealthy, Count: 2, Window: time.Minute},
		"unhealthy at 3 in 24h":      {Policy: unhealthy, Count: 3, Window: 24 * time.Hour},
		"'unhealthy at 100 in 999h'": {Policy: unhealthy, Count: 100, Window: 999 * time.Hour},
	} {
		l := mustLoad(t, "version: v1\npodgauge: {xids: {31: "+text+"}}\n")
		expect.Equal(t, l.Settings.Health.Policy(31), want, text)
		expect.Equal(t, l.Settings.Health.Policy(13), device.XidPolicy{}, "another Xid")
	}
	for name, below := range map[string]device.Policy{"disableHealthChecks": device.PolicyWarn, "enableHealthChecks": unhealthy} {
		l := mustLoad(t, "version: v1\npodgauge: {xids: {31: unhealthy at 3 in 24h}, "+name+": all}\n")
		expect.Equal(t, l.Settings.Health.Policy(31), device.XidPolicy{Policy: unhealthy, Count: 3, Window: 24 * time.Hour, Below: below}, name)
	}
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// newTestBuilder returns a Builder with these flags and variables.
func newTestBuilder(t testing.TB, env map[string]string, args ...string) *Builder {
	t.Helper()
	b := NewBuilder(func(name string) (string, bool) { v, ok := env[name]; return v, ok })
	f := pflag.NewFlagSet("podgauge", pflag.ContinueOnError)
	b.AddFlags(f)
	require.NoError(t, f.Parse(args))
	return b
}

// writeFiles creates a folder of files. Names and texts alternate.
func writeFiles(t testing.TB, files ...string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for i := 0; i < len(files); i += 2 {
		require.NoError(t, os.WriteFile(filepath.Join(dir, files[i]), []byte(files[i+1]), 0o644))
	}
	return dir
}

// loadFile loads a file without flags and variables. The error, or "accepted", lacks the folder.
func loadFile(t testing.TB, text string) (l Loaded, errText string) {
	t.Helper()
	dir := writeFiles(t, "config.yaml", text)
	l, err := newTestBuilder(t, nil).LoadFrom(FileLocation{File: filepath.Join(dir, "config.yaml")})
	if err == nil {
		return l, "accepted"
	}
	return l, strings.ReplaceAll(err.Error(), dir+"/", "")
}

func mustLoad(t testing.TB, text string) Loaded {
	t.Helper()
	l, errText := loadFile(t, text)
	if errText != "accepted" {
		t.Fatal(errText)
	}
	return l
}

// describe returns the notices, unknown keys and settings of a file, a line each, without its folder.
func describe(l Loaded) string {
	lines := slices.Clone(l.Notices)
	for _, key := range l.UnknownKeys {
		lines = append(lines, key.String())
	}
	for _, s := range l.Summary() {
		lines = append(lines, fmt.Sprintf("%s: %s (%s)", s.Name, s.Value, s.Origin))
	}
	return regexp.MustCompile(`[^ (\n]*/([\w.-]+:\d)`).ReplaceAllString(strings.Join(lines, "\n"), "$1")
}
