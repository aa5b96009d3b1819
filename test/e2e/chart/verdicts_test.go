package chart

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	chartv2 "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"

	"github.com/podgauge/podgauge/internal/config"
	"github.com/podgauge/podgauge/test/helpers/require"
	"github.com/podgauge/podgauge/test/helpers/testfile"
)

// exceptions are the reasons for different verdicts of chart and daemon on a config.
var exceptions = map[string]string{
	"unknown key": "the daemon ignores unknown keys with a warning, as a config may be for a newer version; the chart has the same version",
	"notation":    "the daemon reads the digits of a number, the chart reads the value: Xid 0x1f, 2.0 replicas, a quoted 0x10",
	"alias":       "the chart compares numbers of keys, so an alias hides a duplicate key",
	"block":       "the chart does not detect duplicate keys in texts with block scalars or merges",
}

// verdictCase is a config with the expected verdict of daemon and chart.
type verdictCase struct {
	text     string
	accepted bool              // by the daemon
	except   string            // key of exceptions: the chart's verdict is the opposite
	values   string            // of the chart
	env      map[string]string // of the daemon, as the chart sets it for values
}

func acceptedTexts(texts ...string) (all []verdictCase) {
	for _, text := range texts {
		all = append(all, verdictCase{text: text, accepted: true})
	}
	return all
}

func rejectedTexts(texts ...string) (all []verdictCase) {
	for _, text := range texts {
		all = append(all, verdictCase{text: text})
	}
	return all
}

func sharing(resources string) string {
	return "version: v1\nsharing: {timeSlicing: {resources: " + resources + "}}\n"
}

