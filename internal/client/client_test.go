package client_test

import (
	"encoding/pem"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/podgauge/podgauge/internal/cli"
	"github.com/podgauge/podgauge/internal/client"
	"github.com/podgauge/podgauge/internal/operator"
	"github.com/podgauge/podgauge/test/helpers/require"
	"github.com/spf13/cobra"
)

// runIn runs a command line of a process that may read client configs below a folder; empty: all.
func runIn(t *testing.T, folder string, args ...string) (out, errs string, status int) {
	t.Helper()
	root := &cobra.Command{Use: "podgauge", SilenceErrors: true, SilenceUsage: true}
	root.AddCommand(client.NewStatusCommand(folder), client.NewIncidentsCommand(folder), client.NewDeviceCommand(), client.NewDriverCommand())
	var stdout, stderr strings.Builder
	root.SetOut(&stdout)
	root.SetArgs(args)
	command, err := root.ExecuteContextC(t.Context())
	status = cli.Exit(&stderr, command.CommandPath(), err)
	return stdout.String(), stderr.String(), status
}

// wantError checks that a command line causes one line, which contains a text.
func wantError(t *testing.T, folder string, args []string, wantStatus int, want string) {
	t.Helper()
	out, errs, status := runIn(t, folder, args...)
	if status != wantStatus || out != "" || !strings.Contains(errs, want) || !strings.HasPrefix(errs, "podgauge "+args[0]) || strings.Count(errs, "\n") != 1 {
		t.Errorf("%q: got status %d, %q, %q, want %s", args, status, out, errs, want)
	}
}

// respond serves a constant response.
func respond(t *testing.T, status int, body string) (url string) {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Location", "http://127.0.0.1:1/")
		w.WriteHeader(status)
		io.WriteString(w, body)
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// TestErrors checks that each error causes one line.
func TestErrors(t *testing.T) {
	stale := t.TempDir()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(stale, operator.SocketName), Net: "unix"})
	require.NoError(t, err)
	l.SetUnlinkOnClose(false)
	l.Close()
	for _, c := range []struct {
		args   []string
		status int
		want   string
	}{
		{[]string{"status", "--url=http://127.0.0.1:1"}, cli.ExitError, "no response from http://127.0.0.1:1: dial tcp 127.0.0.1:1: connect: connection refused; set --url to the address of podgauge"},
		{[]string{"status", "--url=" + respond(t, 404, "404 page not found")}, cli.ExitError, "returned 404 Not Found: 404 page not found"},
		{[]string{"status", "--url=" + respond(t, 500, `{"error":"a\nb\u001b[31m"}`)}, cli.ExitError, `returned a�b�[31m`},
		{[]string{"status", "--url=" + respond(t, 302, "")}, cli.ExitError, "returned 302 Found"},
		{[]string{"status", "--url=" + respond(t, 200, "<html>")}, cli.ExitError, "not a podgauge response: invalid character"},
		{[]string{"status", "--url=" + respond(t, 200, strings.Repeat(" ", 32<<20+1))}, cli.ExitError, "response larger than 33554432 bytes"},
		{[]string{"status", "-o", "yaml", "--url=" + respond(t, 200, "<html>")}, cli.ExitError, "not a podgauge response: invalid JSON"},
		{[]string{"status", "--url=localhost:9400"}, cli.ExitUsage, `--url "localhost:9400": expected http://host:port`},
		{[]string{"status", "--url=ftp://a"}, cli.ExitUsage, `--url "ftp://a": expected http://host:port`},
		{[]string{"status", "--url=https://a:secret@127.0.0.1:1/x"}, cli.ExitUsage, "--url: user and password not allowed: set both in --http.config.file"},
		{[]string{"status", "--web.listen-address=9400"}, cli.ExitUsage, `--web.listen-address "9400": expected host:port`},
		{[]string{"status", "-o", "xml"}, cli.ExitUsage, `--output "xml": expected table, wide, json or yaml`},
		{[]string{"status", "GPU-0"}, cli.ExitUsage, `unexpected argument "GPU-0"`},
		{[]string{"status", "--pod=a"}, cli.ExitUsage, "unknown flag: --pod"},
		{[]string{"incidents", "--since=yesterday"}, cli.ExitUsage, `--since "yesterday": expected a time`},
		{[]string{"incidents", "a\x1b[2Jb"}, cli.ExitUsage, `unexpected argument "a\x1b[2Jb"`},

		{[]string{"device", "retire", "0"}, cli.ExitUsage, "--reason: required to retire a device"},
		{[]string{"device", "retire", "0", "--reason=a\nb"}, cli.ExitUsage, "--reason: expected one line of printable text"},
		{[]string{"device", "retire", "", "--reason=x"}, cli.ExitUsage, "expected a UUID, the index of a GPU"},
		{[]string{"device", "trust", "0", "--reason=x"}, cli.ExitUsage, "unknown flag: --reason"},
		{[]string{"device", "reset", "0"}, cli.ExitUsage, `expected podgauge device retire DEVICE --reason=…, podgauge device trust DEVICE, or podgauge device forget DEVICE`},
		{[]string{"device", "retire", "0", "1"}, cli.ExitUsage, "expected one device"},
		{[]string{"device", "trust", "0", "--state-dir=/no/folder"}, cli.ExitError, "no socket /no/folder/podgauge.sock: run podgauge with --state-dir=/no/folder"},
		{[]string{"device", "trust", "0", "--state-dir=" + stale}, cli.ExitError, "podgauge is not running: no process listens at " + stale},
		{[]string{"device", "trust", "0", "--state-dir=/dev/null"}, cli.ExitError, "connect to podgauge: "},
		{[]string{"driver"}, cli.ExitUsage, "expected podgauge driver release or podgauge driver resume"},
		{[]string{"driver", "release", "0"}, cli.ExitUsage, `unexpected argument "0"`},
	} {
		wantError(t, "", c.args, c.status, c.want)
	}
}

