// Package repo tests the repository: imports, links and files that pages name.
package repo

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const (
	root   = "../.."
	module = "github.com/podgauge/podgauge/"
)

// allowedImports lists the packages of this module that each package may import. Tests may also import testImports.
var allowedImports = map[string][]string{
	"cmd/podgauge":                  {"internal/app", "internal/doctor", "internal/nvml"},
	"cmd/podgauge-sim":              {"internal/app", "internal/nvml", "internal/nvml/metric", "internal/xid", "internal/sim"},
	"internal/app":                  {"internal/node", "internal/operator", "internal/rules", "internal/config", "internal/cdi", "internal/cgroup", "internal/cli", "internal/device", "internal/doctor", "internal/kmsg", "internal/kubeapi", "internal/kubestatus", "internal/nodelabel", "exporter", "internal/web/api", "internal/web/status", "internal/incident", "plugin", "plugin/response", "plugin/preferred", "podresources", "internal/pods", "internal/state"},
	"cmd/demo":                      {},
	"internal/cli":                  {"internal/incident", "internal/web/api"},
	"internal/config":               {"internal/device", "plugin/preferred", "plugin/response"},
	"dashboards":                    {},
	"internal/cdi":                  {"internal/device", "plugin/response"},
	"internal/cgroup":               {"internal/device"},
	"internal/device":               {},
	"internal/nvml":                 {"internal/device", "internal/nvml/collect", "internal/nvml/lib", "internal/nvml/metric", "internal/xid"},
	"internal/nvml/collect":         {"internal/device", "internal/nvml/lib", "internal/nvml/metric", "internal/xid"},
	"internal/nvml/metric":          {"internal/device", "internal/nvml/lib"},
	"internal/nvml/lib":             {"internal/device", "internal/xid"},
	"internal/xid":                  {"internal/device"},
	"internal/doctor":               {"internal/device", "plugin/response"},
	"plugin":                        {"internal/config", "internal/device", "plugin/response", "plugin/preferred"},
	"plugin/response":               {"internal/device"},
	"plugin/preferred":              {"internal/device"},
	"podresources":                  {"internal/device"},
	"internal/pods":                 {"internal/device", "internal/kubeapi", "internal/pods/podpb"},
	"internal/pods/podpb":           {},
	"internal/kmsg":                 {"internal/device"},
	"internal/kubeapi":              {},
	"internal/kubestatus":           {"internal/node", "internal/device", "internal/xid", "internal/incident", "internal/kubeapi"},
	"internal/node":                 {"internal/config", "internal/device", "internal/incident", "internal/pods", "internal/state", "plugin"},
	"internal/operator":             {"internal/device", "internal/node", "internal/web/api"},
	"internal/rules":                {"internal/cdi", "internal/config", "internal/device", "plugin", "plugin/response"},
	"internal/nodelabel":            {"internal/device", "internal/kubeapi"},
	"internal/incident":             {"internal/device", "internal/xid"},
	"internal/state":                {"internal/device", "internal/incident"},
	"exporter":                      {"internal/node", "internal/state", "plugin", "internal/device", "internal/xid", "internal/web/api", "internal/web/status", "internal/incident"},
	"internal/web/api":              {"internal/device", "internal/incident"},
	"internal/web/status":           {"plugin", "internal/device", "internal/web/api", "internal/xid", "internal/incident"},
	"internal/sim":                  {"internal/device", "internal/sim/kubelet"},
	"internal/sim/kubelet":          {},
	"internal/atomicfile":           {},
	"internal/loglimit":             {},
	"internal/pubsub":               {},
	"internal/retry":                {},
	"internal/text":                 {},
	"test/helpers/apiserver":        {"internal/kubeapi"},
	"test/kubelet/conformance":      {"internal/pods/podpb"},
	"test/helpers/devicetest":       {"internal/device"},
	"test/bubble":                   {},
	"test/kubelet/churn":            {},
	"test/observability/dashboards": {"dashboards", "internal/sim"},
	"test/nvml":                     {},
	"test/nvml/build":               {"test/nvml"},
	"test/observability/peers":      {},
	"test/helpers/program":          {},
	"test/repo":                     {},
}

// leafPackages may be imported by any package.
var leafPackages = []string{"internal/atomicfile", "internal/loglimit", "internal/pubsub", "internal/retry", "internal/text"}

// testImports may be imported by any test.
var testImports = []string{"internal/config", "internal/device", "internal/node", "internal/pods", "internal/nvml", "internal/nvml/collect", "internal/nvml/metric", "internal/xid", "plugin", "plugin/response", "podresources", "internal/sim", "internal/sim/kubelet", "test/helpers/apiserver", "test/bubble", "test/kubelet/churn", "test/helpers/devicetest", "test/nvml", "test/helpers/program"}

// bannedModules lists prefixes of foreign modules that a package must not import.
var bannedModules = map[string][]string{
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
}

func TestAllowedImports(t *testing.T) {
	t.Chdir(root)
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
		if pkg := path.Dir(file); strings.HasSuffix(file, ".go") && pkg != "." {
			seen[pkg] = true
			checkImports(t, pkg, file)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for pkg := range allowedImports {
		if !seen[pkg] {
			t.Errorf("allowedImports lists %s, which does not exist", pkg)
		}
	}
}

// isModule reports whether a folder is the root of a Go module.
func isModule(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, "go.mod"))
	return err == nil
}

func checkImports(t *testing.T, pkg, file string) {
	t.Helper()
	allowed, known := allowedImports[pkg]
	if !known {
		t.Errorf("%s: package %s is missing from allowedImports", file, pkg)
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
		case isOurs && ours != pkg && !slices.Contains(allowed, ours) && !slices.Contains(leafPackages, ours) && (!test || !slices.Contains(testImports, ours)):
			t.Errorf("%s imports %s; allowed imports of %s: %v", file, ours, pkg, allowed)
		case !test && slices.ContainsFunc(bannedModules[pkg], func(s string) bool { return strings.HasPrefix(name, s) && !isOurs }):
			t.Errorf("%s imports %s, which is banned in %s", file, name, pkg)
		}
	}
}
