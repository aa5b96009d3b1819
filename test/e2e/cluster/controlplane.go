package cluster

import (
	"context"
	"fmt"
	"os"
	"syscall"

	"github.com/podgauge/podgauge/test/e2e/node"
	"github.com/podgauge/podgauge/test/e2e/programs"
)

// startEtcd starts Debian's etcd without fsync, because the data ends with the
// node.
func (c *Cluster) startEtcd(ctx context.Context) error {
	client := fmt.Sprintf("http://%s:2379", c.Node.IP())
	_, err := c.Node.Start(ctx, "etcd", []string{
		"etcd", "--data-dir=" + c.Node.Path("etcd"), "--unsafe-no-fsync", "--logger=zap",
		"--listen-client-urls=" + client, "--advertise-client-urls=" + client,
		"--listen-peer-urls=http://127.0.0.1:2380",
	}, func(ctx context.Context) error { return node.GetJSON(ctx, client+"/health", nil) })
	return err
}

// podSecurity is the configuration of Pod Security admission, with the level as
// a parameter.
const podSecurity = `{"apiVersion": "apiserver.config.k8s.io/v1", "kind": "AdmissionConfiguration", "plugins": [{
  "name": "PodSecurity",
  "configuration": {
    "apiVersion": "pod-security.admission.config.k8s.io/v1", "kind": "PodSecurityConfiguration",
    "defaults": {"enforce": %q, "enforce-version": "latest"},
    "exemptions": {"namespaces": ["kube-system"]}
  }
}]}`

// StartAPIServer starts the API server and waits until it is ready.
func (c *Cluster) StartAPIServer(ctx context.Context) error {
	binary, err := programs.ControlPlane.Binary("kube-apiserver")
	if err != nil {
		return err
	}
	// Pods reach the API server at the address of the service, without
	// kube-proxy.
	redirect := fmt.Sprintf("-d %s/32 -p tcp --dport 443 -j DNAT --to-destination %s:%d", serviceIP, c.Node.IP(),
		apiPort)
	if c.apiServer == nil {
		if _, err := c.Node.Shell(ctx, fmt.Sprintf("iptables -t nat -A PREROUTING %s\niptables -t nat -A OUTPUT %s",
			redirect, redirect)); err != nil {
			return err
		}
	}
	admission := c.identities.file("admission.json")
	if err := os.WriteFile(admission, fmt.Appendf(nil, podSecurity, c.level), 0o644); err != nil {
		return err
	}
	accounts := c.identities.file("service-accounts.key")
	c.apiServer, err = c.Node.Start(ctx, "kube-apiserver", []string{
		binary,
		fmt.Sprintf("--etcd-servers=http://%s:2379", c.Node.IP()),
		"--bind-address=" + c.Node.IP(), fmt.Sprintf("--secure-port=%d", apiPort), "--service-cluster-ip-range=" +
			serviceSubnet,
		"--tls-cert-file=" + c.identities.file("server.crt"), "--tls-private-key-file=" +
			c.identities.file("server.key"),
		"--token-auth-file=" + c.identities.file("tokens.csv"), "--authorization-mode=Node,RBAC", "--allow-privileged",
		"--enable-admission-plugins=NodeRestriction", // as in kubeadm, in addition to the defaults
		"--admission-control-config-file=" + admission,
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + accounts, "--service-account-signing-key-file=" + accounts,
		"--kubelet-preferred-address-types=InternalIP",
	}, func(ctx context.Context) error { return c.Get(ctx, "/readyz", nil) })
	return err
}

// StopAPIServer kills the API server.
func (c *Cluster) StopAPIServer(ctx context.Context) error {
	_, err := c.apiServer.Stop(ctx, syscall.SIGKILL)
	return err
}

// startControllers starts the controller manager and the scheduler. Their
// health checks need no token.
func (c *Cluster) startControllers(ctx context.Context) error {
	manager, err := programs.ControlPlane.Binary("kube-controller-manager")
	if err != nil {
		return err
	}
	scheduler, err := programs.ControlPlane.Binary("kube-scheduler")
	if err != nil {
		return err
	}
	common := func(user string) []string {
		return []string{
			"--kubeconfig=" + c.identities.kubeconfig(user), "--leader-elect=false",
			"--bind-address=127.0.0.1",
		}
	}
	if _, err := c.Node.Exec("kube-controller-manager", append([]string{
		manager, "--use-service-account-credentials", "--root-ca-file=" + c.identities.file("server.crt"),
		"--service-account-private-key-file=" + c.identities.file("service-accounts.key"),
	}, common("system:kube-controller-manager")...)); err != nil {
		return err
	}
	if _, err := c.Node.Exec("kube-scheduler",
		append([]string{scheduler}, common("system:kube-scheduler")...)); err != nil {
		return err
	}
	// The controller manager creates service accounts; the scheduler is checked
	// by the first pod.
	return node.Until(ctx, "the controllers work", func(ctx context.Context) error {
		return c.Get(ctx, "/api/v1/namespaces/default/serviceaccounts/default", nil)
	})
}
