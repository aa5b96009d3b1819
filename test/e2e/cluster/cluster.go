// Package cluster is a Kubernetes cluster of one node for tests: etcd, kube-apiserver, kube-controller-manager, kube-scheduler and kubelet as
// they are shipped, in the private namespaces of a node of package node.
//
// RBAC and the Node authorizer are on, and so are all admission plugins and controllers that a cluster has by default: pods get service
// accounts, what is deleted takes what it owned with it, and a namespace without a label takes no privileged pod. What it lacks are name
// service and proxy: pods reach the API server by its service's address, and no other service.
package cluster

import (
	"context"
	"fmt"
	"net"
	"time"

	"github.com/podgauge/podgauge/test/e2e/node"
)

// serviceIP is the API server's address for those who run in the cluster: the first of its services' subnet.
const (
	serviceIP     = "10.96.0.1"
	serviceSubnet = "10.96.0.0/24"
	apiPort       = 6443
)

// Cluster is one that is up. It ends with its node.
type Cluster struct {
	// Node is the cluster's only one.
	Node *node.RealNode
	// Kubeconfig is that of the administrator, for programs on the machine or in the node.
	Kubeconfig string

	identities clusterIdentities
	api        *apiClient
}

// Options are the node's for a cluster.
func Options() node.Options {
	return node.Options{
		KubeletVersion: Version,
		Containerd2:    true,
		KubeletConfig: map[string]any{
			// The node's status says what changed within a second, where ten are the default: what is to be seen of a rollout is seen.
			"nodeStatusUpdateFrequency": "1s",
		},
	}
}

// PodSecurity is the level of Pod Security admission for namespaces that have no label: privileged, which is Kubernetes' default and lets
// everything be, baseline or restricted.
type PodSecurity string

// Up starts the control plane in a node that is up, and then its kubelet, and returns when the node is ready.
func Up(ctx context.Context, n *node.RealNode, level PodSecurity) (*Cluster, error) {
	ids, err := newIdentities(n.Path("pki"), net.ParseIP(n.IP()), net.ParseIP(serviceIP))
	if err != nil {
		return nil, err
	}
	server := fmt.Sprintf("https://%s:%d", n.IP(), apiPort)
	tokens, err := ids.addUsers(server, userGroups(node.Name))
	if err != nil {
		return nil, err
	}
	c := &Cluster{Node: n, Kubeconfig: ids.kubeconfig("admin"), identities: ids, api: newAPI(server, ids.ca, tokens["admin"])}
	for _, step := range []func(context.Context) error{
		c.startEtcd,
		func(ctx context.Context) error { return c.startAPIServer(ctx, level) },
		c.startControllers, c.startKubelet,
	} {
		if err := step(ctx); err != nil {
			return nil, fmt.Errorf("bring the cluster up (logs in %s): %w", n.Logs, err)
		}
	}
	return c, nil
}

// startKubelet waits until pods can be scheduled: the node is ready and its taint is gone.
func (c *Cluster) startKubelet(ctx context.Context) error {
	if _, err := c.Node.StartKubelet(ctx, "--kubeconfig="+c.identities.kubeconfig("system:node:"+node.Name)); err != nil {
		return err
	}
	return node.Until(ctx, "the node is ready", func(ctx context.Context) error {
		var n struct {
			Spec   struct{ Taints []struct{ Key string } }
			Status struct{ Conditions []statusCondition }
		}
		if err := c.Get(ctx, "/api/v1/nodes/"+node.Name, &n); err != nil {
			return err
		}
		if len(n.Spec.Taints) > 0 || !isConditionTrue(n.Status.Conditions, "Ready") {
			return fmt.Errorf("it has taints %v and conditions %v", n.Spec.Taints, n.Status.Conditions)
		}
		return nil
	})
}

// statusCondition of an object.
type statusCondition struct{ Type, Status, Reason, Message string }

func isConditionTrue(conditions []statusCondition, kind string) bool {
	for _, c := range conditions {
		if c.Type == kind {
			return c.Status == "True"
		}
	}
	return false
}

// waitTimeout is how long a command waits for what takes seconds.
const waitTimeout = time.Minute
