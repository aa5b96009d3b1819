package chart

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/podgauge/podgauge/test/helpers/docs"
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
		defaultValue, err := json.Marshal(valueAt(defaults, path))
		require.NoError(t, err)
		rows = append(rows, valuesRow{section, key, string(defaultValue), description})
		description, documented = "", depth
	}
	return rows, bare
}

func valueAt(values map[string]any, path []string) any {
	var value any = values
	for _, key := range path {
		value = value.(map[string]any)[key]
	}
	return value
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
