package config

import (
	"bytes"
	"encoding/json"
	"flag"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the generated part of docs/config.md, and the chart's schema of a config")

// TestDocs: the page's table is what the rows are.
func TestDocs(t *testing.T) {
	const file = "../../docs/config.md"
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
		t.Errorf("the table of %s is not what the rows are; make golden writes it anew", file)
	}
}

// TestDocsExamples: the files that the page shows are files that are taken.
func TestDocsExamples(t *testing.T) {
	page, err := os.ReadFile("../../docs/config.md")
	if err != nil {
		t.Fatal(err)
	}
	examples := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllSubmatch(page, -1)
	if len(examples) < 3 {
		t.Fatalf("%d examples", len(examples))
	}
	for _, e := range examples {
		l, err := builder(t, nil).LoadFrom(Source{File: inFile(t, "example.yaml", string(e[1]))})
		if err != nil || len(l.UnknownKeys) > 0 {
			t.Errorf("%v %v in\n%s", err, l.UnknownKeys, e[1])
		}
	}
}

func settingsTable() string {
	var table strings.Builder
	table.WriteString("| flag | variable | in the file | default | |\n|---|---|---|---|---|\n")
	for _, r := range rows {
		flags := codes("--", append([]string{r.flag}, r.aliases...)...)
		usage := strings.ReplaceAll(r.help, "`", "") // quoted for --help only
		table.WriteString("| " + strings.Join([]string{flags, codes("", r.env...), codes("", r.path), codes("", r.byDef), usage}, " | ") + " |\n")
	}
	return table.String()
}

// codes lists words as code, those that there are.
func codes(mark string, words ...string) string {
	var quoted []string
	for _, w := range words {
		if w != "" {
			quoted = append(quoted, "`"+mark+w+"`")
		}
	}
	return strings.Join(quoted, " ")
}

// schema is the part of JSON Schema that the chart's templates check a config by (templates/_config.tpl).
type schema struct {
	Type       []string           `json:"type,omitempty"`
	Properties map[string]*schema `json:"properties,omitempty"`
	// AdditionalProperties are those of a mapping whose keys are data. Without it, other keys are unknown.
	AdditionalProperties *schema  `json:"additionalProperties,omitempty"`
	Items                *schema  `json:"items,omitempty"`
	Enum                 []string `json:"enum,omitempty"`
	Minimum              int      `json:"minimum,omitempty"`
	Required             []string `json:"required,omitempty"`
}

func object(properties map[string]*schema, required ...string) *schema {
	return &schema{Type: []string{"object"}, Properties: properties, Required: required}
}

func listOf(items *schema) *schema { return &schema{Type: []string{"array"}, Items: items} }

// configSchema is that of a config. TestChartSchema holds the parts that are written here against the parser.
func configSchema() *schema {
	word, boolean := &schema{Type: []string{"string"}}, &schema{Type: []string{"boolean"}}
	shared := object(map[string]*schema{
		"renameByDefault": boolean, "failRequestsGreaterThanOne": boolean,
		"resources": listOf(object(map[string]*schema{
			"name": word, "rename": word, "devices": {}, "replicas": {Type: []string{"integer"}, Minimum: 2},
		}, "name", "replicas")),
	}, "resources")
	patterns := listOf(object(map[string]*schema{"pattern": word, "name": word}, "pattern", "name"))
	parts := map[string]*schema{
		"sharing.timeSlicing": shared, "sharing.mps": shared, "resources.gpus": patterns, "resources.mig": patterns,
		"podgauge.xids": {Type: []string{"object"}, AdditionalProperties: &schema{Type: []string{"string"}, Enum: policyNames[Ignore:]}},
	}
	root := object(map[string]*schema{"version": {Type: []string{"string"}, Enum: []string{version}}})
	for path := range ignored {
		parts[path] = &schema{}
	}
	for i := range rows {
		r := &rows[i]
		switch {
		case r.path == "" || r.read != nil:
		case isSwitch(r.into(new(target))):
			parts[r.path] = boolean
		case isList(r.into(new(target))):
			parts[r.path] = &schema{Type: []string{"array", "string"}, Items: &schema{Type: []string{"string"}, Enum: r.oneOf}}
		default:
			parts[r.path] = &schema{Type: []string{"string"}, Enum: r.oneOf}
		}
	}
	for path, part := range parts {
		at, keys := root, strings.Split(path, ".")
		for _, key := range keys[:len(keys)-1] {
			if at.Properties[key] == nil {
				at.Properties[key] = object(map[string]*schema{})
			}
			at = at.Properties[key]
		}
		at.Properties[keys[len(keys)-1]] = part
	}
	return root
}

// TestChartSchema: the chart rejects what the parser does not know, and takes what it knows.
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
		t.Errorf("%s is not what the parser reads (%v); make golden writes it anew", file, err)
	}
	for _, c := range []struct{ path, file string }{
		{"sharing.timeSlicing", "sharing: {timeSlicing: {x: 1, resources: [{name: gpu, replicas: 2}]}}"},
		{"sharing.mps.resources.", "flags: {mpsRoot: /m}\nsharing: {mps: {resources: [{name: gpu, replicas: 2, x: 1}]}}"},
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
		l := loaded(t, "version: v1\n"+c.file+"\n")
		want := "valid keys are " + strings.Join(slices.Sorted(maps.Keys(at.Properties)), ", ")
		if len(l.UnknownKeys) != 1 || l.UnknownKeys[0].Hint != want {
			t.Errorf("%s: the parser says %v, the schema that %s", c.path, l.UnknownKeys, want)
		}
	}
}
