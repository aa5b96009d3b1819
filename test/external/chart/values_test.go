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
)

// valuesRow is one row of the README's table.
type valuesRow struct {
	section      string
	key          string
	defaultValue string // as JSON
	description  string
}

var keyLine = regexp.MustCompile(`^( *)([A-Za-z][A-Za-z0-9]*):`)

// documentedValues reads values.yaml: a comment that begins with "--" is about the key below it, and one that begins with "##" is the heading of
// a section. A key without a comment is one of those in which others are.
func documentedValues(t *testing.T) (rows []valuesRow, bare []string) {
	t.Helper()
	text := read(t, chartDir+"/values.yaml")
	var defaults map[string]any
	if err := yaml.Unmarshal([]byte(text), &defaults); err != nil {
		t.Fatal(err)
	}
	var section, says string
	var path []string // of the key above, with its parents
	told := -1        // how deep a key is whose comment speaks for all that is in it
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		comment, isComment := strings.CutPrefix(strings.TrimSpace(line), "#")
		switch {
		case strings.HasPrefix(line, "## "):
			section = strings.TrimPrefix(line, "## ")
			continue
		case isComment && strings.HasPrefix(comment, " -- "):
			says = strings.TrimPrefix(comment, " -- ")
			continue
		case isComment && says != "":
			says += comment
			continue
		}
		match := keyLine.FindStringSubmatch(line)
		if match == nil {
			continue
		}
		depth := len(match[1]) / 2
		if told >= 0 && depth > told {
			continue
		}
		told = -1
		path = append(path[:min(depth, len(path))], match[2])
		key := strings.Join(path, ".")
		if says == "" {
			bare = append(bare, key)
			continue
		}
		byDef, err := json.Marshal(valueAt(defaults, path))
		if err != nil {
			t.Fatal(err)
		}
		rows = append(rows, valuesRow{section, key, string(byDef), says})
		says, told = "", depth
	}
	return rows, bare
}

func valueAt(values map[string]any, path []string) any {
	var here any = values
	for _, key := range path {
		here = here.(map[string]any)[key]
	}
	return here
}

// TestValues: each value says what it is, and the schema knows it; what the schema knows besides are the values of NVIDIA's chart
// that are refused in so many words, and what helm gives a chart that is part of another.
func TestValues(t *testing.T) {
	rows, bare := documentedValues(t)
	said := map[string]string{}
	for _, row := range rows {
		said[row.key] = row.description
		if row.section == "" || !strings.HasSuffix(strings.TrimRight(row.description, ")"), ".") {
			t.Errorf("%s is in the section %q, and says %q", row.key, row.section, row.description)
		}
	}
	for _, key := range bare {
		if !slices.ContainsFunc(rows, func(row valuesRow) bool { return strings.HasPrefix(row.key, key+".") }) {
			t.Errorf("nobody says what %s is", key)
		}
	}
	var s valuesSchema
	if err := json.Unmarshal([]byte(read(t, chartDir+"/values.schema.json")), &s); err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	s.visitKeys(s, "", func(key string, foreign bool) {
		if foreign == (said[key] != "") && key != "global" && key != "enabled" {
			t.Errorf("the schema has %s, of which values.yaml says %q", key, said[key])
		}
		known[key] = true
	}, said)
	for key := range said {
		if !known[key] {
			t.Errorf("the schema has no %s", key)
		}
	}
	if len(rows) < 100 {
		t.Errorf("there are %d values", len(rows))
	}
}

// valuesSchema is as much of a JSON schema as says which keys there are.
type valuesSchema struct {
	Ref        string                  `json:"$ref"`
	Properties map[string]valuesSchema `json:"properties"`
	Defs       map[string]valuesSchema `json:"$defs"`
}

// visitKeys tells of each key, but for those within one that is documented as a whole.
func (s valuesSchema) visitKeys(all valuesSchema, under string, each func(key string, foreign bool), descriptions map[string]string) {
	for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
		key, p := under+name, s.Properties[name]
		foreign := p.Ref == "#/$defs/foreign"
		if def, is := strings.CutPrefix(p.Ref, "#/$defs/"); is {
			p = all.Defs[def]
		}
		if len(p.Properties) > 0 && descriptions[key] == "" {
			p.visitKeys(all, key+".", each, descriptions)
			continue
		}
		each(key, foreign)
	}
}

var valuesTable = regexp.MustCompile(`(?s)(<!-- values -->\n).*(<!-- /values -->)`)

// TestReadme: the README's table is what values.yaml says.
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
	path := chartDir + "/README.md"
	text := read(t, path)
	if !valuesTable.MatchString(text) {
		t.Fatalf("%s has no place for the table", path)
	}
	compareGolden(t, path, []byte(valuesTable.ReplaceAllLiteralString(text, "<!-- values -->\n"+table.String()+"\n<!-- /values -->")))
}
