package server_test

import (
	"context"
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/web/server"
	"github.com/podgauge/podgauge/test/helpers/background"
	"github.com/podgauge/podgauge/test/helpers/certificate"
	"github.com/podgauge/podgauge/test/helpers/require"
	"github.com/podgauge/podgauge/test/helpers/testfile"
	"github.com/prometheus/common/config"
	"github.com/spf13/pflag"
)

// Contents of the web configs in tests. The hash is of the password, as in docs/how-to/tls.md but with the lowest cost.
const (
	testUser     = "prometheus"
	testPassword = "correct horse"
	usersConfig  = "basic_auth_users:\n  prometheus: $2y$04$yW2YRSXAMk7fYEkv0rXQXej4GwJtSlL0ED7LQZB5tE.Ut.eIQX.9W\n"
	tlsConfig    = "tls_server_config:\n  cert_file: tls.crt\n  key_file: tls.key\n"
)

// secrets is a folder with a web config, a certificate and its key.
type secrets struct {
	t   *testing.T
	dir string
}

func newSecrets(t *testing.T, webConfig string) *secrets {
	t.Helper()
	s := &secrets{t, t.TempDir()}
	certificate, key := certificate.New(t, 1)
	s.write("tls.crt", certificate)
	s.write("tls.key", key)
	s.write("web.yaml", webConfig)
	return s
}

func (s *secrets) path(name string) string { return filepath.Join(s.dir, name) }

// write replaces a file, as Kubernetes does for a mounted Secret.
func (s *secrets) write(name, text string) {
	s.t.Helper()
	require.NoError(s.t, os.WriteFile(s.path(name+".new"), []byte(text), 0o600))
	require.NoError(s.t, os.Rename(s.path(name+".new"), s.path(name)))
}

// parse returns the options of a command line.
func parse(t *testing.T, args ...string) *server.Options {
	t.Helper()
	o, f := &server.Options{}, pflag.NewFlagSet("", pflag.ContinueOnError)
	o.AddFlags(f)
	require.NoError(t, f.Parse(args))
	return o
}

// start serves a page at every path, and at another address the probes, and returns both addresses.
func start(t *testing.T, args ...string) (address, probes string) {
	t.Helper()
	o := parse(t, append([]string{"--web.listen-address=127.0.0.1:0", "--web.probe-address=127.0.0.1:0"}, args...)...)
	o.Node = "gpu-1.example.com"
	require.NoError(t, o.Check())
	l, err := o.Listen()
	require.NoError(t, err)
	page := func(text string) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, text) })
	}
	for _, task := range o.Tasks(l, page("page"), page("probe"), slog.New(slog.DiscardHandler)) {
		background.Run(t, task)
	}
	return l.Main.Addr().String(), l.Probes.Addr().String()
}

// newClient returns a client that trusts every server and keeps connections open.
func newClient(t *testing.T) *http.Client {
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, ForceAttemptHTTP2: true}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// response is a response; status is 0 after an error.
type response struct {
	status int
	text   string
	serial int64 // of the server's certificate
	reused bool  // the request used an existing connection
}

// get sends a request with headers, and with a password unless it is empty.
func get(t *testing.T, c *http.Client, url, password string, headers ...string) (a response) {
	t.Helper()
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) { a.reused = i.Reused }})
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	require.NoError(t, err)
	for _, line := range headers {
		name, value, _ := strings.Cut(line, ": ")
		r.Header.Set(name, value)
		r.Host = r.Header.Get("Host")
	}
	if password != "" {
		r.SetBasicAuth(testUser, password)
	}
	resp, err := c.Do(r)
	if err != nil {
		return response{}
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(resp.Body)
	if resp.TLS != nil {
		a.serial = resp.TLS.PeerCertificates[0].SerialNumber.Int64()
	}
	a.status, a.text = resp.StatusCode, string(text)
	return a
}

// TestTLSAndPasswords checks that the web config applies to all paths, but not to the address of the probes.
func TestTLSAndPasswords(t *testing.T) {
	for webConfig, scheme := range map[string]string{tlsConfig + usersConfig: "https", tlsConfig: "https", usersConfig: "http", "": "http"} {
		address, probes := start(t, "--web.config.file="+newSecrets(t, webConfig).path("web.yaml"))
		c := newClient(t)
		for _, password := range []string{"", "wrong", testPassword} {
			want := response{status: http.StatusOK, text: "page"}
			if strings.Contains(webConfig, usersConfig) && password != testPassword {
				want = response{status: http.StatusUnauthorized, text: "Unauthorized\n"}
			}
			if got := get(t, c, scheme+"://"+address+"/metrics", password); got.status != want.status || got.text != want.text {
				t.Errorf("%q with %q: got %+v, want %+v", webConfig, password, got, want)
			}
		}
		if got := get(t, c, "http://"+address, testPassword); scheme == "https" && got.status != http.StatusBadRequest {
			t.Errorf("in plain HTTP: got %+v", got)
		}
		if got := get(t, c, "http://"+probes, ""); got.text != "probe" {
			t.Errorf("%q: probe: got %+v", webConfig, got)
		}
	}
}

