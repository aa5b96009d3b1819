package config

import (
	"bytes"
	"flag"
	"os"
	"regexp"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the generated part of docs/config.md")

// TestDocs: the page's table is what the rows are.
func TestDocs(t *testing.T) {
	const file = "../docs/config.md"
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
	page, err := os.ReadFile("../docs/config.md")
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
