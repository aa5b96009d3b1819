package app

import (
	"bytes"
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

	"github.com/podgauge/podgauge/internal/cli"
	"github.com/podgauge/podgauge/internal/web/api"
	"github.com/spf13/pflag"
)

// newAPIServer returns the URL of a server with constant responses.
func newAPIServer(t *testing.T, bodies map[string]string) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, ok := bodies[r.URL.RequestURI()]
		if !ok {
			http.Error(w, `{"error":"not in the script: `+r.URL.RequestURI()+`"}`, http.StatusTeapot)
			return
		}
		io.WriteString(w, body)
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// runCLI runs a command and returns output and exit status.
func runCLI(t *testing.T, args ...string) (stdout, stderr string, status int) {
	t.Helper()
	var out, errs bytes.Buffer
	status = run(t.Context(), testPlatform{}, args, emptyEnv, &out, &errs)
	return out.String(), errs.String(), status
}

// TestTables checks the terminal output for the scripted node.
func TestTables(t *testing.T) {
	const filtered = api.IncidentsPath + "?device=1&limit=1&namespace=serving&pod=llm-0&since=24h"
	for _, node := range []struct {
		name string
		of   *scriptedNode
	}{{"", newScriptedNode()}, {"_hostile", hostileNode()}, {"_empty", &scriptedNode{}}} {
		bodies := node.of.serve(t, api.DevicesPath, api.IncidentsPath, filtered)
		url := newAPIServer(t, bodies)
		for _, c := range []struct {
			golden, body string
			args         []string
		}{
			{"status" + node.name, api.DevicesPath, []string{"status"}},
			{"incidents" + node.name, api.IncidentsPath, []string{"incidents"}},
			{"status_wide" + node.name, api.DevicesPath, []string{"status", "-o=wide"}},
			{"incidents_wide" + node.name, api.IncidentsPath, []string{"incidents", "-o", "wide"}},
			{"status_yaml" + node.name, api.DevicesPath, []string{"status", "-o=yaml"}},
			{"incidents_no_headers" + node.name, api.IncidentsPath, []string{"incidents", "--no-headers"}},
			{"incidents_filtered" + node.name, filtered, []string{"incidents", "-d", "1", "-n=serving", "--pod=llm-0", "--since", "24h", "--limit=1"}},
		} {
			table, errs, status := runCLI(t, append(c.args, "--url", url+"/", "-w")...)
			if status != cli.ExitOK || errs != "" {
				t.Fatalf("%v: got status %d, %s", c.args, status, errs)
			}
			checkGolden(t, filepath.Join("testdata", c.golden+".txt"), table)
			if strings.ContainsFunc(table, func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }) || !utf8.ValidString(table) {
				t.Errorf("%v: control characters in the output: %q", c.args, table)
			}
			json, errs, status := runCLI(t, append(c.args, "--url", url, "-o", "json")...)
			if status != cli.ExitOK || errs != "" || json != bodies[c.body] {
				t.Errorf("%v -o json: got status %d, %s, %s", c.args, status, errs, json)
			}
		}
	}
}

// TestTablesInDocs checks that docs/how-to/troubleshoot.md has the output of status and incidents.
func TestTablesInDocs(t *testing.T) {
	tables := map[string]string{}
	for _, command := range []string{"status", "incidents"} {
		table, err := os.ReadFile(filepath.Join("testdata", command+".txt"))
		if err != nil {
			t.Fatal(err)
		}
		tables[command] = codeBlock(string(table))
	}
	checkTables(t, "../../docs/how-to/troubleshoot.md", tables)
}

// codeBlock returns a Markdown code block.
func codeBlock(text string) string { return "```\n" + text + "```\n" }

// checkGolden compares a text with its golden file.
func checkGolden(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("differs from %s; if intended, run make golden:\n%s", file, got)
	}
}

