// Package cluster is a Kubernetes cluster with a single node for tests: unmodified etcd, kube-apiserver, kube-controller-manager,
// kube-scheduler and kubelet, in the private namespaces of a node of package node.
//
// RBAC, the Node authorizer and all default admission plugins and controllers are enabled: pods have service accounts, garbage
// collection works, and unlabeled namespaces reject privileged pods. DNS and kube-proxy are missing: pods reach the service of
// the API server only.
package cluster

import (
	"context"
	"fmt"
	"net"
	"time"

	"github.com/podgauge/podgauge/test/e2e/node"
)

// serviceIP is the address of the API server's service, the first of the service subnet.
const (
	serviceIP     = "10.96.0.1"
	serviceSubnet = "10.96.0.0/24"
	apiPort       = 6443
)

// Cluster is a running cluster, which ends with its node.
type Cluster struct {
	// Node is the cluster's only node.
	Node *node.RealNode
	// Kubeconfig is the administrator's kubeconfig, for programs on the machine or in the node.
	Kubeconfig string

	identities clusterIdentities
	api        *apiClient
}

// Options returns the node's options for a cluster.
func Options() node.Options {
	return node.Options{
		KubeletVersion: Version,
		Containerd2:    true,
		KubeletConfig: map[string]any{
			// Update the node's status within a second instead of ten, to show short changes during a rollout.
			"nodeStatusUpdateFrequency": "1s",
		},
	}
}

// PodSecurity is the Pod Security level of unlabeled namespaces: privileged (Kubernetes' default), baseline or restricted.
type PodSecurity string

// Up starts the control plane and the kubelet in a running node and waits until the node is ready.
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
			return nil, fmt.Errorf("start cluster (logs in %s): %w", n.Logs, err)
		}
	}
	return c, nil
}

// startKubelet starts the kubelet and waits until pods can be scheduled: the node is ready, without taint.
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
			return fmt.Errorf("node has taints %v and conditions %v", n.Spec.Taints, n.Status.Conditions)
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

// waitTimeout limits commands that need seconds.
const waitTimeout = time.Minute
