package app

import (
	"bytes"
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
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/web/api"
)

// What the tests' web configs ask for. The hash is of the password, made as
// docs/operations.md has it, but with the least cost there is.
const (
	user     = "prometheus"
	password = "correct horse"
	users    = "basic_auth_users:\n  prometheus: $2y$04$yW2YRSXAMk7fYEkv0rXQXej4GwJtSlL0ED7LQZB5tE.Ut.eIQX.9W\n"
	usesTLS  = "tls_server_config:\n  cert_file: tls.crt\n  key_file: tls.key\n"
)

// The files of docs/operations.md; the password is the same.
const (
	webOfThePage = `tls_server_config:
  cert_file: tls.crt
  key_file: tls.key
basic_auth_users:
  prometheus: $2y$10$sMWst55yP6SJVGAyKHi4pOOAqlXipXBTUYdSGqBprfxE1yD7mF.Fi
`
	httpOfThePage = `tls_config:
  ca_file: tls.crt
  server_name: podgauge
basic_auth:
  username: prometheus
  password_file: password
`
)

// TestFilesOfThePage: what docs/operations.md has does what it says.
func TestFilesOfThePage(t *testing.T) {
	yaml := func(text string) string { return "```yaml\n" + text + "```\n" }
	hasTables(t, "../../docs/operations.md", map[string]string{"web.yaml": yaml(webOfThePage), "http.yaml": yaml(httpOfThePage)})
	s := newSecrets(t, webOfThePage)
	s.put("http.yaml", httpOfThePage)
	s.put("password", password+"\n")
	w := newWorld(t, 1, "--web.config.file="+s.path("web.yaml"))
	w.untilRegistered()
	out, errs, status := asks(t, "status", "--url=https"+strings.TrimPrefix(w.url, "http"), "--http.config.file="+s.path("http.yaml"))
	if status != exitOK || !strings.Contains(out, "1 of 1 devices healthy") {
		t.Errorf("status %d, %q, %q", status, out, errs)
	}
}

// secrets is a folder with a web config, and a certificate and its key.
type secrets struct {
	t   *testing.T
	dir string
}

// newSecrets writes such a config, and a certificate.
func newSecrets(t *testing.T, config string) *secrets {
	t.Helper()
	s := &secrets{t, t.TempDir()}
	s.certify(1)
	s.put("web.yaml", config)
	return s
}

func (s *secrets) path(name string) string { return filepath.Join(s.dir, name) }

// put replaces a file, as Kubernetes does with a Secret's.
func (s *secrets) put(name, text string) {
	s.t.Helper()
	if err := os.WriteFile(s.path(name+".new"), []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
	if err := os.Rename(s.path(name+".new"), s.path(name)); err != nil {
		s.t.Fatal(err)
	}
}

// certify writes a certificate with this serial number, and its key.
func (s *secrets) certify(serial int64) {
	s.t.Helper()
	certificate, key := certificate(s.t, serial)
	s.put("tls.crt", certificate)
	s.put("tls.key", key)
}

// certificate is one for 127.0.0.1, and for the name of the page, that vouches for itself.
func certificate(t *testing.T, serial int64) (certificate, key string) {
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
	return encoded("CERTIFICATE", public), encoded("PRIVATE KEY", secret)
}

func encoded(kind string, b []byte) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: b}))
}

// answered is what a client was told.
type answered struct {
	status int
	text   string
	serial int64 // of the server's certificate; 0: it showed none
	reused bool  // the connection was there
	header http.Header
}

// client is one that trusts whoever answers, and keeps its connections.
func client(t *testing.T) *http.Client {
	t.Helper()
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, ForceAttemptHTTP2: true}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// fetch asks with a password, where there is one.
func fetch(t *testing.T, c *http.Client, url, password string) (answered, error) {
	t.Helper()
	var a answered
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) { a.reused = i.Reused }})
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	if password != "" {
		r.SetBasicAuth(user, password)
	}
	answer, err := c.Do(r)
	if err != nil {
		return a, err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return a, err
	}
	if answer.TLS != nil {
		a.serial = answer.TLS.PeerCertificates[0].SerialNumber.Int64()
	}
	a.status, a.text, a.header = answer.StatusCode, string(text), answer.Header
	return a, nil
}

