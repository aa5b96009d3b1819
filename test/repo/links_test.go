package repo

import (
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/podgauge/podgauge/test/helpers/expect"
	"github.com/podgauge/podgauge/test/helpers/require"
	"github.com/podgauge/podgauge/test/helpers/testfile"
)

// linkTarget matches the target of a link or image, in Markdown or HTML, or of a link definition.
var linkTarget = regexp.MustCompile(`\]\(\s*<?([^)\s>]+)|(?:href|src|srcset)="([^"\s]+)|(?m)^ {0,3}\[[^\]]+\]:\s+(\S+)`)

// code matches fenced code blocks and text between backquotes.
var code = regexp.MustCompile("(?ms)^ *(?:```|~~~).*?^ *(?:```|~~~) *$|`[^`\n]+`")

// TestLinks checks that all link targets within the repository exist, headings included.
func TestLinks(t *testing.T) {
	t.Chdir(root)
	pages := pages(t, ".")
	if len(pages) < 50 {
		t.Errorf("got %d pages, want at least 50", len(pages))
	}
	links := 0
	for page, text := range pages {
		for _, target := range targets(text) {
			links++
			if err := checkLink(pages, page, target); err != nil {
				t.Errorf("%s: (%s): %v", page, target, err)
			}
		}
	}
	if links < 100 {
		t.Errorf("got %d links, want at least 100", links)
	}
}

// TestCheckLink checks that checkLink finds broken links.
func TestCheckLink(t *testing.T) {
	t.Chdir(root)
	pages := map[string]string{
		"README.md": "# Top\n## Who's *here*? `--a_b`\n## Twice\n## Twice\n```\n# no heading\n```\n<a id=\"mark\"></a>\n",
		"docs/a.md": "# A\n",
	}
	valid := []string{"docs/a.md#a", "#whos-here---a_b", "#twice-1", "#mark", "go.mod", onMain + "docs/a.md", "https://example.com/nothing#is-asked"}
	invalid := []string{"docs/b.md", "docs/a.md#b", "#no-heading", "#twice-2", "../x/README.md", "/docs/a.md", "go.mod#a", onMain + "docs/b.md"}
	for i, target := range append(valid, invalid...) {
		if err := checkLink(pages, "README.md", target); (err == nil) != (i < len(valid)) {
			t.Errorf("%s: got error %v, want valid: %t", target, err, i < len(valid))
		}
	}
}

// pages returns the Markdown files below a folder.
func pages(t *testing.T, folder string) map[string]string {
	t.Helper()
	return texts(t, folder, func(name string) bool { return path.Ext(name) == ".md" })
}

// texts returns the files below a folder by path, without hidden folders (except .github) and test data.
func texts(t *testing.T, folder string, match func(name string) bool) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(folder, func(file string, entry fs.DirEntry, err error) error {
		name := entry.Name()
		hidden := strings.HasPrefix(name, ".") && name != ".github"
		switch {
		case err != nil:
			return err
		case entry.IsDir() && name != folder && (hidden || name == "testdata" || name == "node_modules" || name == "bin"):
			return fs.SkipDir
		case entry.IsDir() || !match(name):
			return nil
		}
		text, err := os.ReadFile(file)
		all[filepath.ToSlash(file)] = string(text)
		return err
	})
	require.NoError(t, err)
	return all
}

// pagePath matches the path of a page in a comment or text.
var pagePath = regexp.MustCompile(`\bdocs/[\w/.-]+\.md(?:#[\w-]+)?`)

// TestPagePaths checks that the pages named in comments, messages, values and templates exist.
func TestPagePaths(t *testing.T) {
	t.Chdir(root)
	pages := pages(t, ".")
	files := texts(t, ".", func(name string) bool {
		switch path.Ext(name) {
		case ".go":
			return !strings.HasSuffix(name, "_test.go")
		case ".yaml", ".yml", ".json", ".txt", ".tpl", ".tmpl", ".html", ".sh", ".mjs":
			return true
		}
		return name == "Makefile" || name == "Dockerfile"
	})
	found := 0
	for file, text := range files {
		for _, target := range pagePath.FindAllString(text, -1) {
			found++
			expect.NoError(t, checkLink(pages, "README.md", target), file)
		}
	}
	if found < 50 {
		t.Errorf("got %d paths of pages, want at least 50", found)
	}
}

