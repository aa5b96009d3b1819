package config

import (
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/test/helpers/docs"
	"github.com/podgauge/podgauge/test/helpers/expect"
	"github.com/podgauge/podgauge/test/helpers/require"
	"github.com/podgauge/podgauge/test/helpers/testfile"
)

var update = flag.Bool("update", false, "write the generated part of docs/reference/config.md, the chart's schema, and testdata")

// TestDocs checks that the page lists all keys.
func TestDocs(t *testing.T) {
	docs.CheckTables(t, *update, "../../docs/reference/config.md", map[string]string{"settings": settingsTable()})
}

// TestDocsExamples checks that the page's examples are valid configs.
func TestDocsExamples(t *testing.T) {
	page := testfile.Read(t, "../../docs/reference/config.md")
	examples := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(page, -1)
	if len(examples) < 3 {
		t.Fatalf("got %d examples, want at least 3", len(examples))
	}
	for _, e := range examples {
		if l := mustLoad(t, e[1]); len(l.UnknownKeys) > 0 {
			t.Errorf("got unknown keys %v in\n%s", l.UnknownKeys, e[1])
		}
	}
}

func settingsTable() string {
	var table strings.Builder
	table.WriteString("|key|flag|\n|---|---|\n")
	for _, s := range testSettings() {
		if s.path == "" {
			continue
		}
		meaning := s.help
		if s.flag != "" {
			meaning = "`--" + strings.Join(append([]string{s.flag}, s.aliases...), "` `--") + "`"
		}
		table.WriteString("|`" + s.path + "`|" + meaning + "|\n")
	}
	return table.String()
}

// jsonSchema is the part of JSON Schema that the chart's templates use to check
// a config (templates/_config.tpl).
type jsonSchema struct {
	// Type has the kind first. A list that may also be a string may be a string
	// of items, separated by commas.
	Type       []string               `json:"type,omitempty"`
	Properties map[string]*jsonSchema `json:"properties,omitempty"`
	// AdditionalProperties is the schema of a mapping whose keys are data.
	// Without it, other keys are unknown.
	AdditionalProperties *jsonSchema `json:"additionalProperties,omitempty"`
	PropertyNames        *jsonSchema `json:"propertyNames,omitempty"`
	Items                *jsonSchema `json:"items,omitempty"`
	MinItems             int         `json:"minItems,omitempty"`
	Enum                 []string    `json:"enum,omitempty"`
	// Pattern is an RE2 pattern. The pattern of a list is for a scalar in place
	// of the list.
	Pattern     string   `json:"pattern,omitempty"`
	Format      string   `json:"format,omitempty"`      // resource-name
	Description string   `json:"description,omitempty"` // what the pattern matches
	Minimum     int      `json:"minimum,omitempty"`
	Maximum     int      `json:"maximum,omitempty"`
	Required    []string `json:"required,omitempty"`
}

func objectSchema(properties map[string]*jsonSchema, required ...string) *jsonSchema {
	return &jsonSchema{Type: []string{"object"}, Properties: properties, Required: required}
}

func arraySchema(items *jsonSchema) *jsonSchema {
	return &jsonSchema{Type: []string{"array"}, Items: items}
}

func patternSchema(pattern, description string) *jsonSchema {
	return &jsonSchema{Type: []string{"string"}, Pattern: pattern, Description: description}
}

// selectorPattern matches the texts that ParseDeviceSelector accepts. Numbers
// have 16 bits.
var selectorPattern = strings.Join([]string{
	strings.ReplaceAll(`^N(:N)?$`, "N", `0*([0-9]{1,4}|[1-5][0-9]{4}|6[0-4][0-9]{3}|`+
		`65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])`),
	deviceUUID.String(), pciAddress.String(), `^` + modelPrefix + `(?s:.+)$`,
}, "|")

