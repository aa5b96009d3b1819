package app

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptrace"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/cli"
	"github.com/podgauge/podgauge/internal/web/api"
)

// Contents of the web configs in tests. The hash is of the password, as in docs/how-to/tls.md but with the lowest cost.
const (
	testUser     = "prometheus"
	testPassword = "correct horse"
	usersConfig  = "basic_auth_users:\n  prometheus: $2y$04$yW2YRSXAMk7fYEkv0rXQXej4GwJtSlL0ED7LQZB5tE.Ut.eIQX.9W\n"
	tlsConfig    = "tls_server_config:\n  cert_file: tls.crt\n  key_file: tls.key\n"
)

// The files of docs/how-to/tls.md, with the same password.
const (
	docsWebConfig = `tls_server_config:
  cert_file: tls.crt
  key_file: tls.key
basic_auth_users:
  prometheus: $2y$10$sMWst55yP6SJVGAyKHi4pOOAqlXipXBTUYdSGqBprfxE1yD7mF.Fi
`
	docsHTTPConfig = `tls_config:
  ca_file: tls.crt
  server_name: podgauge
basic_auth:
  username: prometheus
  password_file: password
`
)

// TestConfigFilesInDocs checks that the files in docs/how-to/tls.md work.
func TestConfigFilesInDocs(t *testing.T) {
	yaml := func(text string) string { return "```yaml\n" + text + "```\n" }
	checkTables(t, "../../docs/how-to/tls.md", map[string]string{"web.yaml": yaml(docsWebConfig), "http.yaml": yaml(docsHTTPConfig)})
	s := newWebSecrets(t, docsWebConfig)
	s.write("http.yaml", docsHTTPConfig)
	s.write("password", testPassword+"\n")
	w := newTestApp(t, 1, "--web.config.file="+s.path("web.yaml"))
	w.waitRegistered()
	out, errs, status := runCLI(t, "status", "--url=https"+strings.TrimPrefix(w.url, "http"), "--http.config.file="+s.path("http.yaml"))
	if status != cli.ExitOK || !strings.Contains(out, "1 of 1 devices healthy") {
		t.Errorf("got status %d, %q, %q", status, out, errs)
	}
}

// webSecrets is a folder with a web config, a certificate and its key.
type webSecrets struct {
	t   *testing.T
	dir string
}

// newWebSecrets returns a folder with a web config and a certificate.
func newWebSecrets(t *testing.T, config string) *webSecrets {
	t.Helper()
	s := &webSecrets{t, t.TempDir()}
	s.writeCertificate(1)
	s.write("web.yaml", config)
	return s
}

func (s *webSecrets) path(name string) string { return filepath.Join(s.dir, name) }

// write replaces a file, as Kubernetes does for a mounted Secret.
func (s *webSecrets) write(name, text string) {
	s.t.Helper()
	if err := os.WriteFile(s.path(name+".new"), []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
	if err := os.Rename(s.path(name+".new"), s.path(name)); err != nil {
		s.t.Fatal(err)
	}
}

// writeCertificate writes a certificate with this serial number, and its key.
func (s *webSecrets) writeCertificate(serial int64) {
	s.t.Helper()
	certificate, key := newCertificate(s.t, serial)
	s.write("tls.crt", certificate)
	s.write("tls.key", key)
}

// newCertificate returns a self-signed certificate for 127.0.0.1 and podgauge, and its key.
func newCertificate(t *testing.T, serial int64) (certificate, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := x509.Certificate{
		SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: "podgauge"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, IsCA: true, BasicConstraintsValid: true,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: []string{"podgauge"},
	}
	public, err := x509.CreateCertificate(rand.Reader, &template, &template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return encodePEM("CERTIFICATE", public), encodePEM("PRIVATE KEY", secret)
}

func encodePEM(kind string, b []byte) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: b}))
}

// httpResult is a response.
type httpResult struct {
	status int
	text   string
	serial int64 // of the server's certificate; 0: none
	reused bool  // the request used an existing connection
	header http.Header
}