// TestClientErrors checks that each error causes one line.
func TestClientErrors(t *testing.T) {
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	closedAddr := closed.Addr().String()
	respond := func(status int, body string) string {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", "http://127.0.0.1:1/")
			w.WriteHeader(status)
			io.WriteString(w, body)
		}))
		t.Cleanup(server.Close)
		return server.URL
	}
	for _, c := range []struct {
		args    []string
		status  int
		wantErr string
	}{
		{[]string{"status", "--url=http://" + closedAddr}, cli.ExitError, "no response from http://" + closedAddr + ": dial tcp " + closedAddr + ": connect: connection refused; set --url to the address of podgauge"},
		{[]string{"incidents", "--web.listen-address=" + closedAddr}, cli.ExitError, "no response from http://" + closedAddr},
		{[]string{"status", "--url=" + respond(404, "404 page not found")}, cli.ExitError, "returned 404 Not Found: 404 page not found"},
		{[]string{"status", "--url=" + respond(500, `{"error":"a\nb\u001b[31m"}`)}, cli.ExitError, `returned a�b�[31m`},
		{[]string{"status", "--url=" + respond(302, "")}, cli.ExitError, "returned 302 Found"},
		{[]string{"status", "--url=" + respond(200, "<html>")}, cli.ExitError, "not a podgauge response: invalid character"},
		{[]string{"status", "--url=" + respond(200, strings.Repeat(" ", maxResponseBytes+1))}, cli.ExitError, "response larger than 33554432 bytes"},
		{[]string{"status", "--url=localhost:9400"}, cli.ExitUsage, `--url "localhost:9400": expected http://host:port`},
		{[]string{"status", "--url=ftp://a"}, cli.ExitUsage, `--url "ftp://a": expected http://host:port`},
		{[]string{"status", "--web.listen-address=9400"}, cli.ExitUsage, `--web.listen-address "9400": expected host:port`},
		{[]string{"status", "-o", "xml"}, cli.ExitUsage, `--output "xml": expected table, wide, json or yaml`},
		{[]string{"status", "-o", "yaml", "--url=" + respond(200, "<html>")}, cli.ExitError, "not a podgauge response: invalid JSON"},
		{[]string{"status", "GPU-0"}, cli.ExitUsage, `unexpected argument "GPU-0"`},
		{[]string{"status", "--pod=a"}, cli.ExitUsage, "unknown flag: --pod"},
		{[]string{"status", "--watch=often"}, cli.ExitUsage, `--watch: "often": expected true or false`},
		{[]string{"incidents", "--since=yesterday"}, cli.ExitUsage, `--since "yesterday": expected a time`},
		{[]string{"incidents", "--limit=0"}, cli.ExitUsage, `--limit "0": expected a number from 1 to 1000`},
		{[]string{"incidents", "--pod="}, cli.ExitUsage, `--pod "": expected a value`},
		{[]string{"incidents", "a\x1b[2Jb"}, cli.ExitUsage, `unexpected argument "a\x1b[2Jb"`},
	} {
		out, errs, status := runCLI(t, c.args...)
		if status != c.status || out != "" || !strings.Contains(errs, c.wantErr) || !strings.HasPrefix(errs, "podgauge "+c.args[0]+": ") || strings.Count(errs, "\n") != 1 {
			t.Errorf("%q: got status %d, %q, %q", c.args, status, out, errs)
		}
	}
}

// parseStatus returns the query of a command line.
func parseStatus(args ...string) (*clientCommand, error) {
	c, f := newStatusQuery(""), pflag.NewFlagSet("status", pflag.ContinueOnError)
	c.addFlags(f)
	if err := f.Parse(normalizeDashes(f, args)); err != nil {
		return nil, err
	}
	return c, c.complete(f, nil)
}

// TestClientURL checks that the default URL follows the daemon's flag of the listen address.
func TestClientURL(t *testing.T) {
	for args, want := range map[string]string{
		"":                                      "http://127.0.0.1:9400",
		"--web.listen-address=:9500":            "http://127.0.0.1:9500",
		"--web.listen-address=0.0.0.0:9500":     "http://127.0.0.1:9500",
		"--web.listen-address=[::]:9500":        "http://127.0.0.1:9500",
		"--web.listen-address=10.0.0.7:9400":    "http://10.0.0.7:9400",
		"--web.listen-address=[fd00::1]:9400":   "http://[fd00::1]:9400",
		"-web.listen-address=:9500":             "http://127.0.0.1:9500",
		"--url=http://node-a:9400/behind/":      "http://node-a:9400/behind",
		"--web.listen-address=x --url=http://a": "http://a",
	} {
		c, err := parseStatus(strings.Fields(args)...)
		if err != nil || c.baseURL != want {
			t.Errorf("%s: got %s, %v, want %s", args, c.baseURL, err, want)
		}
	}
}
