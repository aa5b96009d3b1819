package cluster

import (
	"context"
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/podgauge/podgauge/test/e2e/node"
	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

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
		c.startEtcd, c.StartAPIServer, c.startControllers, c.startKubelet,
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

// startKubelet starts the kubelet and waits until pods can be scheduled: the
// node is ready, without taint.
func (c *Cluster) startKubelet(ctx context.Context) error {
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