// newHTTPClient returns a client that trusts every server and keeps connections open.
func newHTTPClient(t *testing.T) *http.Client {
	t.Helper()
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, ForceAttemptHTTP2: true}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// fetch sends a request, with a password unless it is empty.
func fetch(t *testing.T, c *http.Client, url, password string) (httpResult, error) {
	t.Helper()
	var a httpResult
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) { a.reused = i.Reused }})
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	if password != "" {
		r.SetBasicAuth(testUser, password)
	}
	resp, err := c.Do(r)
	if err != nil {
		return a, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return a, err
	}
	if resp.TLS != nil {
		a.serial = resp.TLS.PeerCertificates[0].SerialNumber.Int64()
	}
	a.status, a.text, a.header = resp.StatusCode, string(text), resp.Header
	return a, nil
}

// servedPaths maps the served paths to a substring of the response.
var servedPaths = map[string]string{
	"/": "podgauge", "/metrics": "podgauge_build_info", api.DevicesPath: `"devices"`, api.AllocationsPath: `"allocations"`,
	api.IncidentsPath: `"incidents"`, "/healthz": "ok", "/readyz": "ok", "/debug/pprof/": "goroutine",
}

// TestTLSAndPasswords checks that the web config applies to all served paths, but not to the address of the probes.
func TestTLSAndPasswords(t *testing.T) {
	for name, c := range map[string]struct {
		config, scheme string
		hasPasswords   bool
	}{
		"both":      {tlsConfig + usersConfig, "https", true},
		"TLS":       {tlsConfig, "https", false},
		"passwords": {usersConfig, "http", true},
		"neither":   {"", "http", false},
	} {
		t.Run(name, func(t *testing.T) {
			s := newWebSecrets(t, c.config)
			w := newTestApp(t, 1, "--web.config.file="+s.path("web.yaml"), "--web.probe-address=127.0.0.1:0", "--web.enable-pprof")
			w.waitRegistered()
			url := c.scheme + strings.TrimPrefix(w.url, "http")
			httpClient := newHTTPClient(t)
			waitUntil(t, "/readyz returns ok", func() bool {
				got, err := fetch(t, httpClient, w.probesURL+"/readyz", "")
				return err == nil && got.status == http.StatusOK
			})
			for path, has := range servedPaths {
				for _, secret := range []string{"", "wrong", testPassword} {
					want := http.StatusOK
					if c.hasPasswords && secret != testPassword {
						want = http.StatusUnauthorized
					}
					got, err := fetch(t, httpClient, url+path, secret)
					if err != nil || got.status != want {
						t.Fatalf("%s with %q: got %d, want %d, %v", path, secret, got.status, want, err)
					}
					if strings.Contains(got.text, has) != (want == http.StatusOK) {
						t.Errorf("%s with %q: got %q", path, secret, got.text)
					}
					if (got.header.Get("WWW-Authenticate") != "") != (want == http.StatusUnauthorized) {
						t.Errorf("%s with %q: got headers %v", path, secret, got.header)
					}
				}
			}
			if got, err := fetch(t, httpClient, w.url+"/metrics", testPassword); c.scheme == "https" && (err != nil || got.status != http.StatusBadRequest) {
				t.Errorf("in plain HTTP: got %d, %v", got.status, err)
			}
			for path := range servedPaths {
				got, err := fetch(t, httpClient, w.probesURL+path, "")
				want := http.StatusNotFound
				if path == "/healthz" || path == "/readyz" {
					want = http.StatusOK
				}
				if err != nil || got.status != want {
					t.Errorf("%s at the probe address: got %d, want %d, %v", path, got.status, want, err)
				}
			}
		})
	}
}

// TestNoProbeAddress checks that no second address is served without the flag, and that an address in use is an error.
func TestNoProbeAddress(t *testing.T) {
	o := webOptions{listenAddress: "127.0.0.1:0"}
	l, err := o.listen()
	if err != nil {
		t.Fatal(err)
	}
	defer l.main.Close()
	if l.probes != nil {
		t.Errorf("probe address: got %s, want none", l.probes.Addr())
	}
	taken := l.main.Addr().String()
	var errs bytes.Buffer
	status := run(t.Context(), testPlatform{}, []string{"--web.listen-address=127.0.0.1:0", "--web.probe-address=" + taken}, emptyEnv, io.Discard, &errs)
	if status != cli.ExitError || !strings.HasPrefix(errs.String(), "podgauge: serve probes: listen tcp "+taken+": ") || strings.Count(errs.String(), "\n") != 1 {
		t.Errorf("address in use: got status %d, %q", status, errs.String())
	}
}