var verdictCases = slices.Concat(
	// The text as a whole.
	acceptedTexts("version: v1", "---\nversion: v1\n", "# of the fleet\n---\nversion: v1 # the only one\n", "{}", "{\"version\": \"v1\"}", "version: v1\n...\n",
		"version:\n", "flags: {migStrategy: single}\n", "version: v1\nflags:\nsharing: ~\nresources: null\n", "\r\nversion: v1\r\nflags:\r\n  migStrategy: mixed\r\n"),
	rejectedTexts("# nothing\n", "---\n", "null", "hello\n", "- version: v1\n", "version: v1\n---\nversion: v1\n", "version: v1\n---\n", "version: v2", "version: 1", "version: [v1]",
		"version: \"v1 \"", "version: v1\nflags: {\n", "version: v1\n\tflags: x\n", "version: v1 # "+strings.Repeat("x", 128<<10), "version: v1\nflags: *f\n"),
	// Keys.
	rejectedTexts("version: v1\nversion: v1\n", "version: v1\nflags: {migStrategy: none}\nflags: {gdsEnabled: true}\n", "version: v1\nflags:\n  plugin:\n    passDeviceSpecs: true\n    passDeviceSpecs: true\n",
		`{"version": "v1", "imex": {}, "imex": {}}`, `{"version":"v1","imex":{"required":true,"required":false}}`, "version: v1\nflags: {migStrategy: none, \"migStrategy\": single}\n",
		"version: v1\nflags: {migStrategy : none, 'migStrategy': single}\n", "version: v1\npodgauge: {xids: {31: warn, \"31\": ignore}}\n",
		sharing("[{name: gpu, replicas: 2, name: gpu}]"), "version: v1\nflags: mixed\n", "version: v1\nflags: []\n", "version: v1\nflags: \"\"\n", "version: v1\nflags: {plugin: [a]}\n", "version: v1\n? [a]\n: b\n"),
	acceptedTexts(sharing("[{name: gpu, replicas: 2}, {name: gpu, replicas: 3, devices: [0]}]"), "version: v1 # version: v2\n", "version: v1\nflags: {nvidiaDriverRoot: 'a b: c', nvidiaDevRoot: \"d: e\"}\n",
		"version: v1\nflags: {nvidiaDriverRoot: it's, mpsRoot: it's}\n# it's: a comment\n", "version: v1\nflags: &f {migStrategy: none}\n", "version: v1\nflags: {nvidiaDriverRoot: /a#b, nvidiaDevRoot: a:b}\n",
		"version: v1\nflags: &f\n  plugin: {<<: {deviceIDStrategy: index, passDeviceSpecs: true}, passDeviceSpecs: false}\n", "version: v1\nflags: {gfd: {oneshot: true, any: [1]}, useNodeFeatureAPI: maybe}\n"),
	[]verdictCase{
		{text: "version: v1\nflags: {migStrateg: none}\n", accepted: true, except: "unknown key"},
		{text: "version: v1\nconfigs: {a: {}}\n", accepted: true, except: "unknown key"},
		{text: sharing("[{name: gpu, replicas: 2, replica: 3}]"), accepted: true, except: "unknown key"},
		{text: "version: v1\nflags: &f {migStrategy: none}\nimex: &i {required: true}\nresources: {gpus: [{pattern: x, name: a, name: a}, &r {pattern: x, name: a}, *r]}\n", except: "alias"},
		{text: "version: v1\nflags:\n  nvidiaDriverRoot: |-\n    a: b\n", accepted: true},
		{text: "version: v1\nflags:\n  nvidiaDriverRoot: |-\n    a: b\n  gdsEnabled: true\n  gdsEnabled: true\n", except: "block"},
		{text: "version: v1\nflags: {<<: {gdsEnabled: true}, mofedEnabled: true, mofedEnabled: true}\n", except: "block"},
	},
	// Numbers in several notations.
	acceptedTexts(sharing("[{name: a, replicas: 0x10}, {name: b, replicas: 010}, {name: c, replicas: 1_000}, {name: d, replicas: \"4\"}, {name: e, replicas: +4}, {name: f, replicas: 65536}]"),
		"version: v1\npodgauge: {select: {include: [0, 01, \"0:1\", 3B:00.0, 65535], exclude: 01}}\n", "version: v1\nflags: {nvidiaDriverRoot: 5}\n", "version: v1\nflags: {failOnInitError: no, gdsEnabled: YES}\n"),
	[]verdictCase{
		{text: sharing("[{name: gpu, replicas: 2.0}]"), except: "notation"},
		{text: sharing("[{name: gpu, replicas: \"0x10\"}]"), accepted: true, except: "notation"},
		{text: sharing("[{name: gpu, replicas: 2, devices: 0x2}]"), except: "notation"},
		{text: "version: v1\npodgauge: {disableHealthChecks: [0x1f]}\n", except: "notation"},
	},
	// Sharing and names. someValues has the values of single keys.
	acceptedTexts(sharing("[{name: example.com/gpu, rename: b, replicas: 2, devices: all}]"), sharing("[{name: gpu, replicas: 2, devices: null, rename: null}]"),
		"version: v1\nsharing: {timeSlicing: {renameByDefault: true, resources: [{name: "+strings.Repeat("a", 56)+", replicas: 2}]}}\n",
		"version: v1\nsharing: {timeSlicing: {renameByDefault: true, resources: [{name: "+strings.Repeat("a", 60)+", rename: b, replicas: 2}]}}\n",
		"version: v1\nresources: {gpus: [{pattern: \"*\", name: gpu}], mig: []}\n", "version: v1\nsharing: {timeSlicing: null, mps: null}\n"),
	rejectedTexts(sharing("[{name: gpu}]"), sharing("[{replicas: 2}]"),
		"version: v1\nsharing: {timeSlicing: {renameByDefault: true, resources: [{name: "+strings.Repeat("a", 57)+", replicas: 2}]}}\n",
		"version: v1\nresources: {gpus: [{pattern: \"*\"}]}\n", "version: v1\nresources: {gpus: [{name: gpu}]}\n"),
	// Settings that depend on each other.
	[]verdictCase{
		{text: "version: v1\nsharing: {mps: {resources: [{name: gpu, replicas: 2}]}}\n"},
		{text: "version: v1\nflags: {mpsRoot: \"\"}\nsharing: {mps: {resources: [{name: gpu, replicas: 2}]}}\n"},
		{text: "version: v1\nflags: {mpsRoot: /mps}\nsharing: {mps: {resources: [{name: gpu, replicas: 2}]}}\n", accepted: true},
		{text: "version: v1\nflags: {mpsRoot: /mps}\nsharing: {mps: {resources: [{name: gpu, replicas: 2}]}, timeSlicing: {resources: [{name: gpu, replicas: 2}]}}\n", accepted: true},
		{text: "version: v1\nflags: {mpsRoot: /mps, migStrategy: mixed}\nsharing: {mps: {resources: [{name: gpu, replicas: 2}]}}\n"},
		{text: "version: v1\nsharing: {mps: {resources: [{name: gpu, replicas: 2}]}}\n", accepted: true, values: `mps: {root: /run/mps}`, env: map[string]string{"MPS_ROOT": "/run/mps"}},
		{text: "version: v1\nflags: {migStrategy: mixed}\nsharing: {mps: {resources: [{name: gpu, replicas: 2}]}}\n", accepted: true, values: `{migStrategy: none, mps: {root: /run/mps}}`, env: map[string]string{"MPS_ROOT": "/run/mps", "MIG_STRATEGY": "none"}},
		{text: "version: v1\nsharing: {mps: {resources: [{name: gpu, replicas: 2}]}}\n", values: `{migStrategy: mixed, mps: {root: /run/mps}}`, env: map[string]string{"MPS_ROOT": "/run/mps", "MIG_STRATEGY": "mixed"}},
	},
)

