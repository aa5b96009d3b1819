// Package cluster is a Kubernetes cluster with a single node for tests:
// unmodified etcd, kube-apiserver, kube-controller-manager, kube-scheduler and
// kubelet, in the private namespaces of a node of package node.
//
// RBAC, the Node authorizer and all default admission plugins and controllers
// are enabled: pods have service accounts, garbage collection works, and
// unlabeled namespaces reject privileged pods. DNS and kube-proxy are missing:
// pods reach the service of the API server only.
package cluster

import (
	"errors"
	"fmt"
	"runtime"

	"k8s.io/client-go/rest"

	"github.com/podgauge/podgauge/test/e2e/node"
	"github.com/podgauge/podgauge/test/e2e/programs"
)

const (
	serviceIP     = "10.96.0.1" // of the API server, the first of the subnet
	serviceSubnet = "10.96.0.0/24"
	apiPort       = 6443
)

// Cluster is a running cluster, which ends with its node.
type Cluster struct {
	// Node is the cluster's only node.
	Node *node.RealNode
	// Kubeconfig is the administrator's kubeconfig, for programs on the machine
	// or in the node.
	Kubeconfig string

	identities clusterIdentities
	api        rest.Interface // the administrator's client
	level      PodSecurity
	apiServer  *node.Process // of the latest StartAPIServer
}

// Options returns the node's options for a cluster.
func Options() node.Options {
	return node.Options{
		KubeletVersion: programs.ClusterVersion,
		KubeletConfig: map[string]any{
			// Update the node's status within a second instead of ten, to show
			// short changes during a rollout.
			"nodeStatusUpdateFrequency": "1s",
		},
	}
}

// PodSecurity is the Pod Security level of unlabeled namespaces: privileged
// (Kubernetes' default), baseline or restricted.
type PodSecurity string

// Etcd is Debian's etcd. The package also starts an etcd on the machine.
var Etcd = node.RequiredTool{File: "etcd", Package: "etcd-server"}

// CheckRequirements returns an error with the remedy if this machine cannot run
// a cluster with the programs.
func CheckRequirements(all []programs.BuildSpec) error {
	errs := []error{node.CheckRequirements(Options())}
	if missing := node.MissingTools(Etcd); len(missing) > 0 {
		errs = append(errs, fmt.Errorf("missing: %v: run `go run ./cmd/e2e setup monitoring` in test/e2e", missing))
	}
	for _, p := range all {
		_, err := p.BuiltDir()
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// Archive returns the path of `make image`'s archive for this machine, relative
// to the repository's root.
func Archive(root, program string) string {
	return fmt.Sprintf("%s/bin/%s-image-%s.tar", root, program, runtime.GOARCH)
}