// TestURL checks that the default URL follows the daemon's flag of the listen address.
func TestURL(t *testing.T) {
	for args, want := range map[string]string{
		"--web.listen-address=:1":                     "http://127.0.0.1:1",
		"--web.listen-address=0.0.0.0:1":              "http://127.0.0.1:1",
		"--web.listen-address=[::]:1":                 "http://127.0.0.1:1",
		"--web.listen-address=127.0.0.2:1":            "http://127.0.0.2:1",
		"--web.listen-address=[::1]:1":                "http://[::1]:1",
		"--url=http://127.0.0.3:1/behind/":            "http://127.0.0.3:1/behind",
		"--web.listen-address=x --url=http://[::1]:1": "http://[::1]:1",
	} {
		wantError(t, "", append([]string{"status"}, strings.Fields(args)...), cli.ExitError, "no response from "+want+": ")
	}
}

// TestTLSAndPasswords checks that commands use certificate and password, and report a missing one in one line.
func TestTLSAndPasswords(t *testing.T) {
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, password, _ := r.BasicAuth(); password != "correct" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		io.WriteString(w, `{"node":"node-a"}`)
	}))
	defer server.Close()
	dir := t.TempDir()
	write := func(name, text string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	write("ca.crt", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})))
	write("password", "correct\n")
	const tls, auth = "tls_config: {ca_file: ca.crt}\n", "basic_auth: {username: a, password_file: password}\n"
	address := strings.TrimPrefix(server.URL, "https://")
	for _, flag := range []string{"--url=" + server.URL, "--web.listen-address=" + address} {
		out, errs, status := runIn(t, "", "status", flag, "--http.config.file="+write("http.yaml", tls+auth))
		if status != cli.ExitOK || !strings.HasPrefix(out, "node-a: ") {
			t.Errorf("%s: got status %d, %s%s", flag, status, out, errs)
		}
	}
	for _, c := range []struct {
		config, flag string
		status       int
		want         string
	}{
		{tls, "--url=" + server.URL, cli.ExitError, server.URL + " returned 401 Unauthorized"},
		{tls + "basic_auth: {username: a, password: wrong}\n", "--url=" + server.URL, cli.ExitError, "returned 401 Unauthorized"},
		{"tls_config: {ca_file: ca.crt, server_name: other}\n" + auth, "--url=" + server.URL, cli.ExitError, "not other"},
		{auth, "--url=" + server.URL, cli.ExitError, "certificate signed by unknown authority"},
		{auth, "--web.listen-address=" + address, cli.ExitError, "http://" + address + " returned 400 Bad Request: Client sent an HTTP request to an HTTPS server.\n"},
		{tls + "basic_auth: {username: a, password_file: none}\n", "--url=" + server.URL, cli.ExitUsage, "none: no such file or directory"},
		{"basic_auths: {}\n", "", cli.ExitUsage, "field basic_auths not found"},
		{"tls_config: {ca_file: none.crt}\n", "", cli.ExitUsage, "none.crt: no such file or directory"},
		{"tls_config: {ca_file: password}\n", "", cli.ExitUsage, "unable to use specified CA cert"},
		{"tls_config: {cert_file: ca.crt}\n", "", cli.ExitUsage, "exactly one of key"},
		{auth + "authorization: {credentials: abc}\n", "", cli.ExitUsage, "at most one of basic_auth"},
		{"a: [\x1b[2J", "", cli.ExitUsage, "control characters are not allowed"},
	} {
		args := []string{"status", "--http.config.file=" + write("http.yaml", c.config)}
		if c.flag != "" {
			args = append(args, c.flag)
		}
		wantError(t, "", args, c.status, c.want)
	}
	missing := filepath.Join(dir, "missing")
	wantError(t, "", []string{"status", "--http.config.file=" + missing}, cli.ExitUsage, `--http.config.file "`+missing+`": no such file or directory`)
}