// TestBrokenWebConfig checks that an invalid config causes one line and status 2, and no start, which would report that the address is in use.
func TestBrokenWebConfig(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for _, c := range []struct{ config, wantErr string }{
		{"basic_auth_users: [a]\n", "line 1: cannot unmarshal"},
		{"basic_auth_user: {}\n", "field basic_auth_user not found"},
		{"basic_auth_users: {prometheus: secret}\n", "too short to be a bcrypted password"},
		{"tls_server_config: {cert_file: tls.crt}\n", "missing one of key or key_file"},
		{"tls_server_config: {cert_file: none.crt, key_file: tls.key}\n", "none.crt: no such file"},
		{"tls_server_config: {cert_file: tls.key, key_file: tls.key}\n", "failed to load X509KeyPair"},
		{"tls_server_config: {cert_file: tls.crt, key_file: tls.key, client_auth_type: Perhaps}\n", "invalid ClientAuth: Perhaps"},
		{"http_server_config: {headers: {Server: x}}\n", `HTTP header "Server" can not be configured`},
		{"\x00\x1b[2J", "control characters are not allowed"},
	} {
		s := newWebSecrets(t, c.config)
		out, errs, status := runCLI(t, "--web.listen-address="+taken.Addr().String(), "--web.config.file="+s.path("web.yaml"))
		if status != cli.ExitUsage || out != "" || strings.Count(errs, "\n") != 1 || !strings.Contains(errs, c.wantErr) || !strings.HasPrefix(errs, `podgauge: --web.config.file "`+s.dir) {
			t.Errorf("%q: got status %d, %q", c.config, status, errs)
		}
	}
	missing := filepath.Join(t.TempDir(), "web.yaml")
	if _, errs, status := runCLI(t, "--web.config.file="+missing); status != cli.ExitUsage || errs != `podgauge: --web.config.file "`+missing+`": no such file or directory`+"\n" {
		t.Errorf("missing file: got status %d, %q", status, errs)
	}
}

// TestLongHeaders checks that requests with more than 16 KB of headers are rejected.
func TestLongHeaders(t *testing.T) {
	w := newTestApp(t, 1, "--web.probe-address=127.0.0.1:0")
	w.waitRegistered()
	for _, url := range []string{w.url, w.probesURL} {
		for bytes, want := range map[int]int{8 << 10: http.StatusOK, 32 << 10: http.StatusRequestHeaderFieldsTooLarge} {
			// The body is not read: the server closes the connection while the client may still write.
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+"/healthz", http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			r.SetBasicAuth(testUser, strings.Repeat("x", bytes*3/4))
			resp, err := newHTTPClient(t).Do(r)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if resp.StatusCode != want {
				t.Errorf("%d bytes of headers: got %d, want %d", bytes, resp.StatusCode, want)
			}
		}
	}
}

// TestSlowClients checks that scrapes and probes are answered while 200 clients of the same address send 50 kB of headers in pieces, again
// and again.
func TestSlowClients(t *testing.T) {
	w := newTestApp(t, 1, "--web.probe-address=127.0.0.1:0")
	w.waitRegistered()
	var clients sync.WaitGroup
	defer clients.Wait()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var rounds atomic.Int32
	for range 200 {
		clients.Go(func() {
			for ctx.Err() == nil {
				sendSlowly(ctx, w.url)
				rounds.Add(1)
			}
		})
	}
	waitUntil(t, "clients connect again", func() bool { return rounds.Load() >= 200 })
	for range 100 {
		for _, url := range []string{w.url + "/metrics", w.url + "/healthz", w.probesURL + "/healthz"} {
			client := newHTTPClient(t)
			if got, err := fetch(t, client, url, ""); err != nil || got.status != http.StatusOK {
				t.Errorf("%s: got %d, %v", url, got.status, err)
			}
			client.CloseIdleConnections()
		}
	}
}

// sendSlowly sends 50 kB of headers on a new connection in pieces of 1 kB.
func sendSlowly(ctx context.Context, url string) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		return
	}
	defer conn.Close()
	piece := []byte("GET /metrics HTTP/1.1\r\nHost: a\r\n")
	for range 50 {
		if _, err := conn.Write(piece); err != nil {
			return
		}
		piece = []byte("a: " + strings.Repeat("x", 1000) + "\r\n")
		select {
		case <-ctx.Done():
		case <-time.After(10 * time.Millisecond):
		}
	}
	io.Copy(io.Discard, conn) //nolint:errcheck // until the server closes it
}

