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
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

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
		Containerd2:    true,
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

// Up starts the control plane and the kubelet in a running node and waits until
// the node is ready.
func Up(ctx context.Context, n *node.RealNode, level PodSecurity) (*Cluster, error) {
	ids, err := newIdentities(n.Path("pki"), net.ParseIP(n.IP()), net.ParseIP(serviceIP))
	if err != nil {
		return nil, err
	}
	server := fmt.Sprintf("https://%s:%d", n.IP(), apiPort)
	if err := ids.addUsers(server, userGroups(node.Name)); err != nil {
		return nil, err
	}
	c := &Cluster{Node: n, Kubeconfig: ids.kubeconfig("admin"), identities: ids, level: level}
	if c.api, err = newClient(c.Kubeconfig); err != nil {
		return nil, err
	}
	for _, step := range []func(context.Context) error{
		c.startEtcd, c.StartAPIServer, c.startControllers, c.StartKubelet,
	} {
		if err := step(ctx); err != nil {
			return nil, fmt.Errorf("start cluster (logs in %s): %w", n.Logs, err)
		}
	}
	return c, nil
}

func newClient(kubeconfig string) (rest.Interface, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig: %w", err)
	}
	config.Timeout = 10 * time.Second
	config.QPS = -1 // no limit
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("create client: %w", err)
	}
	return client.RESTClient(), nil
}

// StartKubelet starts the kubelet and waits until pods can be scheduled: the
// node is ready, without taint.
func (c *Cluster) StartKubelet(ctx context.Context) error {
	if _, err := c.Node.StartKubelet(ctx,
		"--kubeconfig="+c.identities.kubeconfig("system:node:"+node.Name)); err != nil {
		return err
	}
	return node.Until(ctx, "the node is ready", func(ctx context.Context) error {
		var n v1.Node
		if err := c.Get(ctx, "/api/v1/nodes/"+node.Name, &n); err != nil {
			return err
		}
		if len(n.Spec.Taints) > 0 || !slices.ContainsFunc(n.Status.Conditions, isReady) {
			return fmt.Errorf("node has taints %v and conditions %v", n.Spec.Taints, n.Status.Conditions)
		}
		return nil
	})
}

func isReady(c v1.NodeCondition) bool { return c.Type == v1.NodeReady && c.Status == v1.ConditionTrue }

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
