package chart

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/podgauge/podgauge/test/helpers/docs"
	"github.com/podgauge/podgauge/test/helpers/expect"
	"github.com/podgauge/podgauge/test/helpers/require"
	"github.com/podgauge/podgauge/test/helpers/testfile"
)

// valuesRow is a row of the README's table.
type valuesRow struct {
	section      string
	key          string
	defaultValue string // as JSON
	description  string
}

var keyLine = regexp.MustCompile(`^( *)([A-Za-z][A-Za-z0-9]*):`)

// documentedValues reads values.yaml. A comment with "--" describes the next key, and "##" is the heading of a section. bare are the keys
// without a comment, which must be parents of other keys.
func documentedValues(t *testing.T) (rows []valuesRow, bare []string) {
	t.Helper()
	text := testfile.Read(t, chartDir+"/values.yaml")
	var defaults map[string]any
	require.NoError(t, yaml.Unmarshal([]byte(text), &defaults))
	var section, description string
	var path []string // of the previous key, with its parents
	documented := -1  // depth of a key with a comment for all keys inside
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		comment, isComment := strings.CutPrefix(strings.TrimSpace(line), "#")
		switch {
		case strings.HasPrefix(line, "## "):
			section = strings.TrimPrefix(line, "## ")
			continue
		case isComment && strings.HasPrefix(comment, " -- "):
			description = strings.TrimPrefix(comment, " -- ")
			continue
		case isComment && description != "":
			description += comment
			continue
		}
		match := keyLine.FindStringSubmatch(line)
		if match == nil {
			continue
		}
		depth := len(match[1]) / 2
		if documented >= 0 && depth > documented {
			continue
		}
		documented = -1
		path = append(path[:min(depth, len(path))], match[2])
		key := strings.Join(path, ".")
		if description == "" {
			bare = append(bare, key)
			continue
		}
		var value any = defaults
		for _, key := range path {
			value = value.(map[string]any)[key]
		}
		defaultValue, err := json.Marshal(value)
		require.NoError(t, err)
		rows = append(rows, valuesRow{section, key, string(defaultValue), description})
		description, documented = "", depth
	}
	return rows, bare
}

// TestValues checks that each value has a description and is in the schema. Additional values in the schema are those of NVIDIA's chart
// with an error message, and those that helm sets for subcharts.
func TestValues(t *testing.T) {
	rows, bare := documentedValues(t)
	descriptions := map[string]string{}
	for _, row := range rows {
		descriptions[row.key] = row.description
		if row.section == "" || !strings.HasSuffix(strings.TrimRight(row.description, ")"), ".") {
			t.Errorf("%s: section %q, description %q", row.key, row.section, row.description)
		}
	}
	for _, key := range bare {
		if !slices.ContainsFunc(rows, func(row valuesRow) bool { return strings.HasPrefix(row.key, key+".") }) {
			t.Errorf("%s lacks a description", key)
		}
	}
	var s valuesSchema
	require.NoError(t, json.Unmarshal([]byte(testfile.Read(t, chartDir+"/values.schema.json")), &s))
	known := map[string]bool{}
	s.visitKeys(s, "", func(key string, foreign bool) {
		if foreign == (descriptions[key] != "") && key != "global" && key != "enabled" {
			t.Errorf("the schema has %s, with the description %q in values.yaml", key, descriptions[key])
		}
		known[key] = true
	}, descriptions)
	for key := range descriptions {
		if !known[key] {
			t.Errorf("the schema lacks %s", key)
		}
	}
	if len(rows) < 100 {
		t.Errorf("got %d values, want at least 100", len(rows))
	}
}

// valuesSchema is the part of a JSON schema with the keys.
type valuesSchema struct {
	Ref        string                  `json:"$ref"`
	Properties map[string]valuesSchema `json:"properties"`
	Defs       map[string]valuesSchema `json:"$defs"`
}

// visitKeys calls a function for each key, except for keys inside a documented key.
func (s valuesSchema) visitKeys(all valuesSchema, parent string, each func(key string, foreign bool), descriptions map[string]string) {
	for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
		key, p := parent+name, s.Properties[name]
		foreign := p.Ref == "#/$defs/foreign"
		if def, isRef := strings.CutPrefix(p.Ref, "#/$defs/"); isRef {
			p = all.Defs[def]
		}
		if len(p.Properties) > 0 && descriptions[key] == "" {
			p.visitKeys(all, key+".", each, descriptions)
			continue
		}
		each(key, foreign)
	}
}