// TestConfigInPod checks the links of a mounted Secret, links that lead out of the folder, and files that are not
// regular.
func TestConfigInPod(t *testing.T) {
	dir := t.TempDir()
	folder := filepath.Join(dir, "podgauge")
	secret := filepath.Join(folder, "web/..2026_11_25")
	require.NoError(t, os.MkdirAll(secret, 0o700))
	for _, path := range []string{filepath.Join(secret, "http.yaml"), filepath.Join(dir, "other"), filepath.Join(folder, "plain")} {
		require.NoError(t, os.WriteFile(path, nil, 0o600))
	}
	for link, target := range map[string]string{
		"web/..data": "..2026_11_25", "web/http.yaml": "..data/http.yaml", "web/out": "../../other", "absolute": filepath.Join(dir, "other"), "stdin": "/dev/stdin", "loop": "loop",
	} {
		require.NoError(t, os.Symlink(target, filepath.Join(folder, link)))
	}
	for _, path := range []string{"/web/http.yaml", "/plain", "/web/../plain", "//web/..data/http.yaml"} {
		wantError(t, folder, []string{"status", "--url=http://127.0.0.1:1", "--http.config.file=" + folder + path}, cli.ExitError, "no response from")
	}
	for _, path := range []string{
		folder + "/web/out", folder + "/absolute", folder + "/stdin", folder + "/loop", folder + "/web", folder + "/none", folder, dir + "/other",
		folder + "/../other", folder + "2/plain", "/dev/null", "/dev/stdin", "/proc/self/environ", "plain", "/",
	} {
		want := `podgauge status: --http.config.file "` + path + `": in a pod, expected a file below ` + folder + ": "
		wantError(t, folder, []string{"status", "--url=http://127.0.0.1:1", "--http.config.file=" + path}, cli.ExitUsage, want)
	}
}

// fakeProcess is a process in a fake /proc.
type fakeProcess struct {
	name, exe, mountNS string
	argv               []string
}

func newFakeProc(t *testing.T, processes ...fakeProcess) string {
	t.Helper()
	dir := t.TempDir()
	for _, p := range processes {
		process := filepath.Join(dir, p.name)
		require.NoError(t, os.MkdirAll(filepath.Join(process, "ns"), 0o755))
		require.NoError(t, os.Symlink("/bin/"+p.exe, filepath.Join(process, "exe")))
		require.NoError(t, os.Symlink(p.mountNS, filepath.Join(process, "ns/mnt")))
		require.NoError(t, os.WriteFile(filepath.Join(process, "cmdline"), []byte(strings.Join(p.argv, "\x00")+"\x00"), 0o600))
	}
	return dir
}

// TestDoctorUsesDaemonFlags checks that the flags are those of the same program in the same container.
func TestDoctorUsesDaemonFlags(t *testing.T) {
	argv := []string{"podgauge", "doctor", "--state-dir=/mine"}
	self, doctor := fakeProcess{"self", "podgauge", "mnt:[1]", argv}, fakeProcess{"7", "podgauge", "mnt:[1]", argv}
	daemon := []string{"/usr/bin/podgauge", "--state-dir=/state", "--kubelet-dir", "/k"}
	beside := []string{"doctor", "--state-dir=/state", "--kubelet-dir", "/k", "--state-dir=/mine"}
	for name, c := range map[string]struct {
		others []fakeProcess
		args   []string
		want   []string
	}{
		"beside the daemon":   {[]fakeProcess{{"1", "podgauge", "mnt:[1]", daemon}}, argv[1:], beside},
		"beside two":          {[]fakeProcess{{"1", "podgauge", "mnt:[1]", daemon}, {"2", "podgauge", "mnt:[1]", []string{"podgauge", "status"}}}, argv[1:], beside},
		"alone":               {nil, argv[1:], argv[1:]},
		"another container's": {[]fakeProcess{{"1", "podgauge", "mnt:[2]", daemon}}, argv[1:], argv[1:]},
		"another program":     {[]fakeProcess{{"1", "other", "mnt:[1]", daemon}}, argv[1:], argv[1:]},
		"without flags":       {[]fakeProcess{{"1", "podgauge", "mnt:[1]", []string{"podgauge"}}}, argv[1:], argv[1:]},
		"capture":             {[]fakeProcess{{"1", "podgauge", "mnt:[1]", daemon}}, []string{"capture"}, []string{"capture", "--state-dir=/state", "--kubelet-dir", "/k"}},
		"another command":     {[]fakeProcess{{"1", "podgauge", "mnt:[1]", daemon}}, []string{"validate", "f"}, []string{"validate", "f"}},
	} {
		got, note := client.WithDaemonFlags(newFakeProc(t, append(c.others, self, doctor)...), c.args)
		wantNote := ""
		if len(c.want) > len(c.args) {
			wantNote = "with the flags of the daemon: --state-dir=/state --kubelet-dir /k"
		}
		if !slices.Equal(got, c.want) || note != wantNote {
			t.Errorf("%s: got %q, %q, want %q", name, got, note, c.want)
		}
	}
	if got, note := client.WithDaemonFlags(t.TempDir(), argv[1:]); !slices.Equal(got, argv[1:]) || note != "" {
		t.Errorf("no processes: got %q, %q", got, note)
	}
}
