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

// Version is the Kubernetes version of control plane and kubelet.
const Version = "v1.37.1"

// Programs of the cluster.
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
		Requires:    []string{"cloud.google.com/go v0.112.0"}, // older versions have a package that moved to a different module
		LinkerFlags: "-s -w -X github.com/prometheus/common/version.Version=0.93.1",
	}
	// Debian's build lacks the discovery of pods.
	prometheusProgram = buildcache.BuildSpec{
		Name: "prometheus", Version: "v3.13.1", Module: "github.com/prometheus/prometheus", ModuleVersion: "v0.313.1", Cache: "prometheus-v3.13.1",
		Packages:    []string{"cmd/prometheus"},
		LinkerFlags: "-s -w -X github.com/prometheus/common/version.Version=3.13.1",
		Tags:        "remove_all_sd,enable_kubernetes_sd",
	}
	// A test driver, because NVIDIA's DRA driver needs a real GPU driver.
	draDriverProgram = buildcache.BuildSpec{
		Name: "dradriver", Version: "v0.37.2", Cache: "dradriver-v0.37.2",
		Packages:    []string{"cluster/dradriver"},
		LinkerFlags: "-s -w",
	}
)

// openShiftSource is the module of OpenShift's API, with the custom resource definitions.
var openShiftSource = buildcache.BuildSpec{Name: "openshift", Module: "github.com/openshift/api", Version: "v0.0.0-20251015095338-264e80a2b6e7"}

// Fetch downloads the files of modules that the tests read, so that the tests need no network.
func Fetch(ctx context.Context) error {
	_, err := openShiftSource.Source(ctx)
	return err
}

// BasePrograms returns the programs and clients of a cluster.
func BasePrograms() []buildcache.BuildSpec {
	return []buildcache.BuildSpec{kubernetesProgram, helmProgram}
}

// AllPrograms returns BasePrograms and the programs that the tests run in the cluster.
func AllPrograms() []buildcache.BuildSpec {
	return append(BasePrograms(), kubeStateMetrics, prometheusOperator, prometheusProgram, draDriverProgram)
}

// Build builds missing programs and logs the time of each. BasePrograms take about ten minutes on two cores.
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

// ToolPath returns the folders of kubectl and helm.
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

// binaryPath returns the path of a program's binary.
func binaryPath(p buildcache.BuildSpec, name string) (string, error) {
	dir, err := p.BuiltDir()
	return filepath.Join(dir, name), err
}

// CheckRequirements returns an error with the remedy if this machine cannot run a cluster with the programs.
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

// MissingTools returns the missing tools of this machine, in addition to node.MissingTools.
func MissingTools() []node.RequiredTool {
	if _, err := exec.LookPath("etcd"); err != nil {
		return []node.RequiredTool{{File: "etcd", Package: "etcd-server"}}
	}
	return nil
}