// TestConfigFilesInDocs checks that the files in docs/how-to/tls.md work.
func TestConfigFilesInDocs(t *testing.T) {
	page := testfile.Read(t, "../../../docs/how-to/tls.md")
	files := map[string]string{}
	for _, file := range regexp.MustCompile("(?s)<!-- (\\S+) -->\n```yaml\n(.*?)```").FindAllStringSubmatch(page, -1) {
		files[file[1]] = file[2]
	}
	s := newSecrets(t, files["web.yaml"])
	s.write("http.yaml", files["http.yaml"])
	s.write("password", testPassword+"\n")
	address, _ := start(t, "--web.config.file="+s.path("web.yaml"))
	clientConfig, _, err := config.LoadHTTPConfigFile(s.path("http.yaml"))
	require.NoError(t, err)
	c, err := config.NewClientFromConfig(*clientConfig, "", config.WithKeepAlivesDisabled())
	require.NoError(t, err)
	if got := get(t, c, "https://"+address, ""); got.text != "page" {
		t.Errorf("got %+v", got)
	}
}

// TestCheck checks that each wrong flag or file is an error of one line.
func TestCheck(t *testing.T) {
	s := newSecrets(t, "")
	for _, c := range []struct{ text, want string }{
		{"--web.listen-address=9400", `--web.listen-address "9400": expected host:port or :port`},
		{"--web.listen-address=:99999", "not a port"},
		{"--web.listen-address=:abc", "not a port"},
		{"--web.listen-address=localhost:", "expected a port"},
		{"--web.probe-address=9401", `--web.probe-address "9401": expected host:port or :port`},
		{"--web.telemetry-path=metrics", "expected a path that begins with /"},
		{"--web.telemetry-path=/{x", "expected a path that begins with /"},
		{"--web.telemetry-path=/healthz", "reserved for a probe"},
		{"--web.telemetry-path=//metrics", "expected /metrics"},
		{"--web.telemetry-path=/a/../b", "expected /b"},
		{"--web.telemetry-path=/metrics/", "expected /metrics"},
		{"--web.telemetry-path=/debug/pprof", "reserved for profiles"},
		{"--web.telemetry-path=/api", "reserved for the JSON API"},
		{"--web.allowed-hosts=https://gpu.example.com", `--web.allowed-hosts "https://gpu.example.com": expected a host name`},
		{"--web.allowed-hosts=gpu.example.com:9400", "expected a host name"},
		{"--web.allowed-hosts=*.example.com", "expected a host name"},
		{"--web.config.file=/no/such/file", `--web.config.file "/no/such/file": no such file or directory`},
		{"basic_auth_users: [a]\n", "line 1: cannot unmarshal"},
		{"basic_auth_user: {}\n", "field basic_auth_user not found"},
		{"basic_auth_users: {prometheus: secret}\n", "too short to be a bcrypted password"},
		{"tls_server_config: {cert_file: tls.crt}\n", "missing one of key or key_file"},
		{"tls_server_config: {cert_file: x, key_file: y}\n", "x: no such file"},
		{"http_server_config: {headers: {Server: x}}\n", `HTTP header "Server" can not be configured`},
		{"\x00\x1b[2J", "control characters are not allowed"},
		{tlsConfig + "  client_auth_type: Perhaps\n", "invalid ClientAuth: Perhaps"},
		{strings.ReplaceAll(tlsConfig, "tls.crt", "tls.key"), "failed to load X509KeyPair"},
	} {
		flag := c.text
		if !strings.HasPrefix(c.text, "--") {
			s.write("web.yaml", c.text)
			flag = "--web.config.file=" + s.path("web.yaml")
		}
		if err := parse(t, flag).Check(); err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: got %v, want %s", c.text, err, c.want)
		}
	}
}

