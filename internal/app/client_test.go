package app_test

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/podgauge/podgauge/internal/app"
	"github.com/podgauge/podgauge/internal/cli"
	"github.com/podgauge/podgauge/internal/operator"
	"github.com/podgauge/podgauge/internal/sim"
	"github.com/podgauge/podgauge/internal/web/api"
	"github.com/podgauge/podgauge/test/helpers/docs"
	"github.com/podgauge/podgauge/test/helpers/expect"
	"github.com/podgauge/podgauge/test/helpers/program"
	"github.com/podgauge/podgauge/test/helpers/require"
	"github.com/podgauge/podgauge/test/helpers/testfile"
)

// runCLI runs a command and returns output and exit status.
func runCLI(t *testing.T, args ...string) (stdout, stderr string, status int) {
	t.Helper()
	var out, errs strings.Builder
	status = app.Run(t.Context(), testPlatform{}, args, fakeEnv(nil), &out, &errs)
	return out.String(), errs.String(), status
}

// fakeEnv returns a lookup of these environment variables.
func fakeEnv(variables map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		value, set := variables[name]
		return value, set
	}
}

// checkGolden compares a text with its golden file.
func checkGolden(t *testing.T, name, got string) {
	t.Helper()
	testfile.CheckGolden(t, *update, filepath.Join("testdata", name), got)
}

// TestTables checks the terminal output for the scripted node.
func TestTables(t *testing.T) {
	const filtered = api.IncidentsPath + "?device=1&limit=1&namespace=serving&pod=llm-0&since=24h"
	for name, node := range map[string]*scriptedNode{"": newScriptedNode(), "_hostile": hostileNode(), "_empty": {}} {
		bodies := node.serve(t, api.DevicesPath, api.IncidentsPath, filtered)
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			io.WriteString(w, bodies[r.URL.RequestURI()])
		}))
		for golden, c := range map[string]struct{ body, args string }{
			"status":               {api.DevicesPath, "status"},
			"incidents":            {api.IncidentsPath, "incidents"},
			"status_wide":          {api.DevicesPath, "status -o=wide"},
			"incidents_wide":       {api.IncidentsPath, "incidents -o wide"},
			"status_yaml":          {api.DevicesPath, "status -o=yaml"},
			"incidents_no_headers": {api.IncidentsPath, "incidents --no-headers"},
			"incidents_filtered":   {filtered, "incidents -d 1 -n=serving --pod=llm-0 --since 24h --limit=1"},
		} {
			args := append(strings.Fields(c.args), "--url="+server.URL+"/", "-w")
			table, errs, status := runCLI(t, args...)
			if status != cli.ExitOK || errs != "" {
				t.Fatalf("%v: got status %d, %s", args, status, errs)
			}
			checkGolden(t, golden+name+".txt", table)
			if strings.ContainsFunc(table, func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }) || !utf8.ValidString(table) {
				t.Errorf("%v: control characters in the output: %q", args, table)
			}
			if json, errs, status := runCLI(t, append(args, "-o=json")...); status != cli.ExitOK || errs != "" || json != bodies[c.body] {
				t.Errorf("%v -o json: got status %d, %s, %s", args, status, errs, json)
			}
		}
		server.Close()
	}
}

// TestTablesInDocs checks that docs/how-to/troubleshoot.md has the output of status and incidents.
func TestTablesInDocs(t *testing.T) {
	docs.CheckTables(t, *update, "../../docs/how-to/troubleshoot.md", map[string]string{
		"status":    codeBlock(testfile.Read(t, "testdata/status.txt")),
		"incidents": codeBlock(testfile.Read(t, "testdata/incidents.txt")),
	})
}

// codeBlock returns a Markdown code block.
func codeBlock(text string) string { return "```\n" + text + "```\n" }

// startWithSocket starts podgauge with a state folder and waits for the socket.
func startWithSocket(t *testing.T, s testSetup, args ...string) (w *testApp, dir string) {
	t.Helper()
	dir = program.ShortDir(t)
	return startWithSocketIn(t, dir, s, args...), dir
}

