package app

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/podgauge/podgauge/internal/cli"
)

// Parts of client configs.
const (
	clientTLSConfig  = "tls_config: {ca_file: tls.crt}\n"
	clientAuthConfig = "basic_auth: {username: prometheus, password_file: password}\n"
)

// TestClientTLS checks that client commands use certificate and password, and report a missing one in one line.
func TestClientTLS(t *testing.T) {
	s := newWebSecrets(t, tlsConfig+usersConfig)
	s.write("password", testPassword+"\n")
	w := newTestApp(t, 2, "--web.config.file="+s.path("web.yaml"))
	w.waitRegistered()
	address := strings.TrimPrefix(w.url, "http://")
	listenFlag, urlFlag := "--web.listen-address="+address, "--url=https://"+address
	for _, c := range []struct {
		config string // of the client
		args   []string
		status int
		want   string
	}{
		{clientTLSConfig + clientAuthConfig, []string{"status", listenFlag}, cli.ExitOK, "2 of 2 devices healthy"},
		{clientTLSConfig + clientAuthConfig, []string{"status", urlFlag}, cli.ExitOK, "2 of 2 devices healthy"},
		{clientTLSConfig + clientAuthConfig, []string{"incidents", urlFlag, "-o=json"}, cli.ExitOK, `"incidents":[]`},
		{"tls_config: {ca_file: tls.crt, server_name: other}\n" + clientAuthConfig, []string{"status", urlFlag}, cli.ExitError, "certificate is valid for podgauge, not other"},
		{clientTLSConfig, []string{"status", urlFlag}, cli.ExitError, "https://" + address + " returned 401 Unauthorized: Unauthorized\n"},
		{clientTLSConfig + "basic_auth: {username: prometheus, password: wrong}\n", []string{"status", urlFlag}, cli.ExitError, "returned 401 Unauthorized"},
		{clientAuthConfig, []string{"status", urlFlag}, cli.ExitError, "certificate signed by unknown authority"},
		{clientAuthConfig, []string{"status", listenFlag}, cli.ExitError, "http://" + address + " returned 400 Bad Request: Client sent an HTTP request to an HTTPS server.\n"},
		{clientTLSConfig + clientAuthConfig, []string{"status", "--url=http://" + address}, cli.ExitError, "to an HTTPS server"},
		{clientTLSConfig + "basic_auth: {username: prometheus, password_file: none}\n", []string{"status", urlFlag}, cli.ExitUsage, "none: no such file or directory"},
	} {
		s.write("http.yaml", c.config)
		out, errs, status := runCLI(t, append(c.args, "--http.config.file="+s.path("http.yaml"))...)
		got := errs
		if c.status == cli.ExitOK {
			got = out
		}
		if status != c.status || !strings.Contains(got, c.want) || (errs != "") != (c.status != cli.ExitOK) || strings.Count(errs, "\n") > 1 {
			t.Errorf("%v with %q: got status %d, %q, %q", c.args, c.config, status, out, errs)
		}
	}
}

// TestClientConfigErrors checks that each error causes one line and exit status 2, without a request.
func TestClientConfigErrors(t *testing.T) {
	s := newWebSecrets(t, "")
	for config, want := range map[string]string{
		"basic_auths: {}\n":                                      "field basic_auths not found",
		"tls_config: {ca_file: none.crt}\n":                      "none.crt: no such file or directory",
		"tls_config: {ca_file: web.yaml}\n":                      "unable to use specified CA cert",
		"tls_config: {cert_file: tls.crt}\n":                     "exactly one of key",
		clientAuthConfig + "authorization: {credentials: abc}\n": "at most one of basic_auth",
		"a: [\x1b[2J": "control characters are not allowed",
	} {
		s.write("http.yaml", config)
		out, errs, status := runCLI(t, "status", "--url=https://127.0.0.1:1", "--http.config.file="+s.path("http.yaml"))
		if status != cli.ExitUsage || out != "" || strings.Count(errs, "\n") != 1 || !strings.Contains(errs, want) || !strings.HasPrefix(errs, `podgauge status: --http.config.file "`+s.dir) {
			t.Errorf("%q: got status %d, %q", config, status, errs)
		}
	}
	missing := filepath.Join(t.TempDir(), "http.yaml")
	for args, want := range map[string]string{
		"--http.config.file=" + missing:        `--http.config.file "` + missing + `": no such file or directory`,
		"--url=https://a:secret@127.0.0.1:1/x": "--url: user and password not allowed: set both in --http.config.file",
	} {
		if _, errs, status := runCLI(t, "incidents", args); status != cli.ExitUsage || errs != "podgauge incidents: "+want+"\n" {
			t.Errorf("%s: got status %d, %q", args, status, errs)
		}
	}
}
