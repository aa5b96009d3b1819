package config

import (
	"bytes"
	"cmp"
	"encoding/json"
	"flag"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/podgauge/podgauge/internal/device"
)

var update = flag.Bool("update", false, "write the generated part of docs/reference/config.md, and the chart's "+
	"schema of a config")

// TestDocs checks that the page lists all keys.
func TestDocs(t *testing.T) {
	const file = "../../docs/reference/config.md"
	page, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	between := regexp.MustCompile(`(?s)(<!-- settings -->\n).*(<!-- /settings -->)`)
	want := between.ReplaceAllLiteral(page, []byte("<!-- settings -->\n"+settingsTable()+"<!-- /settings -->"))
	if *update {
		if err := os.WriteFile(file, want, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if !bytes.Equal(page, want) {
		t.Errorf("the table of %s is out of date; run make golden", file)
	}
}

// TestDocsExamples checks that the page's examples are valid configs.
func TestDocsExamples(t *testing.T) {
	page, err := os.ReadFile("../../docs/reference/config.md")
	if err != nil {
		t.Fatal(err)
	}
	examples := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllSubmatch(page, -1)
	if len(examples) < 3 {
		t.Fatalf("got %d examples, want at least 3", len(examples))
	}
	for _, e := range examples {
		l, err := newTestBuilder(t, nil).LoadFrom(FileLocation{File: writeTemp(t, "example.yaml", string(e[1]))})
		if err != nil || len(l.UnknownKeys) > 0 {
			t.Errorf("got error %v, unknown keys %v in\n%s", err, l.UnknownKeys, e[1])
		}
	}
}

func settingsTable() string {
	var table strings.Builder
	table.WriteString("|key|flag|\n|---|---|\n")
	for _, s := range testSettings() {
		flags := codeList("--", append([]string{s.flag}, s.aliases...)...)
		if s.path != "" {
			table.WriteString("|`" + s.path + "`|" + cmp.Or(flags, s.help) + "|\n")
		}
	}
	return table.String()
}

// codeList formats words as code, without empty words.
func codeList(mark string, words ...string) string {
	var quoted []string
	for _, w := range words {
		if w != "" {
			quoted = append(quoted, "`"+mark+w+"`")
		}
	}
	return strings.Join(quoted, " ")
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

// configSchema returns the schema of a config. TestChartSchema compares the
// parts that are written here with the parser, and TestVerdicts of
// test/e2e/chart compares all of it.
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
		"name": name, "rename": name, "devices": selection, "replicas": {
			Type: []string{"integer"}, Minimum: 2,
			Maximum: maxReplicas,
		},
	}, "name", "replicas"))
	resources.MinItems = 1
	shared := objectSchema(map[string]*jsonSchema{
		"renameByDefault": boolean, "failRequestsGreaterThanOne": boolean,
		"resources": resources,
	}, "resources")
	patterns := arraySchema(objectSchema(map[string]*jsonSchema{"pattern": word, "name": name}, "pattern", "name"))
	subschemas := map[string]*jsonSchema{
		"sharing.timeSlicing": shared, "sharing.mps": shared, "resources.gpus": patterns, "resources.mig": patterns,
		"podgauge.xids": {
			Type: []string{"object"}, PropertyNames: patternSchema(`^[1-9][0-9]{0,18}$`, "the number of an Xid"),
			AdditionalProperties: &jsonSchema{Type: []string{"string"}, Enum: policyNames[device.PolicyIgnore:]},
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
			subschemas[s.path] = &jsonSchema{
				Type: []string{"array", "string"}, Items: item,
				MinItems: min(len(s.allowed), 1),
			}
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

// TestChartSchema checks that the chart accepts the same keys as the parser.
func TestChartSchema(t *testing.T) {
	const file = "../../deploy/helm/podgauge/files/config.schema.json"
	text, err := json.MarshalIndent(configSchema(), "", " ")
	if err != nil {
		t.Fatal(err)
	}
	text = append(text, '\n')
	if *update {
		if err := os.WriteFile(file, text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(file); err != nil || !bytes.Equal(got, text) {
		t.Errorf("%s differs from the parser's schema (%v); run make golden", file, err)
	}
	for _, c := range []struct{ path, file string }{
		{"sharing.timeSlicing", "sharing: {timeSlicing: {x: 1, resources: [{name: gpu, replicas: 2}]}}"},
		{"sharing.mps.resources.", "flags: {mpsRoot: /m}\nsharing: {mps: {resources: [{name: gpu, replicas: 2, x: " +
			"1}]}}"},
		{"resources.gpus.", "resources: {gpus: [{name: gpu, pattern: a, x: 1}]}"},
	} {
		at := configSchema()
		for key := range strings.SplitSeq(c.path, ".") {
			if at.Items != nil {
				at = at.Items
			}
			if key != "" {
				at = at.Properties[key]
			}
		}
		l := mustLoad(t, "version: v1\n"+c.file+"\n")
		want := "valid keys are " + strings.Join(slices.Sorted(maps.Keys(at.Properties)), ", ")
		if len(l.UnknownKeys) != 1 || l.UnknownKeys[0].Hint != want {
			t.Errorf("%s: got %v from the parser, want %s as in the schema", c.path, l.UnknownKeys, want)
		}
	}
}
