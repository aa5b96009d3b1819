package podgauge_test

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

// TestStartsNothing: the program cannot start another one, nor ask the API server. That it is
// not linked says more than that nobody calls it.
func TestStartsNothing(t *testing.T) {
	list, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "./cmd/podgauge").Output()
	if err != nil {
		t.Fatal(err)
	}
	packages := strings.Fields(string(list))
	if !slices.Contains(packages, "google.golang.org/grpc") {
		t.Errorf("%d packages are linked, and gRPC is not among them", len(packages))
	}
	for _, p := range packages {
		if p == "os/exec" || p == "plugin" || strings.HasPrefix(p, "k8s.io/client-go") {
			t.Errorf("%s is linked, and docs/explanation/security.md says that it is not", p)
		}
	}
}

var fuzzTarget = regexp.MustCompile(`(?m)^func (Fuzz\w+)\(`)

// TestFuzzTargets: docs/explanation/security.md has each, and none that there is not.
func TestFuzzTargets(t *testing.T) {
	page, err := os.ReadFile("docs/explanation/security.md")
	if err != nil {
		t.Fatal(err)
	}
	told := map[string]int{}
	for _, name := range regexp.MustCompile("`(Fuzz\\w+)`").FindAllStringSubmatch(string(page), -1) {
		told[name[1]]++
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
			if told[name[1]]--; told[name[1]] < 0 {
				t.Errorf("docs/explanation/security.md does not have %s of %s", name[1], path.Dir(file))
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for name, n := range told {
		if n > 0 {
			t.Errorf("docs/explanation/security.md has %s once too often", name)
		}
	}
}