// configSchema returns the schema of a config. TestVerdicts of test/e2e/chart
// compares it with the parser.
func configSchema() *jsonSchema {
	word, boolean := &jsonSchema{Type: []string{"string"}}, &jsonSchema{Type: []string{"boolean"}}
	name := &jsonSchema{Type: []string{"string"}, Format: "resource-name"}
	selector := patternSchema(selectorPattern,
		"an index (0), a MIG index (0:1), a UUID (GPU-…, MIG-…), a PCI address (0000:3b:00.0) or model:GLOB")
	selection := &jsonSchema{
		Type: []string{"array"}, Items: selector, MinItems: 1,
		Pattern: `^(all|[+]?0*[1-9][0-9]*)$`, Description: "all, a count, or a list of devices",
	}
	resources := arraySchema(objectSchema(map[string]*jsonSchema{
		"name": name, "rename": name, "devices": selection,
		"replicas": {Type: []string{"integer"}, Minimum: 2, Maximum: maxReplicas},
	}, "name", "replicas"))
	resources.MinItems = 1
	shared := objectSchema(map[string]*jsonSchema{
		"renameByDefault": boolean, "failRequestsGreaterThanOne": boolean, "resources": resources,
	}, "resources")
	patterns := arraySchema(objectSchema(map[string]*jsonSchema{"pattern": word, "name": name}, "pattern", "name"))
	subschemas := map[string]*jsonSchema{
		"sharing.timeSlicing": shared, "sharing.mps": shared, "resources.gpus": patterns, "resources.mig": patterns,
		"podgauge.xids": {
			Type: []string{"object"}, PropertyNames: patternSchema(`^[1-9][0-9]{0,18}$`, "the number of an Xid"),
			AdditionalProperties: patternSchema(policyPattern.String(), policyForms),
		},
	}
	xid := patternSchema(`^((?i:all|xids)|0*[1-9][0-9]{0,18})$`, "the number of an Xid, or all")
	items := map[string]*jsonSchema{
		"imex.channelIDs":              patternSchema(`^0$`, "no channel, or channel 0"),
		"podgauge.disableHealthChecks": xid, "podgauge.enableHealthChecks": xid,
		"podgauge.select.include": selector, "podgauge.select.exclude": selector,
		"podgauge.claims.ignore": patternSchema(claimPattern.String(),
			"NAMESPACE/NAME or NAMESPACE/NAME/DRIVER of claims, with * for any characters"),
	}
	root := objectSchema(map[string]*jsonSchema{"version": {Type: []string{"string"}, Enum: []string{schemaVersion}}})
	for _, path := range ignoredKeys {
		subschemas[path] = &jsonSchema{}
	}
	for _, s := range testSettings() {
		switch {
		case s.path == "" || s.flag == "":
		case s.isBool:
			subschemas[s.path] = boolean
		case s.isList:
			item := items[s.path]
			if item == nil {
				item = &jsonSchema{Type: []string{"string"}, Enum: s.allowed}
			}
			subschemas[s.path] = &jsonSchema{Type: []string{"array", "string"}, Items: item, MinItems: min(len(s.allowed), 1)}
		case s.flag == "expected-gpus":
			subschemas[s.path] = &jsonSchema{Type: []string{"integer"}, Maximum: maxNumber}
		default:
			subschemas[s.path] = &jsonSchema{Type: []string{"string"}, Enum: s.allowed}
		}
	}
	for path, subschema := range subschemas {
		parent, keys := root, strings.Split(path, ".")
		for _, key := range keys[:len(keys)-1] {
			if parent.Properties[key] == nil {
				parent.Properties[key] = objectSchema(map[string]*jsonSchema{})
			}
			parent = parent.Properties[key]
		}
		parent.Properties[keys[len(keys)-1]] = subschema
	}
	return root
}

// TestChartSchema checks that the chart has the schema.
func TestChartSchema(t *testing.T) {
	text, err := json.MarshalIndent(configSchema(), "", " ")
	require.NoError(t, err)
	testfile.CheckGolden(t, *update, "../../deploy/helm/podgauge/files/config.schema.json", string(text)+"\n")
}