// TestWebConfigBecomesInvalid checks that requests are rejected while the file is invalid, but the probe address works and pods start. A valid
// file restores the service.
func TestWebConfigBecomesInvalid(t *testing.T) {
	s := newWebSecrets(t, tlsConfig+usersConfig)
	w := newTestApp(t, 2, "--web.config.file="+s.path("web.yaml"), "--web.probe-address=127.0.0.1:0")
	w.waitRegistered()
	url := "https" + strings.TrimPrefix(w.url, "http")
	kept := newHTTPClient(t)
	scrape := func(c *http.Client) (httpResult, error) { return fetch(t, c, url+"/metrics", testPassword) }
	if got, err := scrape(kept); err != nil || got.status != http.StatusOK {
		t.Fatalf("valid config: got %d, %v", got.status, err)
	}
	for name, wrong := range map[string]string{"yaml": "basic_auth_users: [", "certificate": strings.ReplaceAll(tlsConfig, "tls.crt", "none.crt") + usersConfig, "gone": ""} {
		s.write("web.yaml", wrong)
		if name == "gone" {
			if err := os.Remove(s.path("web.yaml")); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := scrape(newHTTPClient(t)); err == nil {
			t.Errorf("%s: a request on a new connection gets a response", name)
		}
		want := http.StatusInternalServerError
		if name == "certificate" { // not needed on an open connection
			want = http.StatusOK
		}
		if got, err := scrape(kept); err != nil || got.status != want || !got.reused {
			t.Errorf("%s: on an open connection: got %d, want %d, %v", name, got.status, want, err)
		}
		if got, err := fetch(t, kept, w.probesURL+"/healthz", ""); err != nil || got.status != http.StatusOK {
			t.Errorf("%s: probe: got %d, %v", name, got.status, err)
		}
		w.runPod(gpuPod("research", "train", 2))
		w.deletePod(gpuPod("research", "train", 2))
		s.write("web.yaml", tlsConfig+usersConfig)
		for _, c := range []*http.Client{kept, newHTTPClient(t)} {
			if got, err := scrape(c); err != nil || got.status != http.StatusOK {
				t.Errorf("%s: after a valid config: got %d, %v", name, got.status, err)
			}
		}
	}
}

// TestPasswordsAndCertificatesAreReplaced checks that new connections get a new certificate, unless its key is missing. A new password
// applies from the next request on.
func TestPasswordsAndCertificatesAreReplaced(t *testing.T) {
	s := newWebSecrets(t, tlsConfig+usersConfig)
	w := newTestApp(t, 1, "--web.config.file="+s.path("web.yaml"))
	w.waitRegistered()
	url := "https" + strings.TrimPrefix(w.url, "http") + "/healthz"
	kept := newHTTPClient(t)
	wantCertificate := func(c *http.Client, serial int64) {
		t.Helper()
		if got, err := fetch(t, c, url, testPassword); err != nil || got.status != http.StatusOK || got.serial != serial {
			t.Errorf("got status %d, certificate %d, want certificate %d, %v", got.status, got.serial, serial, err)
		}
	}
	wantCertificate(kept, 1)
	public, key := newCertificate(t, 2)
	s.write("tls.crt", public)
	if _, err := fetch(t, newHTTPClient(t), url, testPassword); err == nil {
		t.Error("a certificate without its key is used")
	}
	wantCertificate(kept, 1)
	s.write("tls.key", key)
	wantCertificate(newHTTPClient(t), 2)
	wantCertificate(kept, 1)
	s.write("web.yaml", tlsConfig+strings.ReplaceAll(usersConfig, testUser, "other"))
	if got, err := fetch(t, kept, url, testPassword); err != nil || got.status != http.StatusUnauthorized || !got.reused {
		t.Errorf("removed user: got %d, %v", got.status, err)
	}
}

// TestOneProtocol checks that a connection over TLS serves one request at a time, even for an HTTP/2 client.
func TestOneProtocol(t *testing.T) {
	s := newWebSecrets(t, tlsConfig)
	w := newTestApp(t, 1, "--web.config.file="+s.path("web.yaml"))
	w.waitRegistered()
	_, address, _ := strings.Cut(w.url, "://")
	conn, err := tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2", "http/1.1"}})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if got := conn.ConnectionState().NegotiatedProtocol; got == "h2" {
		t.Errorf("protocol: got %q", got)
	}
}