func targets(text string) (all []string) {
	for _, match := range linkTarget.FindAllStringSubmatch(code.ReplaceAllString(text, ""), -1) {
		all = append(all, match[1]+match[2]+match[3])
	}
	return all
}

// onMain is the start of an absolute link to a file of the repository.
const onMain = "https://github.com/podgauge/podgauge/blob/main/"

// checkLink returns an error if the target of a link on a page does not exist. External links are not checked.
func checkLink(pages map[string]string, page, target string) error {
	target = strings.Replace(target, "/podgauge/tree/main/", "/podgauge/blob/main/", 1)
	if file, ok := strings.CutPrefix(target, onMain); ok {
		page, target = "README.md", file
	}
	link, err := url.Parse(target)
	switch {
	case err != nil:
		return err
	case link.Scheme != "" || link.Host != "":
		return nil
	case strings.HasPrefix(link.Path, "/"):
		return fmt.Errorf("absolute path: the root differs between renderers")
	}
	to := page
	if link.Path != "" {
		to = path.Join(path.Dir(page), link.Path)
	}
	text, isPage := pages[to]
	if _, err := os.Stat(to); err != nil && !isPage {
		return fmt.Errorf("%s does not exist", to)
	}
	switch {
	case link.Fragment == "":
		return nil
	case !isPage:
		return fmt.Errorf("%s has no headings", to)
	case !anchors(text)[link.Fragment]:
		return fmt.Errorf("%s has no heading #%s", to, link.Fragment)
	}
	return nil
}

var (
	heading = regexp.MustCompile(`(?m)^#{1,6} +(.+?) *#* *$`)
	named   = regexp.MustCompile(`<a (?:id|name)="([^"]+)"`)
	fence   = regexp.MustCompile("(?ms)^ *```.*?^ *``` *$")
	inLink  = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
)

// anchors returns the ids of the page's headings, as GitHub generates them, and its explicit anchors.
func anchors(text string) map[string]bool {
	all := map[string]bool{}
	text = fence.ReplaceAllString(text, "")
	for _, match := range heading.FindAllStringSubmatch(text, -1) {
		slug := strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
				return unicode.ToLower(r)
			}
			return -1
		}, inLink.ReplaceAllString(match[1], "$1"))
		for n, name := 0, slug; ; n++ {
			if n > 0 {
				name = fmt.Sprintf("%s-%d", slug, n)
			}
			if !all[name] {
				all[name] = true
				break
			}
		}
	}
	for _, match := range named.FindAllStringSubmatch(text, -1) {
		all[match[1]] = true
	}
	return all
}

// makeList matches the lists of suites and of their short names in the Makefile.
var makeList = regexp.MustCompile(`(?m)^(SUITES|SHORT) = (.*)$`)

// TestMakeTargets checks that CONTRIBUTING.md documents all targets and suites
// of the Makefile.
func TestMakeTargets(t *testing.T) {
	t.Chdir(root)
	makefile, page := testfile.Read(t, "Makefile"), testfile.Read(t, "CONTRIBUTING.md")
	want := func(name string) {
		if !strings.Contains(page, "`"+name+"`") {
			t.Errorf("CONTRIBUTING.md lacks %s", name)
		}
	}
	targets := regexp.MustCompile(`(?m)^([a-z][a-z0-9-]*):`).FindAllStringSubmatch(makefile, -1)
	if len(targets) < 10 || len(targets) > 14 {
		t.Errorf("got %d targets, want 10 to 14", len(targets))
	}
	for _, target := range targets {
		want("make " + target[1])
	}
	for _, list := range makeList.FindAllStringSubmatch(makefile, -1) {
		for name := range strings.FieldsSeq(list[2]) {
			if list[1] == "SHORT" {
				want("make " + name)
				continue
			}
			want(name)
			if !strings.Contains(makefile, "\n## "+name+": ") || !strings.Contains(makefile, "\ndefine suite-"+name+"\n") {
				t.Errorf("the Makefile lacks the suite %s or its description", name)
			}
		}
	}
}

