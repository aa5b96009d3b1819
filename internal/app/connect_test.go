package app

import (
	"path/filepath"
	"strings"
	"testing"
)

// What the tests ask with.
const (
	trusting = "tls_config: {ca_file: tls.crt}\n"
	asked    = "basic_auth: {username: prometheus, password_file: password}\n"
)

// TestAskingBehindTLS: podgauge is asked behind a certificate and a password, and who lacks one
// is told in a line what that is.
func TestAskingBehindTLS(t *testing.T) {
	s := newSecrets(t, usesTLS+users)
	s.put("password", password+"\n")
	w := newWorld(t, 2, "--web.config.file="+s.path("web.yaml"))
	w.untilRegistered()
	address := strings.TrimPrefix(w.url, "http://")
	listens, url := "--web.listen-address="+address, "--url=https://"+address
	for _, c := range []struct {
		config string // of who asks
		args   []string
		status int
		says   string
	}{
		{trusting + asked, []string{"status", listens}, exitOK, "2 of 2 devices healthy"},
		{trusting + asked, []string{"status", url}, exitOK, "2 of 2 devices healthy"},
		{trusting + asked, []string{"incidents", url, "-o=json"}, exitOK, `"incidents":[]`},
		{"tls_config: {ca_file: tls.crt, server_name: other}\n" + asked, []string{"status", url}, exitError, "certificate is valid for podgauge, not other"},
		{trusting, []string{"status", url}, exitError, "https://" + address + " answers 401 Unauthorized; --http.config.file says who asks\n"},
		{trusting + "basic_auth: {username: prometheus, password: wrong}\n", []string{"status", url}, exitError, "answers 401 Unauthorized"},
		{asked, []string{"status", url}, exitError, "certificate signed by unknown authority"},
		{asked, []string{"status", listens}, exitError, "http://" + address + " answers 400 Bad Request; it wants TLS: --url=https://…, and --http.config.file says whom to trust\n"},
		{trusting + asked, []string{"status", "--url=http://" + address}, exitError, "it wants TLS"},
	} {
		s.put("http.yaml", c.config)
		out, errs, status := asks(t, append(c.args, "--http.config.file="+s.path("http.yaml"))...)
		said := errs
		if c.status == exitOK {
			said = out
		}
		if status != c.status || !strings.Contains(said, c.says) || (errs != "") != (c.status != exitOK) || strings.Count(errs, "\n") > 1 {
			t.Errorf("%v with %q: status %d, %q, %q", c.args, c.config, status, out, errs)
		}
	}
}

// TestWrongFilesOfQuestions: each costs one line and status 2, and nobody is asked.
func TestWrongFilesOfQuestions(t *testing.T) {
	s := newSecrets(t, "")
	for config, says := range map[string]string{
		"basic_auths: {}\n":                           "field basic_auths not found",
		"tls_config: {ca_file: none.crt}\n":           "none.crt: no such file or directory",
		"tls_config: {ca_file: web.yaml}\n":           "unable to use specified CA cert",
		"tls_config: {cert_file: tls.crt}\n":          "exactly one of key",
		"basic_auth: {password_file: none}\n":         "none: no such file or directory",
		"authorization: {credentials_file: none}\n":   "none: no such file or directory",
		asked + "authorization: {credentials: abc}\n": "at most one of basic_auth",
		"a: [\x1b[2J": "control characters are not allowed",
	} {
		s.put("http.yaml", config)
		out, errs, status := asks(t, "status", "--url=https://127.0.0.1:1", "--http.config.file="+s.path("http.yaml"))
		if status != exitUsage || out != "" || strings.Count(errs, "\n") != 1 || !strings.Contains(errs, says) || !strings.HasPrefix(errs, `podgauge status: --http.config.file "`+s.dir) {
			t.Errorf("%q: status %d, %q", config, status, errs)
		}
	}
	missing := filepath.Join(t.TempDir(), "http.yaml")
	for args, says := range map[string]string{
		"--http.config.file=" + missing:        `--http.config.file "` + missing + `": no such file or directory`,
		"--url=https://a:secret@127.0.0.1:1/x": "--url: want no name and password in it: --http.config.file has them",
	} {
		if _, errs, status := asks(t, "incidents", args); status != exitUsage || errs != "podgauge incidents: "+says+"\n" {
			t.Errorf("%s: status %d, %q", args, status, errs)
		}
	}
}