// everything that is served, by path, and a word of its answer.
var everything = map[string]string{
	"/": "podgauge", "/metrics": "podgauge_build_info", api.DevicesPath: `"devices"`, api.HoldersPath: `"holders"`,
	api.IncidentsPath: `"incidents"`, "/healthz": "ok", "/readyz": "ok", "/debug/pprof/": "goroutine",
}

// TestTLSAndPasswords: the web config holds for all that is served, and the address of the
// probes is outside of it.
func TestTLSAndPasswords(t *testing.T) {
	for name, c := range map[string]struct {
		config, scheme string
		asks           bool
	}{
		"both":      {usesTLS + users, "https", true},
		"TLS":       {usesTLS, "https", false},
		"passwords": {users, "http", true},
		"neither":   {"", "http", false},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSecrets(t, c.config)
			w := newWorld(t, 1, "--web.config.file="+s.path("web.yaml"), "--web.probe-address=127.0.0.1:0", "--web.enable-pprof")
			w.untilRegistered()
			url := c.scheme + strings.TrimPrefix(w.url, "http")
			asking := client(t)
			until(t, "/readyz answers ok", func() bool {
				got, err := fetch(t, asking, w.probes+"/readyz", "")
				return err == nil && got.status == http.StatusOK
			})
			for path, has := range everything {
				for _, secret := range []string{"", "wrong", password} {
					want := http.StatusOK
					if c.asks && secret != password {
						want = http.StatusUnauthorized
					}
					got, err := fetch(t, asking, url+path, secret)
					if err != nil || got.status != want {
						t.Fatalf("%s with %q: %d, want %d, %v", path, secret, got.status, want, err)
					}
					if strings.Contains(got.text, has) != (want == http.StatusOK) {
						t.Errorf("%s with %q: %q", path, secret, got.text)
					}
					if (got.header.Get("WWW-Authenticate") != "") != (want == http.StatusUnauthorized) {
						t.Errorf("%s with %q: %v", path, secret, got.header)
					}
				}
			}
			if got, err := fetch(t, asking, w.url+"/metrics", password); c.scheme == "https" && (err != nil || got.status != http.StatusBadRequest) {
				t.Errorf("in plain HTTP: %d, %v", got.status, err)
			}
			for path := range everything {
				got, err := fetch(t, asking, w.probes+path, "")
				want := http.StatusNotFound
				if path == "/healthz" || path == "/readyz" {
					want = http.StatusOK
				}
				if err != nil || got.status != want {
					t.Errorf("%s where the probes are: %d, want %d, %v", path, got.status, want, err)
				}
			}
		})
	}
}

// TestNoProbesOfTheirOwn: without the flag nothing more listens, and its port must be free.
func TestNoProbesOfTheirOwn(t *testing.T) {
	m := webOptions{listenAddress: "127.0.0.1:0"}
	l, err := m.listen()
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if l.probes != nil {
		t.Errorf("probes are at %s", l.probes.Addr())
	}
	taken := l.all.Addr().String()
	var errs bytes.Buffer
	status := run(t.Context(), testPlatform{}, []string{"--web.listen-address=127.0.0.1:0", "--web.probe-address=" + taken}, nothing, io.Discard, &errs)
	if status != exitError || !strings.HasPrefix(errs.String(), "podgauge: serve probes: listen tcp "+taken+": ") || strings.Count(errs.String(), "\n") != 1 {
		t.Errorf("on an address that is taken: status %d, %q", status, errs.String())
	}
}

// TestBrokenWebConfig: one line, status 2, and nothing is started: the address is taken, which
// a start would say.
func TestBrokenWebConfig(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for _, c := range []struct{ config, says string }{
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
		s := newSecrets(t, c.config)
		out, errs, status := asks(t, "--web.listen-address="+taken.Addr().String(), "--web.config.file="+s.path("web.yaml"))
		if status != exitUsage || out != "" || strings.Count(errs, "\n") != 1 || !strings.Contains(errs, c.says) || !strings.HasPrefix(errs, `podgauge: --web.config.file "`+s.dir) {
			t.Errorf("%q: status %d, %q", c.config, status, errs)
		}
	}
	missing := filepath.Join(t.TempDir(), "web.yaml")
	if _, errs, status := asks(t, "--web.config.file="+missing); status != exitUsage || errs != `podgauge: --web.config.file "`+missing+`": no such file or directory`+"\n" {
		t.Errorf("a file that is missing: status %d, %q", status, errs)
	}
}