// TestNvidiaSamples checks the effect of the samples of NVIDIA's README, Helm chart and operator, in
// testdata/nvidia.txt. Keys of a newer plugin are ignored: they must not stop podgauge.
func TestNvidiaSamples(t *testing.T) {
	var got strings.Builder
	for sample := range strings.FieldsSeq("readme-flags.yaml readme-timeslicing.yaml readme-timeslicing-renamed.yaml readme-mps.yaml " +
		"readme-mps-renamed.yaml readme-two/config0 readme-two/config1 values-map values-map/default values-map/mig-single " +
		"values-map/mig-mixed operator-all operator-fine/tesla-t4 operator-fine/a100-40gb newer.yaml") {
		file, name, _ := strings.Cut(sample, "/")
		// NVIDIA's chart always sets MPS_ROOT.
		env := map[string]string{"MPS_ROOT": "/run/nvidia/mps", "CONFIG_FILE": "testdata/nvidia/" + file, "CONFIG_NAME": name}
		l, err := newTestBuilder(t, env).Load()
		expect.NoError(t, err, sample)
		fmt.Fprintf(&got, "== %s\n%s\n", sample, describe(l))
	}
	testfile.CheckGolden(t, *update, "testdata/nvidia.txt", got.String())
}

// FuzzFile checks that no file makes the parser panic. The Settings of an
// accepted file keep their invariants.
func FuzzFile(f *testing.F) {
	f.Add([]byte(namedConfigs))
	f.Add([]byte("configs: {\"a\\nb\": {}, \"c\\e[31m\": {}}\n"))
	f.Add([]byte("\"two\\nlines\": 1\n"))
	f.Add([]byte("version: v1\nflags: &f {<<: {migStrategy: mixed}}\npodgauge: {select: {include: [0, \"0:1\"]}}\n"))
	f.Add([]byte("{\"sharing\": {\"mps\": {\"resources\": [{\"name\": \"gpu\", \"replicas\": 0x10, \"devices\": " +
		"3}]}}}"))
	filepath.WalkDir("testdata", func(path string, e os.DirEntry, _ error) error {
		if data, err := os.ReadFile(path); err == nil && !strings.Contains(path, "fuzz") {
			f.Add(data)
		}
		return nil
	})
	b := newTestBuilder(f, map[string]string{"MPS_ROOT": "/mps"})
	f.Fuzz(func(t *testing.T, data []byte) {
		l, err := b.load(rawConfig{file: "f", data: string(data)})
		if err != nil {
			if strings.ContainsAny(err.Error(), "\n\r") || !strings.HasPrefix(err.Error(), "f:") {
				t.Fatalf("got error %q, want one line with the file", err)
			}
			return
		}
		checkInvariants(t, l.Settings)
	})
}

// checkInvariants checks the invariants of Settings.
func checkInvariants(t *testing.T, s Settings) {
	names := []string{s.Resources.GPU("x"), s.Resources.MIG(MIGMixed, "1g.5gb")}
	for _, shared := range []SharingMethod{s.Sharing.MPS, s.Sharing.TimeSlicing} {
		for _, r := range shared.Resources {
			names = append(names, r.Name, cmp.Or(r.Rename, r.Name))
			if r.Replicas < 2 || r.Replicas > maxReplicas || !r.Devices.All && r.Devices.Count <= 0 && len(r.Devices.List) == 0 {
				t.Errorf("got %+v, want at least 2 replicas of some devices", r)
			}
		}
		shared.DeviceSharings(GPUResource, []device.Device{deviceA100, deviceT4, deviceMIG})
	}
	for _, name := range names {
		expect.NoError(t, CheckResourceName(name))
	}
	if len(s.DeviceListStrategy) == 0 || len(s.Sharing.MPS.Resources) > 0 && len(s.Sharing.TimeSlicing.Resources) > 0 {
		t.Errorf("got %+v, want a device list strategy and one kind of sharing", s)
	}
}
