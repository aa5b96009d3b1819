package cluster

import (
	"crypto/rand"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

// clusterIdentities is the folder of the cluster's credentials: a certificate
// for the API server, and tokens for all clients.
type clusterIdentities string

// userGroups returns the users of the API server with the groups of Kubernetes'
// default RBAC rules.
// https://kubernetes.io/docs/reference/access-authn-authz/rbac/#core-component-roles
func userGroups(node string) map[string]string {
	return map[string]string{
		"admin":                          "system:masters",
		"system:node:" + node:            "system:nodes",
		"system:kube-controller-manager": "",
		"system:kube-scheduler":          "",
	}
}

func (i clusterIdentities) file(name string) string { return filepath.Join(string(i), name) }

// newIdentities writes server.crt, which includes the certificate's CA,
// server.key and service-accounts.key.
func newIdentities(dir string, node, service net.IP) (clusterIdentities, error) {
	i := clusterIdentities(dir)
	certificate, key, err := cert.GenerateSelfSignedCertKey(node.String(), []net.IP{service}, nil)
	if err != nil {
		return i, fmt.Errorf("create API server certificate: %w", err)
	}
	accounts, err := keyutil.MakeEllipticPrivateKeyPEM()
	if err != nil {
		return i, fmt.Errorf("create key of service accounts: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return i, err
	}
	for name, content := range map[string][]byte{
		"server.crt": certificate, "server.key": key,
		"service-accounts.key": accounts,
	} {
		if err := os.WriteFile(i.file(name), content, 0o600); err != nil {
			return i, err
		}
	}
	return i, nil
}

// addUsers creates a token per user and writes tokens.csv for the API server
// and <name>.kubeconfig for each user.
func (i clusterIdentities) addUsers(server string, users map[string]string) error {
	list := []byte{}
	for user, group := range users {
		token := rand.Text()
		list = fmt.Appendf(list, "%s,%s,%s,%q\n", token, user, user, group)
		config := fmt.Sprintf(`{"apiVersion": "v1", "kind": "Config", "current-context": "e2e",
"clusters": [{"name": "e2e", "cluster": {"server": %q, "certificate-authority": %q}}],
"users": [{"name": %q, "user": {"token": %q}}],
"contexts": [{"name": "e2e", "context": {"cluster": "e2e", "user": %q}}]}
`, server, i.file("server.crt"), user, token, user)
		if err := os.WriteFile(i.kubeconfig(user), []byte(config), 0o600); err != nil {
			return err
		}
	}
	return os.WriteFile(i.file("tokens.csv"), list, 0o600)
}

func (i clusterIdentities) kubeconfig(user string) string { return i.file(user + ".kubeconfig") }
