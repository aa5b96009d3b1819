package cluster

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/tools/clientcmd"
)

// TestIdentities verifies the API server's certificate with the CA, as clients do.
func TestIdentities(t *testing.T) {
	ids, err := newIdentities(filepath.Join(t.TempDir(), "pki"), net.ParseIP("10.250.0.2"), net.ParseIP(serviceIP))
	if err != nil {
		t.Fatal(err)
	}
	server, err := tls.LoadX509KeyPair(ids.file("server.crt"), ids.file("server.key"))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	ca, err := os.ReadFile(ids.file("server.crt"))
	if err != nil || !roots.AppendCertsFromPEM(ca) {
		t.Fatalf("server.crt has no certificate: %v", err)
	}
	for name, known := range map[string]bool{"10.250.0.2": true, serviceIP: true, "10.250.0.3": false} {
		if _, err := server.Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: name}); (err == nil) != known {
			t.Errorf("certificate for %s: %v", name, err)
		}
	}

	err = ids.addUsers("https://10.250.0.2:6443", userGroups("node-a"))
	if err != nil {
		t.Fatal(err)
	}
	list, err := os.ReadFile(ids.file("tokens.csv"))
	if err != nil {
		t.Fatal(err)
	}
	for user, group := range userGroups("node-a") {
		config, err := clientcmd.BuildConfigFromFlags("", ids.kubeconfig(user))
		if err != nil {
			t.Fatal(err)
		}
		if line := config.BearerToken + "," + user + "," + user + `,"` + group + `"`; !strings.Contains(string(list), line+"\n") {
			t.Errorf("tokens.csv lacks user %s with %s:\n%s", user, line, list)
		}
	}
}