// TestLongHeaders checks that requests with more than 16 KB of headers are rejected.
func TestLongHeaders(t *testing.T) {
	address, _ := start(t)
	for bytes, want := range map[int]int{8 << 10: http.StatusOK, 32 << 10: http.StatusRequestHeaderFieldsTooLarge} {
		got := get(t, newClient(t), "http://"+address, "", "A: "+strings.Repeat("x", bytes))
		if got.status != want { // the server closes the connection while the client may still write
			t.Errorf("%d bytes of headers: got %+v, want status %d", bytes, got, want)
		}
	}
}

// TestSlowClients checks that requests are answered while 200 clients of the same address send 50 kB of headers in
// pieces, again and again.
func TestSlowClients(t *testing.T) {
	address, probes := start(t)
	var clients sync.WaitGroup
	defer clients.Wait()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var rounds atomic.Int32
	for range 200 {
		clients.Go(func() {
			for ctx.Err() == nil {
				sendSlowly(ctx, address)
				rounds.Add(1)
			}
		})
	}
	for end := time.Now().Add(time.Minute); rounds.Load() < 200 && time.Now().Before(end); {
		time.Sleep(20 * time.Millisecond)
	}
	for range 100 {
		for url, want := range map[string]string{"http://" + address: "page", "http://" + probes: "probe"} {
			c := newClient(t)
			if got := get(t, c, url, ""); got.text != want {
				t.Errorf("%s: got %+v", url, got)
			}
			c.CloseIdleConnections()
		}
	}
}

// sendSlowly sends 50 kB of headers on a new connection in pieces of 1 kB.
func sendSlowly(ctx context.Context, address string) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
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
	io.Copy(io.Discard, conn) // until the server closes it
}

// TestWebConfigBecomesInvalid checks that requests are rejected while the file is invalid, but the probe address works.
// A valid file restores the service.
func TestWebConfigBecomesInvalid(t *testing.T) {
	s := newSecrets(t, tlsConfig+usersConfig)
	address, probes := start(t, "--web.config.file="+s.path("web.yaml"))
	kept := newClient(t)
	scrape := func(c *http.Client) response { return get(t, c, "https://"+address, testPassword) }
	if got := scrape(kept); got.status != http.StatusOK {
		t.Fatalf("valid config: got %+v", got)
	}
	for name, wrong := range map[string]string{"yaml": "basic_auth_users: [", "certificate": strings.ReplaceAll(tlsConfig, "tls.crt", "none.crt") + usersConfig, "gone": ""} {
		s.write("web.yaml", wrong)
		if name == "gone" {
			os.Remove(s.path("web.yaml"))
		}
		if got := scrape(newClient(t)); got.status != 0 {
			t.Errorf("%s: on a new connection: got %+v", name, got)
		}
		want := http.StatusInternalServerError
		if name == "certificate" { // not needed on an open connection
			want = http.StatusOK
		}
		if got := scrape(kept); got.status != want || !got.reused {
			t.Errorf("%s: on an open connection: got %+v, want status %d", name, got, want)
		}
		if got := get(t, kept, "http://"+probes, ""); got.text != "probe" {
			t.Errorf("%s: probe: got %+v", name, got)
		}
		s.write("web.yaml", tlsConfig+usersConfig)
		for _, c := range []*http.Client{kept, newClient(t)} {
			if got := scrape(c); got.status != http.StatusOK {
				t.Errorf("%s: after a valid config: got %+v", name, got)
			}
		}
	}
}

// TestPasswordsAndCertificatesAreReplaced checks that new connections get a new certificate, unless its key is missing.
// A new password applies from the next request on. Connections have one request at a time.
func TestPasswordsAndCertificatesAreReplaced(t *testing.T) {
	s := newSecrets(t, tlsConfig+usersConfig)
	address, _ := start(t, "--web.config.file="+s.path("web.yaml"))
	kept := newClient(t)
	wantCertificate := func(c *http.Client, serial int64) {
		t.Helper()
		if got := get(t, c, "https://"+address, testPassword); got.status != http.StatusOK || got.serial != serial {
			t.Errorf("got %+v, want certificate %d", got, serial)
		}
	}
	wantCertificate(kept, 1)
	public, key := certificate.New(t, 2)
	s.write("tls.crt", public)
	if got := get(t, newClient(t), "https://"+address, testPassword); got.status != 0 {
		t.Error("a certificate without its key is used")
	}
	wantCertificate(kept, 1)
	s.write("tls.key", key)
	wantCertificate(newClient(t), 2)
	wantCertificate(kept, 1)
	s.write("web.yaml", tlsConfig+strings.ReplaceAll(usersConfig, testUser, "other"))
	if got := get(t, kept, "https://"+address, testPassword); got.status != http.StatusUnauthorized || !got.reused {
		t.Errorf("removed user: got %+v", got)
	}
	conn, err := tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2", "http/1.1"}})
	require.NoError(t, err)
	defer conn.Close()
	if got := conn.ConnectionState().NegotiatedProtocol; got == "h2" {
		t.Errorf("protocol: got %q", got)
	}
}