// TestReadme checks that the README's table matches values.yaml.
func TestReadme(t *testing.T) {
	var table strings.Builder
	rows, _ := documentedValues(t)
	section := ""
	for _, row := range rows {
		if row.description == "As for `podMonitor`." {
			continue
		}
		if row.section != section {
			section = row.section
			fmt.Fprintf(&table, "\n**%s**\n\n| value | default | description |\n|---|---|---|\n", section)
		}
		fmt.Fprintf(&table, "| `%s` | `%s` | %s |\n", row.key, strings.ReplaceAll(row.defaultValue, "|", `\|`), strings.ReplaceAll(row.description, "|", `\|`))
	}
	docs.CheckTables(t, *update, chartDir+"/README.md", map[string]string{"values": table.String() + "\n"})
}

// checkPods checks a text of the pod for each of some values.
func checkPods(t *testing.T, of func(pod core.PodSpec) string, wanted map[string]string) {
	t.Helper()
	for values, want := range wanted {
		pod := decodeAll[apps.DaemonSet](t, mustRender(t, values, `image: {tag: v1}`))[0].Spec.Template.Spec
		expect.Equal(t, of(pod), want, values)
	}
}

// TestRegistries checks that image.registry replaces the registry of the repository, that global.imageRegistry has precedence, and that the
// image of podgauge-sim is in the same folder.
func TestRegistries(t *testing.T) {
	image := func(pod core.PodSpec) string { return pod.Containers[0].Image }
	checkPods(t, image, map[string]string{
		``:                          "ghcr.io/podgauge/podgauge:v1",
		`image: {registry: r.test}`: "r.test/podgauge/podgauge:v1",
		`{global: {imageRegistry: g.test:5000}, image: {registry: r.test}}`:   "g.test:5000/podgauge/podgauge:v1",
		`{global: {imageRegistry: g.test/mirror}, simulate: hardware}`:        "g.test/mirror/podgauge/podgauge-sim:v1",
		`{image: {registry: r.test, repository: mirror/podgauge}}`:            "r.test/mirror/podgauge:v1",
		`{image: {registry: r.test, repository: localhost/podgauge}}`:         "r.test/podgauge:v1",
		`{image: {registry: r.test, repository: "old.test:5000/a/podgauge"}}`: "r.test/a/podgauge:v1",
		`{global: null, image: {repository: podgauge}}`:                       "podgauge:v1",
	})
}

// TestKubeImage checks that podgauge-kube's image has the tag and the registry of podgauge's, unless it has a tag of its own.
func TestKubeImage(t *testing.T) {
	for values, want := range map[string]string{
		``: "ghcr.io/podgauge/podgauge-kube:v1",
		`{image: {registry: r.test}, kubernetes: {image: {repository: mirror/kube}}}`: "r.test/mirror/kube:v1",
		`{global: {imageRegistry: g.test}, simulate: hardware}`:                       "g.test/podgauge/podgauge-kube:v1",
		`kubernetes: {image: {tag: v2}}`:                                              "ghcr.io/podgauge/podgauge-kube:v2",
		`kubernetes: {image: {digest: "sha256:` + testDigest + `"}}`:                  "ghcr.io/podgauge/podgauge-kube@sha256:" + testDigest,
	} {
		documents := mustRender(t, values, `{kubernetes: {events: true, pods: true}, image: {tag: v1}}`)
		controller := decodeAll[apps.Deployment](t, documents)[0].Spec.Template.Spec.Containers[0]
		sidecar := decodeAll[apps.DaemonSet](t, documents)[0].Spec.Template.Spec.Containers[1]
		if controller.Image != want || sidecar.Image != want {
			t.Errorf("%s: got %s and %s, want %s", values, controller.Image, sidecar.Image, want)
		}
	}
}

// TestDevices checks that without NVIDIA's runtime, the container mounts the folder with the device nodes. A driver container has its own.
func TestDevices(t *testing.T) {
	folder := func(pod core.PodSpec) string {
		for _, v := range pod.Volumes {
			if v.Name == "dev" {
				return v.HostPath.Path
			}
		}
		return ""
	}
	checkPods(t, folder, map[string]string{
		`{driver: {injection: host}}`:                                                              "/dev",
		`{driver: {injection: host}, nvidiaDriverRoot: /}`:                                         "/dev",
		`{driver: {injection: host}, nvidiaDriverRoot: /run/nvidia/driver}`:                        "/run/nvidia/driver/dev",
		`{driver: {injection: host}, nvidiaDriverRoot: /run/nvidia/driver, nvidiaDevRoot: /}`:      "/dev",
		`{driver: {injection: host}, nvidiaDriverRoot: /, nvidiaDevRoot: /run/nvidia/driver}`:      "/run/nvidia/driver/dev",
		`{driver: {injection: runtime}, nvidiaDriverRoot: /run/nvidia/driver, nvidiaDevRoot: /}`:   "",
		`{driver: {injection: host}, nvidiaDriverRoot: /home/kubernetes/bin, nvidiaDevRoot: /}`:    "/dev",
		`{driver: {injection: host}, kernelLog: {enabled: true}, nvidiaDriverRoot: /opt/a-driver}`: "/opt/a-driver/dev",
	})
}

