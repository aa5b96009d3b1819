package cluster

import (
	"context"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/podgauge/podgauge/test/e2e/buildcache"
	"github.com/podgauge/podgauge/test/e2e/kubelet"
	"github.com/podgauge/podgauge/test/e2e/node"
)

// Version is Kubernetes', of all that runs here: the control plane's and the kubelet's.
const Version = "v1.37.1"

// The programs of the cluster.
var (
	kubernetesProgram = buildcache.BuildSpec{
		Name: "control-plane", Version: Version, Module: "k8s.io/kubernetes", Cache: Version,
		Packages: []string{
			"cmd/kube-apiserver", "cmd/kube-controller-manager", "cmd/kube-scheduler", "cmd/kubectl",
		},
		LinkerFlags: kubelet.LinkerFlags(Version),
	}
	helmProgram = buildcache.BuildSpec{
		Name: "helm", Version: "v4.3.1", Module: "helm.sh/helm/v4", Cache: "helm-v4.3.1",
		Packages:    []string{"cmd/helm"},
		LinkerFlags: "-s -w -X helm.sh/helm/v4/internal/version.version=v4.3.1",
	}
	kubeStateMetrics = buildcache.BuildSpec{
		Name: "kube-state-metrics", Version: "v2.20.0", Module: "k8s.io/kube-state-metrics/v2", Cache: "kube-state-metrics-v2.20.0",
		Packages:    []string{"."},
		LinkerFlags: "-s -w",
	}
	prometheusOperator = buildcache.BuildSpec{
		Name: "prometheus-operator", Version: "v0.93.1", Module: "github.com/prometheus-operator/prometheus-operator", Cache: "prometheus-operator-v0.93.1",
		Packages:    []string{"cmd/operator", "cmd/prometheus-config-reloader"},
		Requires:    []string{"cloud.google.com/go v0.112.0"}, // an older one has a package that another module has today
		LinkerFlags: "-s -w -X github.com/prometheus/common/version.Version=0.93.1",
	}
	// Debian's is built without the discovery of pods.
	prometheusProgram = buildcache.BuildSpec{
		Name: "prometheus", Version: "v3.13.1", Module: "github.com/prometheus/prometheus", ModuleVersion: "v0.313.1", Cache: "prometheus-v3.13.1",
		Packages:    []string{"cmd/prometheus"},
		LinkerFlags: "-s -w -X github.com/prometheus/common/version.Version=3.13.1",
		Tags:        "remove_all_sd,enable_kubernetes_sd",
	}
	// Our own: NVIDIA's DRA driver needs a real GPU driver.
	draDriverProgram = buildcache.BuildSpec{
		Name: "dradriver", Version: "v0.37.2", Cache: "dradriver-v0.37.2",
		Packages:    []string{"cluster/dradriver"},
		LinkerFlags: "-s -w",
	}
)

// openShiftSource is no program, and its folder no cache: the module of its API has the definitions of its kinds.
var openShiftSource = buildcache.BuildSpec{Name: "openshift", Module: "github.com/openshift/api", Version: "v0.0.0-20251015095338-264e80a2b6e7"}

// Fetch fetches what the tests read of other modules' files, so that they need no network.
func Fetch(ctx context.Context) error {
	_, err := openShiftSource.Source(ctx)
	return err
}

// BasePrograms are the programs of a cluster, and those with which one talks to it.
func BasePrograms() []buildcache.BuildSpec {
	return []buildcache.BuildSpec{kubernetesProgram, helmProgram}
}

// AllPrograms are those that the tests have run in it, too.
func AllPrograms() []buildcache.BuildSpec {
	return append(BasePrograms(), kubeStateMetrics, prometheusOperator, prometheusProgram, draDriverProgram)
}

// Build builds what is not built yet, and says how long each took. From nothing Base takes about ten minutes on two cores.
func Build(ctx context.Context, programs []buildcache.BuildSpec, out io.Writer) error {
	for _, p := range programs {
		start := time.Now()
		dir, err := p.Build(ctx, out)
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "%s %s: %s (%s)\n", p.Name, p.Version, dir, time.Since(start).Round(time.Second))
	}
	return nil
}

// ToolPath are the folders of kubectl and helm.
func ToolPath() (string, error) {
	folders := []string{}
	for _, p := range BasePrograms() {
		dir, err := p.BuiltDir()
		if err != nil {
			return "", err
		}
		folders = append(folders, dir)
	}
	return strings.Join(folders, ":"), nil
}

// binaryPath is the path of one of a Program's binaries.
func binaryPath(p buildcache.BuildSpec, name string) (string, error) {
	dir, err := p.BuiltDir()
	return filepath.Join(dir, name), err
}

// CheckRequirements says what keeps this machine from hosting a cluster with these programs, and how to mend it.
func CheckRequirements(programs []buildcache.BuildSpec) error {
	if err := node.CheckRequirements(Options()); err != nil {
		return err
	}
	for _, tool := range MissingTools() {
		return fmt.Errorf("missing: %s: run `go run ./cmd/e2e setup monitoring` in test/e2e", tool.File)
	}
	for _, p := range programs {
		if _, err := p.BuiltDir(); err != nil {
			return err
		}
	}
	return nil
}

// MissingTools are the tools that this machine lacks, beside those of the node.
func MissingTools() []node.RequiredTool {
	if _, err := exec.LookPath("etcd"); err != nil {
		return []node.RequiredTool{{File: "etcd", Package: "etcd-server"}}
	}
	return nil
}
