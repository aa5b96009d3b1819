package repo

import (
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestStartsNothing checks that code to start processes or to call the API server by client-go is not even linked.
func TestStartsNothing(t *testing.T) {
	t.Chdir(root)
	list, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "./cmd/podgauge").Output()
	if err != nil {
		t.Fatal(err)
	}
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

var fuzzTarget = regexp.MustCompile(`(?m)^func (Fuzz\w+)\(`)

// TestFuzzTargets checks that docs/explanation/security.md lists exactly the existing fuzz targets.
func TestFuzzTargets(t *testing.T) {
	t.Chdir(root)
	page, err := os.ReadFile("docs/explanation/security.md")
	if err != nil {
		t.Fatal(err)
	}
	documented := map[string]int{}
	for _, name := range regexp.MustCompile("`(Fuzz\\w+)`").FindAllStringSubmatch(string(page), -1) {
		documented[name[1]]++
	}
	err = filepath.WalkDir(".", func(file string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && file != "." && strings.HasPrefix(entry.Name(), "."):
			return fs.SkipDir
		case !strings.HasSuffix(file, "_test.go"):
			return nil
		}
		source, err := os.ReadFile(file)
		for _, name := range fuzzTarget.FindAllStringSubmatch(string(source), -1) {
			if documented[name[1]]--; documented[name[1]] < 0 {
				t.Errorf("docs/explanation/security.md lacks %s of %s", name[1], path.Dir(file))
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for name, n := range documented {
		if n > 0 {
			t.Errorf("docs/explanation/security.md lists %s, which does not exist", name)
		}
	}
}
