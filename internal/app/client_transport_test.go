package app

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/podgauge/podgauge/internal/cli"
	"github.com/podgauge/podgauge/internal/sim"
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

// TestCommandsWithoutPassword checks that commands on the node read through the socket, without the password and certificate that the
// network requires, and use the network if no process listens at the socket.
func TestCommandsWithoutPassword(t *testing.T) {
	s := newWebSecrets(t, tlsConfig+usersConfig)
	w, dir := startWithSocket(t, testSetup{machine: newMachine(sim.T4, sim.T4)}, "--web.config.file="+s.path("web.yaml"))
	w.waitRegistered()
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"status"}, "2 of 2 devices healthy"},
		{[]string{"incidents"}, "no incidents"},
		{[]string{"incidents", "-o=json", "--device=1"}, `"total":0,"incidents":[]}`},
	} {
		out, errs, status := runCLI(t, append(c.args, "--state-dir="+dir)...)
		if status != cli.ExitOK || errs != "" || !strings.Contains(out, c.want) {
			t.Errorf("%v: got status %d, %q, %q", c.args, status, out, errs)
		}
	}
	// A named address is asked over the network.
	address := strings.TrimPrefix(w.url, "http://")
	for _, flag := range []string{"--url=http://" + address, "--web.listen-address=" + address} {
		if _, errs, status := runCLI(t, "status", flag, "--state-dir="+dir); status != cli.ExitError || !strings.Contains(errs, "HTTPS server") {
			t.Errorf("%s: got status %d, %s", flag, status, errs)
		}
	}
	if _, errs, status := runCLI(t, "incidents", "--state-dir="+dir, "--limit=0"); status != cli.ExitUsage {
		t.Errorf("got status %d, %s", status, errs)
	}
}

// TestSocketPaths checks that the socket serves the API and no other path of the network.
func TestSocketPaths(t *testing.T) {
	w, dir := startWithSocket(t, testSetup{machine: newMachine(sim.T4)})
	w.waitRegistered()
	client := &http.Client{Transport: socketTransport(dir)}
	for path, want := range map[string]int{
		"/api/v1/devices": 200, "/api/v1/none": 404, "/api/v1/devices?limit=x": 400,
		"/": 404, "/metrics": 404, "/healthz": 404, operatorPath: 405,
	} {
		resp, err := client.Get("http://podgauge" + path)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("%s: got status %d, want %d", path, resp.StatusCode, want)
		}
	}
}

// TestClientConfigInPod checks that a pod's commands read only the files that the chart mounts.
func TestClientConfigInPod(t *testing.T) {
	file := filepath.Join(t.TempDir(), "http.yaml")
	if err := os.WriteFile(file, []byte("basic_auth: {username: a, password: b}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	inPod := func(name string) (string, bool) { return "10.96.0.1", name == "KUBERNETES_SERVICE_HOST" }
	for _, path := range []string{file, "/dev/stdin", "/proc/self/environ", "/etc/podgauge/../passwd", "http.yaml", "/etc/podgauge", "/"} {
		var out, errs strings.Builder
		status := run(t.Context(), testPlatform{}, []string{"status", "--url=http://127.0.0.1:1", "--http.config.file=" + path}, inPod, &out, &errs)
		if status != cli.ExitUsage || out.String() != "" || !strings.HasPrefix(errs.String(), `podgauge status: --http.config.file "`+path+`": `) || strings.Count(errs.String(), "\n") != 1 {
			t.Errorf("%s: got status %d, %s", path, status, &errs)
		}
	}
}

// TestFilesBelowAFolder checks the links of a mounted Secret, links that lead out of the folder, and files that are not regular.
func TestFilesBelowAFolder(t *testing.T) {
	dir := t.TempDir()
	folder := filepath.Join(dir, "podgauge")
	secret := filepath.Join(folder, "web/..2026_11_25")
	if err := os.MkdirAll(secret, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{filepath.Join(secret, "http.yaml"), filepath.Join(dir, "other"), filepath.Join(folder, "plain")} {
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for link, target := range map[string]string{
		"web/..data": "..2026_11_25", "web/http.yaml": "..data/http.yaml", "web/out": "../../other", "absolute": filepath.Join(dir, "other"), "stdin": "/dev/stdin", "loop": "loop",
	} {
		if err := os.Symlink(target, filepath.Join(folder, link)); err != nil {
			t.Fatal(err)
		}
	}
	for path, want := range map[string]bool{
		folder + "/web/http.yaml": true, folder + "/plain": true, folder + "/web/../plain": true, folder + "//web/..data/http.yaml": true,
		folder + "/web/out": false, folder + "/absolute": false, folder + "/stdin": false, folder + "/loop": false, folder + "/web": false, folder + "/none": false,
		folder: false, dir + "/other": false, folder + "/../other": false, folder + "2/plain": false, "/dev/null": false, "plain": false, "": false,
	} {
		if err := checkBelow(folder, path); (err == nil) != want {
			t.Errorf("%s: got %v", path, err)
		}
	}
	if err := checkBelow(dir+"/none", dir+"/none/x"); err == nil {
		t.Error("no folder: got no error")
	}
}