// someValues are tested as the value of each key of the schema. Mappings, and keys with the schema of an earlier key, only get the first
// values.
var someValues = []string{
	`null`, `true`, `"yes"`, `0`, `1`, `""`, `a`, `[]`, `{}`, `[null]`, `[0]`, `[a]`,
	`"true"`, `"On"`, `y`, `oN`, `2`, `-1`, `1.5`, `65536`, `99999999999`, `","`, `" "`, `all`, `ALL`, `v1`, `"0"`, `"0, 0"`, `"0,1"`, `[1, 2]`, `["0,1"]`, `[" 0"]`, `[true]`, `[[0]]`, `[{}]`, `{a: b}`,
	`none`, `single`, `[none]`, `auto`, `nvml`, `uuid`, `index`, `packed`, `distinct`, `envvar`, `"envvar, cdi-cri,"`, `[envvar, envvar]`, `[envvar, cdi]`, `[" envvar"]`, `xids`, `[48, "79"]`, `"48,all"`, `[0, 1]`,
	`"0:1"`, `["0:70000"]`, `[70000]`, `[GPU-12345678-1234-1234-1234-123456789abc]`, `[GPU-1]`, `["0000:3b:00.0", "3b:1f.7"]`, `["3b:2f.7"]`, `"model:*A100*"`, `["model:"]`,
	`"a b"`, `a/b/c`, `UP.com/gpu`, `example.com/gpu`, `kubernetes.io/gpu`, `requests.a/gpu`, `-gpu`, strings.Repeat("a", 64), strings.Repeat("a", 245) + "/gpu",
	`a/b`, `[a/b/c, "*/x-*"]`, `[a/b/c/d]`, `[A/b]`, `{94: warn}`, `{"94": unhealthy, 31: null}`, `{94: fatal}`, `{0: warn}`, `{all: warn}`, `{-1: warn}`, `{"031": warn}`, `{94: [warn]}`, `{94: true}`,
	`{31: unhealthy at 3 in 24h}`, `{31: unhealthy at 100 in 5m}`, `{31: unhealthy at 1 in 24h}`, `{31: unhealthy at 3 in 1d}`, `{31: warn at 3 in 24h}`, `{31: {count: 3}}`,
}

// TestVerdicts checks that the daemon's parser and the chart accept the same configs, apart from exceptions.
func TestVerdicts(t *testing.T) {
	validate := newValidator(t)
	used := map[string]bool{}
	cases := slices.Clone(verdictCases)
	paths, schemas := schemaPaths(t)
	tested := map[string]bool{}
	for _, path := range paths {
		values := someValues
		if tested[schemas[path]] || strings.Contains(schemas[path], `"properties"`) {
			values = someValues[:12]
		}
		for _, value := range values {
			cases = append(cases, verdictCase{text: nested(path, value)})
		}
		tested[schemas[path]] = true
	}
	for i, c := range cases {
		unknown, daemon := loadConfig(t, c.text, c.env)
		chart := validate(c.text, c.values)
		if i < len(verdictCases) && (daemon == nil) != c.accepted {
			t.Errorf("%.200q: the daemon returns %v, want accepted: %t", c.text, daemon, c.accepted)
		}
		if i >= len(verdictCases) && unknown {
			c.except = "unknown key"
		}
		used[c.except] = true
		if c.except != "" && exceptions[c.except] == "" {
			t.Errorf("unknown exception %q", c.except)
		}
		if same := (daemon == nil) == (chart == nil); same == (c.except != "") {
			t.Errorf("%.200q (exception %q): the daemon returns %v, the chart returns %v", c.text, c.except, daemon, chart)
		}
	}
	for name := range exceptions {
		if !used[name] {
			t.Errorf("no case with the exception %s", name)
		}
	}
	t.Logf("%d configs", len(cases))
}

