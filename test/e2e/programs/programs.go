// Package programs downloads or builds the programs of the tests and stores the
// binaries in a cache folder.
//
// The Go module of each build is written beside the binaries: all dependencies
// have the versions of the program's release. Go verifies the sources against
// the checksum database.
package programs

import (
	"fmt"
	"runtime"
	"strings"
)

// ClusterVersion is the Kubernetes version of a cluster.
const ClusterVersion = "v1.37.1"

// OlderVersion is a Kubernetes version without the kubelet's Pods API.
const OlderVersion = "v1.36.3"

// KubeletVersions returns the versions under test. The first is the default
// without KUBELET_VERSION.
func KubeletVersions() []string { return []string{ClusterVersion, OlderVersion} }

// Kubelet returns the kubelet of a version.
func Kubelet(version string) BuildSpec {
	return BuildSpec{
		Name: "kubelet", Version: version, Module: "k8s.io/kubernetes", Cache: version,
		Packages: []string{"cmd/kubelet"}, LinkerFlags: kubernetesFlags(version), Release: kubernetesRelease(version),
	}
}

// kubernetesRelease returns the URL of the binaries of a release of Kubernetes.
func kubernetesRelease(version string) string {
	return fmt.Sprintf("https://dl.k8s.io/release/%s/bin/linux/%s", version, runtime.GOARCH)
}

// kubernetesFlags sets the version of a program of Kubernetes, as in a release.
func kubernetesFlags(version string) string {
	const pkg = "k8s.io/component-base/version."
	numbers := strings.Split(strings.TrimPrefix(version, "v"), ".")
	return fmt.Sprintf("-s -w -X %sgitVersion=%s -X %sgitMajor=%s -X %sgitMinor=%s", pkg, version, pkg, numbers[0], pkg,
		numbers[1])
}

const containerdModule = "github.com/containerd/containerd/v2"

var (
	// Containerd is of a supported version, unlike Debian's containerd 1.6. The
	// build excludes snapshotters with C libraries. Each containerd needs the
	// shim of the same version.
	Containerd = BuildSpec{
		Name: "containerd", Version: "v2.4.2", Module: containerdModule, Cache: "containerd-v2.4.2",
		Packages:    []string{"cmd/containerd", "cmd/containerd-shim-runc-v2"},
		LinkerFlags: "-s -w -X " + containerdModule + "/version.Version=v2.4.2",
		Tags:        "no_btrfs,no_devmapper,no_zfs",
	}
	// ControlPlane has the programs of the control plane, and kubectl.
	ControlPlane = BuildSpec{
		Name: "control-plane", Version: ClusterVersion, Module: "k8s.io/kubernetes", Cache: ClusterVersion,
		Packages: []string{
			"cmd/kube-apiserver", "cmd/kube-controller-manager", "cmd/kube-scheduler", "cmd/kubectl",
		},
		LinkerFlags: kubernetesFlags(ClusterVersion),
		Release:     kubernetesRelease(ClusterVersion),
	}
	// Helm installs the chart.
	Helm = BuildSpec{
		Name: "helm", Version: "v4.3.1", Module: "helm.sh/helm/v4", Cache: "helm-v4.3.1",
		Packages:    []string{"cmd/helm"},
		LinkerFlags: "-s -w -X helm.sh/helm/v4/internal/version.version=v4.3.1",
	}
	// KubeStateMetrics exports the pod phases for alerts.
	KubeStateMetrics = BuildSpec{
		Name:        "kube-state-metrics",
		Version:     "v2.20.0",
		Module:      "k8s.io/kube-state-metrics/v2",
		Cache:       "kube-state-metrics-v2.20.0",
		Packages:    []string{"."},
		LinkerFlags: "-s -w",
	}
	// PrometheusOperator reads the chart's monitors and rules.
	PrometheusOperator = BuildSpec{
		Name:     "prometheus-operator",
		Version:  "v0.93.1",
		Module:   "github.com/prometheus-operator/prometheus-operator",
		Cache:    "prometheus-operator-v0.93.1",
		Packages: []string{"cmd/operator", "cmd/prometheus-config-reloader"},
		// older versions have a package that moved to a different module
		Requires:    []string{"cloud.google.com/go v0.112.0"},
		LinkerFlags: "-s -w -X github.com/prometheus/common/version.Version=0.93.1",
	}
	// Prometheus supports Kubernetes service discovery, unlike Debian's build.
	Prometheus = BuildSpec{
		Name:          "prometheus",
		Version:       "v3.13.1",
		Module:        "github.com/prometheus/prometheus",
		ModuleVersion: "v0.313.1",
		Cache:         "prometheus-v3.13.1",
		Packages:      []string{"cmd/prometheus"},
		LinkerFlags:   "-s -w -X github.com/prometheus/common/version.Version=3.13.1",
		Tags:          "remove_all_sd,enable_kubernetes_sd",
	}
	// OpenShift is the module of OpenShift's API, with the custom resource
	// definitions.
	OpenShift = BuildSpec{
		Name: "openshift", Module: "github.com/openshift/api",
		Version: "v0.0.0-20251015095338-264e80a2b6e7",
	}
)

// OfCluster returns the programs of a cluster. Their cold build takes about ten
// minutes on two cores.
func OfCluster() []BuildSpec {
	return []BuildSpec{Kubelet(ClusterVersion), Containerd, ControlPlane, Helm}
}

// OfMonitoredCluster returns OfCluster and the programs that the tests run in
// the cluster.
func OfMonitoredCluster() []BuildSpec {
	return append(OfCluster(), Kubelet(OlderVersion), KubeStateMetrics, PrometheusOperator, Prometheus)
}
