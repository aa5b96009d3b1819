// Package repo tests the repository: imports, links and files that pages name.
package repo

import (
	"go/parser"
	"go/token"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/podgauge/podgauge/test/helpers/require"
)

const (
	root   = "../.."
	module = "github.com/podgauge/podgauge/"
)

// allowedImports lists the packages of this module that each package may import. Tests may also import testImports.
var allowedImports = map[string][]string{
	"cmd/podgauge":                  {"internal/app", "internal/dra", "internal/nvml", "internal/nvml/capture"},
	"cmd/podgauge-sim":              {"internal/app", "internal/dra", "internal/nvml", "internal/nvml/metric", "internal/xid", "internal/sim", "internal/sim/kubelet", "internal/sim/replay"},
	"internal/app":                  {"exporter", "internal/dcgm", "internal/cdi", "internal/cgroup", "internal/cli", "internal/client", "internal/config", "internal/device", "internal/allocation", "internal/health", "internal/doctor", "internal/flags", "internal/incident", "internal/kmsg", "internal/node", "internal/operator", "internal/pods", "internal/readiness", "internal/rules", "internal/state", "internal/validate", "internal/web/api", "internal/web/server", "plugin", "podresources", "internal/hpcjobs", "internal/sxid", "internal/sysfs"},
	"internal/client":               {"internal/cli", "internal/operator", "internal/web/api"},
	"internal/cli":                  {"internal/incident", "internal/web/api"},
	"internal/config":               {"internal/device", "plugin/preferred", "plugin/response"},
	"dashboards":                    {},
	"internal/cdi":                  {"internal/device", "plugin/response"},
	"internal/cgroup":               {"internal/allocation"},
	"internal/device":               {},
	"internal/allocation":           {"internal/device"},
	"internal/dra":                  {"internal/device", "internal/allocation"},
	"internal/health":               {"internal/device"},
	"internal/nvml":                 {"internal/device", "internal/nvml/collect", "internal/nvml/lib", "internal/nvml/metric", "internal/xid"},
	"internal/nvml/collect":         {"internal/device", "internal/nvml/lib", "internal/nvml/metric", "internal/xid"},
	"internal/nvml/metric":          {"internal/device", "internal/nvml/lib"},
	"internal/nvml/lib":             {"internal/device", "internal/xid"},
	"internal/nvml/capture":         {"internal/device", "internal/nvml", "internal/nvml/lib"},
	"internal/xid":                  {"internal/device"},
	"internal/sxid":                 {},
	"internal/doctor":               {"internal/cli", "internal/dcgm", "internal/device", "internal/dra", "plugin/response"},
	"plugin":                        {"internal/config", "internal/device", "internal/allocation", "plugin/response", "plugin/preferred"},
	"plugin/response":               {"internal/device"},
	"plugin/preferred":              {"internal/device"},
	"podresources":                  {"internal/device", "internal/allocation"},
	"internal/pods":                 {"internal/device", "internal/allocation", "internal/pods/podpb"},
	"internal/pods/podpb":           {},
	"internal/kmsg":                 {"internal/device", "internal/sxid", "internal/xid"},
	"internal/hpcjobs":              {"internal/device"},
	"internal/sysfs":                {"internal/allocation", "internal/device"},
	"internal/node":                 {"internal/config", "internal/device", "internal/allocation", "internal/hpcjobs", "internal/incident", "internal/pods", "internal/state", "plugin"},
	"internal/operator":             {"internal/device", "internal/allocation", "internal/health", "internal/incident", "internal/node", "internal/readiness", "internal/state", "internal/web/api", "internal/web/server"},
	"internal/readiness":            {"internal/device", "internal/health", "internal/node", "plugin"},
	"internal/validate":             {"internal/cli", "internal/config", "internal/device", "internal/rules"},
	"internal/rules":                {"internal/cdi", "internal/config", "internal/device", "plugin", "plugin/response"},
	"internal/flags":                {"exporter", "internal/cli", "internal/dcgm", "internal/allocation", "internal/config", "internal/pods", "internal/web/server"},
	"internal/incident":             {"internal/device", "internal/allocation", "internal/xid"},
	"internal/state":                {"internal/health", "internal/incident"},
	"exporter":                      {"internal/node", "internal/dcgm", "internal/state", "plugin", "internal/device", "internal/allocation", "internal/health", "internal/xid", "internal/web/api", "internal/web/status", "internal/incident", "internal/sysfs"},
	"internal/web/api":              {"internal/device", "internal/allocation", "internal/incident"},
	"internal/web/server":           {},
	"internal/web/status":           {"plugin", "internal/device", "internal/allocation", "internal/web/api", "internal/xid", "internal/incident"},
	"internal/sim":                  {"internal/device", "internal/allocation", "internal/sim/kubelet", "internal/sxid"},
	"internal/sim/kubelet":          {},
	"internal/sim/replay":           {"internal/nvml/capture", "internal/nvml/lib"},
	"internal/atomicfile":           {},
	"internal/loglimit":             {},
	"internal/pubsub":               {},
	"internal/retry":                {},
	"internal/text":                 {},
	"internal/dcgm":                 {},
	"test/kubelet/conformance":      {"internal/pods/podpb", "internal/sim/kubelet", "test/helpers/deviceplugin"},
	"test/helpers/background":       {"internal/sim/kubelet"},
	"test/helpers/deviceplugin":     {"internal/pubsub"},
	"test/helpers/devicetest":       {"internal/device"},
	"test/bubble":                   {},
	"test/kubelet/churn":            {},
	"test/observability/dashboards": {"dashboards", "internal/sim"},
	"test/captures":                 {"internal/device"},
	"test/nvml":                     {},
	"test/nvml/build":               {"test/nvml"},
	"test/observability/peers":      {},
	"test/helpers/docs":             {},
	"test/helpers/bufserver":        {},
	"test/helpers/certificate":      {"test/helpers/require"},
	"test/helpers/expect":           {},
	"test/helpers/require":          {},
	"test/helpers/testfile":         {"test/helpers/require"},
	"test/helpers/program":          {"test/helpers/require"},
	"test/helpers/testlog":          {},
	"test/repo":                     {"exporter", "internal/dcgm"},
}