// goFile matches the path of a Go file in the text of a page.
var goFile = regexp.MustCompile("`([a-z0-9_]+(?:/[a-z0-9_]+)*\\.go)`")

// TestGoFiles checks that the Go files named in pages for contributors exist.
func TestGoFiles(t *testing.T) {
	t.Chdir(root)
	for page, least := range map[string]int{"docs/explanation/architecture.md": 25, "CONTRIBUTING.md": 5} {
		found := goFile.FindAllStringSubmatch(testfile.Read(t, page), -1)
		if len(found) < least {
			t.Errorf("%s: got %d Go files, want at least %d", page, len(found), least)
		}
		for _, m := range found {
			if _, err := os.Stat(m[1]); err != nil && strings.Contains(m[1], "/") {
				t.Errorf("%s: %v", page, err)
			}
		}
	}
}

// TestStartsNothing checks that code to start processes or to call the API server by client-go is not even linked.
func TestStartsNothing(t *testing.T) {
	t.Chdir(root)
	list, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "./cmd/podgauge").Output()
	require.NoError(t, err)
	packages := strings.Fields(string(list))
	if !slices.Contains(packages, "google.golang.org/grpc") {
		t.Errorf("got %d packages without gRPC", len(packages))
	}
	for _, p := range packages {
		if p == "os/exec" || p == "plugin" || strings.HasPrefix(p, "k8s.io/client-go") {
			t.Errorf("%s is linked, but docs/explanation/security.md excludes it", p)
		}
	}
}

// TestFuzzTargets checks that docs/explanation/security.md lists exactly the existing fuzz targets.
func TestFuzzTargets(t *testing.T) {
	t.Chdir(root)
	const page = "docs/explanation/security.md"
	documented := map[string]int{}
	for _, name := range regexp.MustCompile("`(Fuzz\\w+)`").FindAllStringSubmatch(testfile.Read(t, page), -1) {
		documented[name[1]]++
	}
	target := regexp.MustCompile(`(?m)^func (Fuzz\w+)\(`)
	for file, source := range texts(t, ".", func(name string) bool { return strings.HasSuffix(name, "_test.go") }) {
		for _, name := range target.FindAllStringSubmatch(source, -1) {
			if documented[name[1]]--; documented[name[1]] < 0 {
				t.Errorf("%s lacks %s of %s", page, name[1], path.Dir(file))
			}
		}
	}
	for name, n := range documented {
		if n > 0 {
			t.Errorf("%s lists %s, which does not exist", page, name)
		}
	}
}

// TestQuestions checks that the panels, alerts and commands of docs/reference/questions.md exist.
func TestQuestions(t *testing.T) {
	page := testfile.Read(t, "../../docs/reference/questions.md")
	boards := map[string]string{"Workload": "workload", "Fleet": "fleet", "Device and incidents": "device", "Reliability": "reliability"}
	rules := testfile.Read(t, alertsFile) + testfile.Read(t, jobsFile)
	commands := strings.ReplaceAll(testfile.Read(t, "../../docs/reference/cli.md"), "`podgauge ", "`")
	found := 0
	for _, reference := range regexp.MustCompile(`"([^"]+)" in \*([^*]+)\*|(Podgauge[A-Z]\w+)|\x60(?:kubectl )?podgauge (\w+)`).FindAllStringSubmatch(page, -1) {
		found++
		text, want := rules, "- alert: "+reference[3]+"\n"
		switch {
		case reference[1] != "":
			text, want = testfile.Read(t, "../../dashboards/"+boards[reference[2]]+".json"), `"title": "`+reference[1]
		case reference[4] != "":
			text, want = commands, "`"+reference[4]
		}
		if !strings.Contains(text, want) {
			t.Errorf("%s does not exist", reference[0])
		}
	}
	if found < 40 {
		t.Errorf("got %d references", found)
	}
}