// startWithSocketIn starts podgauge with this state folder and waits for the socket.
func startWithSocketIn(t *testing.T, dir string, s testSetup, args ...string) *testApp {
	t.Helper()
	w := newTestAppWith(t, s, append(args, "--state-dir="+dir)...)
	program.WaitUntil(t, "the socket listens", func() bool {
		conn, err := net.Dial("unix", filepath.Join(dir, operator.SocketName))
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
	return w
}

// TestCommandsWithoutPassword checks that commands on the node read through the socket, without the password that the
// network requires.
func TestCommandsWithoutPassword(t *testing.T) {
	t.Parallel()
	webConfig := filepath.Join(t.TempDir(), "web.yaml")
	const users = "basic_auth_users:\n  prometheus: $2y$04$yW2YRSXAMk7fYEkv0rXQXej4GwJtSlL0ED7LQZB5tE.Ut.eIQX.9W\n"
	require.NoError(t, os.WriteFile(webConfig, []byte(users), 0o600))
	w, dir := startWithSocket(t, testSetup{machine: newMachine(sim.T4, sim.T4)}, "--web.config.file="+webConfig)
	w.waitRegistered()
	for args, want := range map[string]string{
		"status":                      "2 of 2 devices healthy",
		"incidents":                   "no incidents",
		"incidents -o=json -d=1":      `"total":0,"incidents":[]}`,
		"status --url=" + w.url:       "401 Unauthorized",
		"status --no-headers -o wide": "Tesla T4",
	} {
		if out, errs, _ := runCLI(t, append(strings.Fields(args), "--state-dir="+dir)...); !strings.Contains(out+errs, want) {
			t.Errorf("%s: got %q, %q", args, out, errs)
		}
	}
}

// socketClient returns a client of the socket in a state folder.
func socketClient(dir string) *http.Client {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(dir, operator.SocketName))
	}
	return &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: dial}, Timeout: waitTimeout}
}

// TestSocket checks that the socket serves the API and commands, no other path of the network, and only root. Clients
// that send nothing do not block others.
func TestSocket(t *testing.T) {
	t.Parallel()
	w, dir := startWithSocket(t, testSetup{machine: newMachine(sim.T4)})
	w.waitRegistered()
	path := filepath.Join(dir, operator.SocketName)
	if s, err := os.Stat(path); err != nil || s.Mode().Perm() != 0o600 {
		t.Errorf("got %v, %v", s.Mode(), err)
	}
	for range 4 { // the maximum: the next one waits until they are closed
		conn, err := net.Dial("unix", path)
		require.NoError(t, err)
		defer conn.Close()
		io.WriteString(conn, "{") // an incomplete request
	}
	for path, want := range map[string]int{
		"/api/v1/devices": 200, "/api/v1/none": 404, "/api/v1/devices?limit=x": 400,
		"/": 404, "/metrics": 404, "/healthz": 404, operator.Path: 405,
	} {
		resp, err := socketClient(dir).Get("http://podgauge" + path)
		require.NoError(t, err)
		resp.Body.Close()
		expect.Equal(t, resp.StatusCode, want, path)
	}
	for content, want := range map[string]string{
		"":                                     "parse request: EOF",
		"x":                                    "parse request: invalid character",
		"[]":                                   "parse request: json: cannot unmarshal array",
		strings.Repeat(" ", 5000):              "parse request: http: request body too large",
		`{"action":"stop"}`:                    "expected retire, trust, forget, release or resume",
		`{"action":"trust","device":"\u001b"}`: "expected a UUID",
	} {
		resp, err := socketClient(dir).Post("http://podgauge"+operator.Path, "application/json", strings.NewReader(content))
		require.NoError(t, err)
		var got api.ErrorResponse
		if err := json.NewDecoder(resp.Body).Decode(&got); err != nil || !strings.Contains(got.Error, want) {
			t.Errorf("%.40q: got %q, %v, want %s", content, got.Error, err, want)
		}
		resp.Body.Close()
	}
}