// leafPackages may be imported by any package.
var leafPackages = []string{"internal/atomicfile", "internal/loglimit", "internal/pubsub", "internal/retry", "internal/text"}

// testImports may be imported by any test.
var testImports = []string{"internal/config", "internal/device", "internal/allocation", "internal/health", "internal/node", "internal/pods", "internal/dra", "internal/nvml", "internal/nvml/collect", "internal/nvml/metric", "internal/sxid", "internal/xid", "plugin", "plugin/response", "podresources", "internal/sim", "internal/sim/kubelet", "test/bubble", "test/captures", "test/kubelet/churn", "test/kubelet/conformance", "test/helpers/background", "test/helpers/bufserver", "test/helpers/certificate", "test/helpers/deviceplugin", "test/helpers/devicetest", "test/helpers/docs", "test/helpers/expect", "test/nvml", "test/helpers/program", "test/helpers/require", "test/helpers/testfile", "test/helpers/testlog"}

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
	"internal/allocation": {"github.com/", "google.golang.org/", "k8s.io/"},
	"internal/health":     {"github.com/", "google.golang.org/", "k8s.io/"},
	"internal/sim":        {"github.com/NVIDIA"},
}

func TestAllowedImports(t *testing.T) {
	t.Chdir(root)
	modules := slices.Collect(maps.Keys(texts(t, ".", func(name string) bool { return name == "go.mod" })))
	seen := map[string]bool{}
	for file, source := range texts(t, ".", func(name string) bool { return path.Ext(name) == ".go" }) {
		isOther := func(module string) bool {
			return module != "go.mod" && strings.HasPrefix(file, path.Dir(module)+"/")
		}
		if !slices.ContainsFunc(modules, isOther) {
			seen[path.Dir(file)] = true
			checkImports(t, path.Dir(file), file, source)
		}
	}
	for pkg := range allowedImports {
		if !seen[pkg] {
			t.Errorf("allowedImports lists %s, which does not exist", pkg)
		}
	}
}

func checkImports(t *testing.T, pkg, file, text string) {
	t.Helper()
	allowed, known := allowedImports[pkg]
	if !known {
		t.Errorf("%s: package %s is missing from allowedImports", file, pkg)
		return
	}
	source, err := parser.ParseFile(token.NewFileSet(), file, text, parser.ImportsOnly)
	require.NoError(t, err)
	test := strings.HasSuffix(file, "_test.go")
	for _, spec := range source.Imports {
		name, err := strconv.Unquote(spec.Path.Value)
		require.NoError(t, err)
		ours, isOurs := strings.CutPrefix(name, module)
		switch {
		case isOurs && ours != pkg && !slices.Contains(allowed, ours) && !slices.Contains(leafPackages, ours) && (!test || !slices.Contains(testImports, ours)):
			t.Errorf("%s imports %s; allowed imports of %s: %v", file, ours, pkg, allowed)
		case !test && slices.ContainsFunc(bannedModules[pkg], func(s string) bool { return strings.HasPrefix(name, s) && !isOurs }):
			t.Errorf("%s imports %s, which is banned in %s", file, name, pkg)
		}
	}
}
