package cluster

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// clusterIdentities are the credentials of the cluster: a certificate for the API server, and tokens for all clients.
type clusterIdentities struct {
	dir string
	ca  []byte // certificate in PEM
}

// userGroups returns the users of the API server with the groups of Kubernetes' default RBAC rules.
// https://kubernetes.io/docs/reference/access-authn-authz/rbac/#core-component-roles
func userGroups(node string) map[string]string {
	return map[string]string{
		"admin":                          "system:masters",
		"system:node:" + node:            "system:nodes",
		"system:kube-controller-manager": "",
		"system:kube-scheduler":          "",
	}
}

func (i clusterIdentities) file(name string) string { return filepath.Join(i.dir, name) }

// newIdentities writes ca.crt, server.crt, server.key and service-accounts.key.
func newIdentities(dir string, server ...net.IP) (clusterIdentities, error) {
	i := clusterIdentities{dir: dir}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return i, err
	}
	now := time.Now()
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "podgauge-e2e"},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	serving := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "kube-apiserver"},
		NotBefore: ca.NotBefore, NotAfter: ca.NotAfter, IPAddresses: server,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	keys := [3]*ecdsa.PrivateKey{}
	for k := range keys {
		var err error
		if keys[k], err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
			return i, err
		}
	}
	authority, err := x509.CreateCertificate(rand.Reader, ca, ca, keys[0].Public(), keys[0])
	if err != nil {
		return i, fmt.Errorf("create CA certificate: %w", err)
	}
	certificate, err := x509.CreateCertificate(rand.Reader, serving, ca, keys[1].Public(), keys[0])
	if err != nil {
		return i, fmt.Errorf("create API server certificate: %w", err)
	}
	i.ca = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: authority})
	files := map[string][]byte{
		"ca.crt":     i.ca,
		"server.crt": pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate}),
	}
	for name, key := range map[string]*ecdsa.PrivateKey{"server.key": keys[1], "service-accounts.key": keys[2]} {
		der, err := x509.MarshalECPrivateKey(key)
		if err != nil {
			return i, err
		}
		files[name] = pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})
	}
	for name, content := range files {
		if err := os.WriteFile(i.file(name), content, 0o600); err != nil {
			return i, err
		}
	}
	return i, nil
}

// addUsers creates a token per user and writes tokens.csv for the API server and <name>.kubeconfig for each user.
func (i clusterIdentities) addUsers(server string, users map[string]string) (tokens map[string]string, err error) {
	tokens = map[string]string{}
	list := []byte{}
	for user, group := range users {
		tokens[user] = rand.Text()
		list = fmt.Appendf(list, "%s,%s,%s,%q\n", tokens[user], user, user, group)
		config := fmt.Sprintf(`{"apiVersion": "v1", "kind": "Config", "current-context": "e2e",
"clusters": [{"name": "e2e", "cluster": {"server": %q, "certificate-authority": %q}}],
"users": [{"name": %q, "user": {"token": %q}}],
"contexts": [{"name": "e2e", "context": {"cluster": "e2e", "user": %q}}]}
`, server, i.file("ca.crt"), user, tokens[user], user)
		if err := os.WriteFile(i.kubeconfig(user), []byte(config), 0o600); err != nil {
			return nil, err
		}
	}
	return tokens, os.WriteFile(i.file("tokens.csv"), list, 0o600)
}

func (i clusterIdentities) kubeconfig(user string) string { return i.file(user + ".kubeconfig") }