// TestForeignHosts checks that a page whose DNS name leads to podgauge (DNS rebinding) reads nothing, and that
// Prometheus, kubectl port-forward and the kubelet's probes get answers.
func TestForeignHosts(t *testing.T) {
	address, _ := start(t, "--web.allowed-hosts=gpu.example.com,other.example.com")
	c := newClient(t)
	for host := range strings.FieldsSeq(`127.0.0.1:9400 [fd00::1]:9400 10.0.0.7 [fd00::1] localhost:9400 node-a:9400 podgauge
		podgauge.podgauge.svc:9400 10-0-0-7.podgauge.gpus.svc.cluster.local podgauge.podgauge.svc.cluster.local. ip-10-0-0-7.ec2.internal
		GPU.example.com:443 other.example.com podgauge.gpus:9400 gpu-1.corp podgauge.gpus.svc.k8s.corp dev gpu-1.example.com:9400`) {
		if got := get(t, c, "http://"+address+"/metrics", "", "Host: "+host); got.text != "page" {
			t.Errorf("%s: got %+v", host, got)
		}
	}
	for host := range strings.FieldsSeq(`evil.com:9400 gpu.example.com.evil.net x.gpu.example.com 127.0.0.1.evil.com svc.evil.com
		podgauge.podgauge.svc.evil.com:9400 podgauge.dev:9400 evil.github.io evil.co.uk. EVIL.COM gpu-2.example.com:9400`) {
		for _, path := range []string{"/", "/metrics", "/api/v1/devices", "/healthz/x"} {
			got := get(t, c, "http://"+address+path, "", "Host: "+host)
			if got.status != http.StatusForbidden || !strings.Contains(got.text, "--web.allowed-hosts") || strings.Count(got.text, "\n") != 1 {
				t.Errorf("%s %s: got %+v", host, path, got)
			}
		}
		for _, path := range []string{"/healthz", "/readyz"} {
			if got := get(t, c, "http://"+address+path, "", "Host: "+host); got.status != http.StatusOK {
				t.Errorf("%s %s: got %+v", host, path, got)
			}
		}
	}
	// The API server's proxy passes the Host of kubectl podgauge, which is the API server's. Scripts of pages cannot set
	// Sec- headers.
	for header, want := range map[string]int{"none": http.StatusOK, "same-origin": http.StatusForbidden} {
		got := get(t, c, "http://"+address, "", "Host: api.cluster.example.com", "Sec-Fetch-Site: "+header)
		if got.status != want {
			t.Errorf("Sec-Fetch-Site %s: got %+v, want status %d", header, got, want)
		}
	}
}

// TestMetricsOnly checks that only metrics and probes are served.
func TestMetricsOnly(t *testing.T) {
	address, _ := start(t, "--web.metrics-only", "--web.enable-pprof")
	for path, want := range map[string]int{
		"/metrics": 200, "/healthz": 200, "/readyz": 200,
		"/": 404, "/api/v1/devices": 404, "/debug/pprof/": 404, "/metrics/": 404, "//api/v1/devices": 404,
	} {
		if got := get(t, newClient(t), "http://"+address+path, ""); got.status != want {
			t.Errorf("%s: got %+v, want status %d", path, got, want)
		}
	}
}

// FuzzTelemetryPath checks that every accepted path can be served.
func FuzzTelemetryPath(f *testing.F) {
	for _, seed := range []string{"/metrics", "/", "//", "/a/b", "/healthz", "/debug/pprof/heap", "/é", "/a//b", "/..", "/{x}", "GET /", "/a b", "/%"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, path string) {
		o := server.Options{ListenAddress: ":0", TelemetryPath: path}
		if o.Check() != nil {
			return
		}
		w := httptest.NewRecorder()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://localhost"+path, http.NoBody)
		if err != nil {
			return // bytes that no URL has
		}
		mux := http.NewServeMux()
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) })
		mux.HandleFunc("GET /healthz", http.NotFound)
		mux.HandleFunc("GET /debug/pprof/", http.NotFound)
		if mux.ServeHTTP(w, r); w.Code != http.StatusTeapot {
			t.Errorf("%q: got status %d", path, w.Code)
		}
	})
}