// TestLongHeaders: who sends more than 16 KB of them is not listened to.
func TestLongHeaders(t *testing.T) {
	w := newWorld(t, 1, "--web.probe-address=127.0.0.1:0")
	w.untilRegistered()
	for _, url := range []string{w.url, w.probes} {
		for bytes, want := range map[int]int{8 << 10: http.StatusOK, 32 << 10: http.StatusRequestHeaderFieldsTooLarge} {
			if got, err := fetch(t, client(t), url+"/healthz", strings.Repeat("x", bytes*3/4)); err != nil || got.status != want {
				t.Errorf("%d bytes of headers: %d, want %d, %v", bytes, got.status, want, err)
			}
		}
	}
}

// TestWebConfigTurnsWrong: whoever asks meanwhile is refused, and nobody else notices: the
// probes' own address answers, and pods start. When it is right again, so is all.
func TestWebConfigTurnsWrong(t *testing.T) {
	s := newSecrets(t, usesTLS+users)
	w := newWorld(t, 2, "--web.config.file="+s.path("web.yaml"), "--web.probe-address=127.0.0.1:0")
	w.untilRegistered()
	url := "https" + strings.TrimPrefix(w.url, "http")
	kept := client(t)
	ask := func(c *http.Client) (answered, error) { return fetch(t, c, url+"/metrics", password) }
	if got, err := ask(kept); err != nil || got.status != http.StatusOK {
		t.Fatalf("at first: %d, %v", got.status, err)
	}
	for name, wrong := range map[string]string{"yaml": "basic_auth_users: [", "certificate": strings.ReplaceAll(usesTLS, "tls.crt", "none.crt") + users, "gone": ""} {
		s.put("web.yaml", wrong)
		if name == "gone" {
			if err := os.Remove(s.path("web.yaml")); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := ask(client(t)); err == nil {
			t.Errorf("%s: a new connection is answered", name)
		}
		want := http.StatusInternalServerError
		if name == "certificate" { // which a connection has behind it
			want = http.StatusOK
		}
		if got, err := ask(kept); err != nil || got.status != want || !got.reused {
			t.Errorf("%s: on a connection that was there: %d, want %d, %v", name, got.status, want, err)
		}
		if got, err := fetch(t, kept, w.probes+"/healthz", ""); err != nil || got.status != http.StatusOK {
			t.Errorf("%s: the probe: %d, %v", name, got.status, err)
		}
		w.run(pod("research", "train", 2))
		w.drop(pod("research", "train", 2))
		s.put("web.yaml", usesTLS+users)
		for _, c := range []*http.Client{kept, client(t)} {
			if got, err := ask(c); err != nil || got.status != http.StatusOK {
				t.Errorf("%s: when it is right again: %d, %v", name, got.status, err)
			}
		}
	}
}

// TestPasswordsAndCertificatesAreReplaced: a new certificate is shown to who connects then, and
// one without its key to nobody; a password holds from the next request on.
func TestPasswordsAndCertificatesAreReplaced(t *testing.T) {
	s := newSecrets(t, usesTLS+users)
	w := newWorld(t, 1, "--web.config.file="+s.path("web.yaml"))
	w.untilRegistered()
	url := "https" + strings.TrimPrefix(w.url, "http") + "/healthz"
	kept := client(t)
	shows := func(c *http.Client, serial int64) {
		t.Helper()
		if got, err := fetch(t, c, url, password); err != nil || got.status != http.StatusOK || got.serial != serial {
			t.Errorf("%d, certificate %d, want %d, %v", got.status, got.serial, serial, err)
		}
	}
	shows(kept, 1)
	public, key := certificate(t, 2)
	s.put("tls.crt", public)
	if _, err := fetch(t, client(t), url, password); err == nil {
		t.Error("a certificate without its key is shown")
	}
	shows(kept, 1)
	s.put("tls.key", key)
	shows(client(t), 2)
	shows(kept, 1)
	s.put("web.yaml", usesTLS+strings.ReplaceAll(users, user, "other"))
	if got, err := fetch(t, kept, url, password); err != nil || got.status != http.StatusUnauthorized || !got.reused {
		t.Errorf("of a user who was taken away: %d, %v", got.status, err)
	}
}
