package cluster

import (
	"archive/tar"
	"crypto/tls"
	"crypto/x509"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
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
	roots.AppendCertsFromPEM(ids.ca)
	for name, known := range map[string]bool{"10.250.0.2": true, serviceIP: true, "10.250.0.3": false} {
		if _, err := server.Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: name}); (err == nil) != known {
			t.Errorf("certificate for %s: %v", name, err)
		}
	}

	tokens, err := ids.addUsers("https://10.250.0.2:6443", userGroups("node-a"))
	if err != nil {
		t.Fatal(err)
	}
	list, err := os.ReadFile(ids.file("tokens.csv"))
	if err != nil {
		t.Fatal(err)
	}
	for user, group := range userGroups("node-a") {
		if line := tokens[user] + "," + user + "," + user + `,"` + group + `"`; !strings.Contains(string(list), line+"\n") {
			t.Errorf("tokens.csv lacks user %s with %s:\n%s", user, line, list)
		}
		if config, err := os.ReadFile(ids.kubeconfig(user)); err != nil || !strings.Contains(string(config), tokens[user]) {
			t.Errorf("%s has no token: %s, %v", user, config, err)
		}
	}
}

func TestImageName(t *testing.T) {
	for content, want := range map[string]string{
		`{"manifests": [{"annotations": {"org.opencontainers.image.ref.name": "ghcr.io/podgauge/podgauge:v1"}}]}`: "ghcr.io/podgauge/podgauge:v1",
		`{"manifests": [{}]}`: "",
		`{`:                   "",
	} {
		name := filepath.Join(t.TempDir(), "image.tar")
		f, err := os.Create(name)
		if err != nil {
			t.Fatal(err)
		}
		archive := tar.NewWriter(f)
		for _, file := range []struct{ name, content string }{{"oci-layout", "{}"}, {"index.json", content}} {
			_ = archive.WriteHeader(&tar.Header{Name: file.name, Mode: 0o644, Size: int64(len(file.content))})
			_, _ = archive.Write([]byte(file.content))
		}
		if err := archive.Close(); err != nil {
			t.Fatal(err)
		}
		f.Close()
		if got, err := imageName(name); got != want || (err == nil) != (want != "") {
			t.Errorf("%s: %q, %v", content, got, err)
		}
	}
}
