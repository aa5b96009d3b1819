// Package docs compares generated tables with the pages of docs.
package docs

import (
	"os"
	"strings"
	"testing"
)

// CheckTables compares a page's tables between <!-- name --> and <!-- /name -->
// with the generated ones, or writes these to the page.
func CheckTables(t *testing.T, update bool, file string, tables map[string]string) {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	page := string(content)
	for name, table := range tables {
		begin, end := "<!-- "+name+" -->\n", "<!-- /"+name+" -->"
		before, rest, hasBegin := strings.Cut(page, begin)
		_, after, hasEnd := strings.Cut(rest, end)
		if !hasBegin || !hasEnd {
			t.Fatalf("%s lacks the markers of table %s", file, name)
		}
		page = before + begin + table + end + after
	}
	if update {
		if err := os.WriteFile(file, []byte(page), 0o644); err != nil { //nolint:gosec // a page
			t.Fatal(err)
		}
	} else if page != string(content) {
		t.Errorf("the tables in %s are out of date; run make golden", file)
	}
}