// loadConfig returns the daemon's verdict on a mounted config, and whether the config has unknown keys.
func loadConfig(t *testing.T, text string, env map[string]string) (unknown bool, err error) {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "default"), []byte(text), 0o600))
	builder := config.NewBuilder(func(name string) (string, bool) { value, ok := env[name]; return value, ok })
	loaded, err := builder.LoadFrom(config.FileLocation{File: dir})
	return len(loaded.UnknownKeys) > 0, err
}

// newValidator returns a function for the chart's verdict on a config. For speed, it omits the values' schema and the templates of objects.
func newValidator(t *testing.T) func(text, values string) error {
	t.Helper()
	c, err := loader.LoadDir(chartDir)
	require.NoError(t, err)
	c.Schema = nil
	c.Templates = slices.DeleteFunc(c.Templates, func(f *common.File) bool {
		name := filepath.Base(f.Name)
		return name != "validate.yaml" && !strings.HasPrefix(name, "_")
	})
	return func(text, values string) error { return renderConfig(c, text, values) }
}

func renderConfig(c *chartv2.Chart, text, values string) error {
	configValues, err := json.Marshal(map[string]any{"config": map[string]any{"map": map[string]string{"default": text}}})
	if err != nil {
		return err
	}
	merged, err := mergeValues(values, string(configValues))
	if err != nil {
		return err
	}
	rendered, err := util.ToRenderValues(c, merged, common.ReleaseOptions{Name: "podgauge", Namespace: "podgauge"}, common.DefaultCapabilities)
	if err != nil {
		return err
	}
	if _, err := engine.Render(c, rendered); err != nil {
		if strings.Contains(err.Error(), "config.map.default") {
			return err
		}
		return fmt.Errorf("error lacks the name of the config: %w", err)
	}
	return nil
}

// schemaPaths returns the keys in the chart's schema of a config, and the schema of each key. Lists of mappings have the suffix [].
func schemaPaths(t *testing.T) (paths []string, schemas map[string]string) {
	t.Helper()
	type node struct {
		Properties map[string]json.RawMessage `json:"properties"`
		Items      json.RawMessage            `json:"items"`
	}
	schemas = map[string]string{}
	var visit func(text json.RawMessage, path string)
	visit = func(text json.RawMessage, path string) {
		var n node
		require.NoError(t, json.Unmarshal(text, &n))
		for _, key := range slices.Sorted(maps.Keys(n.Properties)) {
			at := strings.TrimPrefix(path+"."+key, ".")
			paths, schemas[at] = append(paths, at), string(n.Properties[key])
			visit(n.Properties[key], at)
		}
		if n.Items != nil {
			visit(n.Items, path+"[]")
		}
	}
	visit(json.RawMessage(testfile.Read(t, chartDir+"/files/config.schema.json")), "")
	if len(paths) < 40 {
		t.Fatalf("got %d paths, want at least 40: %v", len(paths), paths)
	}
	return paths, schemas
}

// nested returns a config with a value at a path. Other required keys of list items have valid values.
func nested(path, value string) string {
	head, rest, found := strings.Cut(path, ".")
	if !found {
		return fmt.Sprintf("{%q: %s}", path, value)
	}
	list, isList := strings.CutSuffix(head, "[]")
	inner := nested(rest, value)
	if !isList {
		return fmt.Sprintf("{%q: %s}", head, inner)
	}
	for key, usual := range map[string]string{"name": "gpu", "replicas": "2", "pattern": "x"} {
		if key != rest && (key != "replicas" || list == "resources") && (key != "pattern" || list != "resources") {
			inner = strings.TrimSuffix(inner, "}") + fmt.Sprintf(", %q: %s}", key, usual)
		}
	}
	return fmt.Sprintf("{%q: [%s]}", list, inner)
}