// TestCapabilities checks the driver capabilities. NVIDIA's runtime in legacy mode mounts /dev/nvidia-uvm only with compute, and Allocate
// returns only device nodes that podgauge's container has.
func TestCapabilities(t *testing.T) {
	capabilities := func(pod core.PodSpec) string {
		for _, v := range pod.Containers[0].Env {
			if v.Name == "NVIDIA_DRIVER_CAPABILITIES" {
				return v.Value
			}
		}
		return ""
	}
	checkPods(t, capabilities, map[string]string{
		``:                              "utility",
		`compatWithCPUManager: false`:   "utility",
		`deviceListStrategy: cdi-cri`:   "utility", // device nodes are searched below the driver's root
		`compatWithCPUManager: true`:    "compute,utility",
		`config: {name: a, default: b}`: "compute,utility", // the content is unknown
		`config: {map: {a: "{version: v1, flags: {plugin: {passDeviceSpecs: true}}}"}}`:                                      "compute,utility",
		`config: {map: {default: "version: v1", a: "{version: v1, flags: {plugin: {passDeviceSpecs: true}}}"}}`:              "compute,utility",
		`config: {map: {default: "{version: v1, flags: {plugin: {passDeviceSpecs: false}}}"}}`:                               "utility",
		`{compatWithCPUManager: false, config: {map: {default: "{version: v1, flags: {plugin: {passDeviceSpecs: true}}}"}}}`: "utility",
	})
}

// TestWebConfigRestart checks that only changes of a web config that require a restart change the pod template.
func TestWebConfigRestart(t *testing.T) {
	template := func(content string) string {
		set := decodeAll[apps.DaemonSet](t, mustRender(t, `webConfig: {tlsSecret: podgauge-tls, content: `+content+`}`))[0]
		return string(mustJSON(t, set.Spec.Template))
	}
	const before = `{basic_auth_users: {a: $2y$10$QOauhQNbBCuQDKes6eFzPeMqBSjb7Mr5DUmpZ/VcEd00UAV/LDeSi}}`
	for content, restart := range map[string]bool{
		before: false,
		`{basic_auth_users: {b: $2y$10$QOauhQNbBCuQDKes6eFzPeMqBSjb7Mr5DUmpZ/VcEd00UAV/LDeSi}}`: false,
		`{http_server_config: {headers: {X-Frame-Options: deny}}}`:                              false,
		`{tls_server_config: {cert_file: /etc/podgauge/tls/tls.crt, key_file: a}}`:              true,
		`{rate_limit: {interval: 1s, burst: 5}}`:                                                true,
	} {
		if (template(content) != template(before)) != restart {
			t.Errorf("%s: the pod template changes: got %v, want %v", content, !restart, restart)
		}
	}
	const tls = `{tls_server_config: {cert_file: a, key_file: b}}`
	if template(tls) != template(strings.Replace(tls, "a", "c", 1)) {
		t.Error("the pod template changes for another certificate, which podgauge reloads")
	}
}

// TestConfigs checks that the chart accepts podgauge's valid configs and those of the docs, with the MPS root of NVIDIA's chart, and rejects
// a config with keys of a newer version.
func TestConfigs(t *testing.T) {
	validate := newValidator(t)
	const mps = "mps: {root: /run/nvidia/mps}"
	err := fs.WalkDir(os.DirFS(root+"/internal/config/testdata"), ".", func(file string, entry fs.DirEntry, err error) error {
		isConfig := path.Ext(file) != ".txt" && !strings.Contains(file, "fuzz") // the others are many configs, each with its diagnostics
		if err != nil || entry.IsDir() || !isConfig {
			return err
		}
		err = validate(testfile.Read(t, root+"/internal/config/testdata/"+file), mps)
		if isNewer := path.Base(file) == "newer.yaml"; isNewer != (err != nil) {
			t.Errorf("%s: %v", file, err)
		}
		return nil
	})
	require.NoError(t, err)
	for _, match := range regexp.MustCompile("(?s)```yaml\n(version: v1.*?)```").FindAllStringSubmatch(testfile.Read(t, root+"/docs/reference/config.md"), -1) {
		if strings.Contains(match[1], "\nconfigs:") { // in the chart, each config is a file
			continue
		}
		if err := validate(match[1], mps); err != nil {
			t.Errorf("docs/reference/config.md: %v: %s", err, match[1])
		}
	}
}
