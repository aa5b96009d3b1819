package repo

import (
	"os/exec"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/podgauge/podgauge/test/helpers/require"
	"github.com/podgauge/podgauge/test/helpers/testfile"
)

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
