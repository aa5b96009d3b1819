package podgauge_test

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/podgauge/podgauge/"

// arrows say what each package may import of ours; tests of a package may use the
// simulations and the stand-in as well.
var arrows = map[string][]string{
	"cmd/podgauge":          {"internal/app", "internal/doctor", "internal/nvml"},
	"cmd/podgauge-sim":      {"internal/app", "internal/nvml", "internal/nvml/metric", "internal/nvml/xid", "internal/sim"},
	"internal/app":          {"internal/config", "internal/cgroup", "internal/cli", "internal/device", "internal/nvml/cdi", "internal/nvml/kmsg", "internal/doctor", "internal/kubeapi", "internal/kubestatus", "internal/nodelabel", "exporter", "internal/web/api", "internal/web/status", "internal/incident", "plugin", "plugin/response", "plugin/preferred", "podresources", "internal/pods", "internal/state", "internal/state/disk"},
	"cmd/demo":              {},
	"internal/cli":          {"internal/incident", "internal/web/api"},
	"internal/config":       {"internal/device"},
	"dashboards":            {},
	"internal/cgroup":       {"internal/device"},
	"internal/device":       {},
	"internal/nvml":         {"internal/device", "internal/nvml/collect", "internal/nvml/lib", "internal/nvml/metric", "internal/nvml/xid"},
	"internal/nvml/collect": {"internal/device", "internal/nvml/lib", "internal/nvml/metric", "internal/nvml/xid"},
	"internal/nvml/metric":  {"internal/device", "internal/nvml/lib"},
	"internal/nvml/lib":     {"internal/device", "internal/nvml/xid"},
	"internal/nvml/xid":     {"internal/device"},
	"internal/nvml/cdi":     {"internal/device"},
	"internal/nvml/kmsg":    {"internal/device"},
	"internal/doctor":       {"internal/device"},
	"plugin":                {"internal/config", "internal/device", "plugin/response", "plugin/preferred"},
	"plugin/response":       {"internal/device"},
	"plugin/preferred":      {"internal/device"},
	"podresources":          {"internal/device", "internal/wire"},
	"internal/pods":         {"internal/device", "internal/kubeapi", "internal/wire"},
	"internal/kubeapi":      {"internal/wire"},
	"internal/kubestatus":   {"internal/device", "internal/fault", "internal/incident", "internal/kubeapi"},
	"internal/nodelabel":    {"internal/device", "internal/kubeapi", "internal/wire"},
	"internal/fault":        {"internal/nvml/xid"},
	"test/apiserver":        {"internal/kubeapi", "internal/wire"},
	"internal/incident":     {"internal/device", "internal/state/disk"},
	"internal/state":        {"internal/device", "internal/state/disk"},
	"internal/state/disk":   {},
	"exporter":              {"internal/device", "internal/web/api", "internal/web/status", "internal/incident"},
	"internal/web/api":      {"internal/device", "internal/incident"},
	"internal/web/status":   {"internal/device", "internal/web/api", "internal/fault", "internal/incident"},
	"internal/sim":          {"internal/device", "internal/sim/kubelet"},
	"internal/sim/kubelet":  {},
	"test/conformance":      {"internal/wire"},
	"test/devicetest":       {"internal/device"},
	"internal/wire":         {},
	"internal/atomicfile":   {},
	"internal/loglimit":     {},
	"internal/pubsub":       {},
	"internal/retry":        {},
	"internal/text":         {},
	"test/bubble":           {},
	"test/churn":            {},
	"test/dashboards":       {"internal/sim"},
	"test/image":            {},
	"test/nvml":             {},
	"test/nvml/build":       {"test/nvml"},
	"test/peers":            {},
	"test/program":          {},
	"test/release":          {},
	"test/tutorial":         {},
}

// leaves may be imported by any package.
var leaves = []string{"internal/atomicfile", "internal/loglimit", "internal/pubsub", "internal/retry", "internal/text"}

// inTests may be imported by any test.
var inTests = []string{"internal/device", "internal/nvml", "internal/nvml/collect", "internal/nvml/metric", "internal/nvml/xid", "plugin", "plugin/response", "podresources", "internal/sim", "internal/sim/kubelet", "internal/wire", "test/apiserver", "test/bubble", "test/churn", "test/devicetest", "test/nvml", "test/program"}

// strangers are foreign modules that a room must not know, and what for.
var strangers = map[string][]string{
	"internal/config":     {"github.com/NVIDIA", "github.com/prometheus", "google.golang.org/", "k8s.io/"},
	"dashboards":          {"github.com/", "google.golang.org/", "k8s.io/"},
	"internal/cgroup":     {"github.com/", "google.golang.org/", "k8s.io/"},
	"plugin":              {"github.com/prometheus"},
	"plugin/response":     {"github.com/prometheus", "google.golang.org/grpc"},
	"internal/doctor":     {"github.com/prometheus", "github.com/NVIDIA"},
	"podresources":        {"github.com/prometheus"},
	"internal/pods":       {"github.com/prometheus", "k8s.io/api", "k8s.io/client-go"},
	"internal/web/api":    {"github.com/", "google.golang.org/", "k8s.io/"},
	"internal/web/status": {"github.com/prometheus", "github.com/NVIDIA", "google.golang.org/", "k8s.io/"},
	"exporter":            {"google.golang.org/grpc", "k8s.io/kubelet"},
	"internal/device":     {"github.com/", "google.golang.org/", "k8s.io/"},
	"internal/sim":        {"github.com/NVIDIA"},
	"internal/wire":       {"github.com/", "k8s.io/"},
}

func TestImportsFollowTheArrows(t *testing.T) {
	seen := map[string]bool{}
	err := filepath.WalkDir(".", func(file string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			if name := entry.Name(); name != "." && (name == "testdata" || name == "node_modules" || strings.HasPrefix(name, ".") || isModule(file)) {
				return fs.SkipDir
			}
			return nil
		}
		if room := path.Dir(file); strings.HasSuffix(file, ".go") && room != "." {
			seen[room] = true
			checkImports(t, room, file)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for room := range arrows {
		if !seen[room] {
			t.Errorf("the table has %s, the tree has not", room)
		}
	}
}

// TestProgramWithoutTemplates checks that no dependency brings html/template, which keeps the linker from dropping unused methods: 3.3 MB of
// the binary (docs/contributing/adr/0014-web-config.md).
func TestProgramWithoutTemplates(t *testing.T) {
	packages, err := exec.Command("go", "list", "-deps", "-tags", "grpcnotrace", "./cmd/podgauge").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, unwanted := range []string{"html/template", "golang.org/x/net/trace"} {
		if slices.Contains(strings.Fields(string(packages)), unwanted) {
			t.Errorf("the program imports %s: go list -deps -f '{{.ImportPath}} {{.Imports}}' -tags grpcnotrace ./cmd/podgauge", unwanted)
		}
	}
}

// isModule tells whether a folder is a module of its own.
func isModule(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, "go.mod"))
	return err == nil
}

func checkImports(t *testing.T, room, file string) {
	t.Helper()
	allowed, known := arrows[room]
	if !known {
		t.Errorf("%s is in no room of the table", file)
		return
	}
	source, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
	if err != nil {
		t.Fatal(err)
	}
	test := strings.HasSuffix(file, "_test.go")
	for _, spec := range source.Imports {
		name, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			t.Fatal(err)
		}
		ours, isOurs := strings.CutPrefix(name, module)
		switch {
		case isOurs && ours != room && !slices.Contains(allowed, ours) && !slices.Contains(leaves, ours) && (!test || !slices.Contains(inTests, ours)):
			t.Errorf("%s imports %s: %s may import %v", file, ours, room, allowed)
		case !test && slices.ContainsFunc(strangers[room], func(s string) bool { return strings.HasPrefix(name, s) && !isOurs }):
			t.Errorf("%s imports %s, which %s must not know", file, name, room)
		}
	}
}
