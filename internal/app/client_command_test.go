package app

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/podgauge/podgauge/internal/web/api"
)

// newAPIServer is a server that has these answers, whenever it is asked.
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

// runCLI runs a command, and returns output and exit status.
func runCLI(t *testing.T, args ...string) (stdout, stderr string, status int) {
	t.Helper()
	var out, errs bytes.Buffer
	status = run(t.Context(), testPlatform{}, args, emptyEnv, &out, &errs)
	return out.String(), errs.String(), status
}

// TestTables: what a terminal shows of the scripted node.
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
			{"incidents_filtered" + node.name, filtered, []string{"incidents", "-d", "1", "-n=serving", "--pod=llm-0", "--since", "24h", "--limit=1"}},
		} {
			table, errs, status := runCLI(t, append(c.args, "--url", url+"/", "-w")...)
			if status != exitOK || errs != "" {
				t.Fatalf("%v: status %d, %s", c.args, status, errs)
			}
			checkGolden(t, filepath.Join("testdata", c.golden+".txt"), table)
			if strings.ContainsFunc(table, func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }) || !utf8.ValidString(table) {
				t.Errorf("%v: control characters in the output: %q", c.args, table)
			}
			json, errs, status := runCLI(t, append(c.args, "--url", url, "-o", "json")...)
			if status != exitOK || errs != "" || json != bodies[c.body] {
				t.Errorf("%v -o json: status %d, %s, %s", c.args, status, errs, json)
			}
		}
	}
}

// TestTablesInDocs: docs/operations.md shows what is shown.
func TestTablesInDocs(t *testing.T) {
	tables := map[string]string{}
	for command := range clientCommands {
		table, err := os.ReadFile(filepath.Join("testdata", command+".txt"))
		if err != nil {
			t.Fatal(err)
		}
		tables[command] = codeBlock(string(table))
	}
	checkTables(t, "../../docs/operations.md", tables)
}

// codeBlock is how a page shows a text as it is.
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
		t.Errorf("not what %s has; if that is meant, run make golden:\n%s", file, got)
	}
}

// TestClientErrors: each costs one line.
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
		args   []string
		status int
		says   string
	}{
		{[]string{"status", "--url=http://" + closedAddr}, exitError, "no response from http://" + closedAddr + ": dial tcp " + closedAddr + ": connect: connection refused; set --url to the address of podgauge"},
		{[]string{"incidents", "--web.listen-address=" + closedAddr}, exitError, "no response from http://" + closedAddr},
		{[]string{"status", "--url=" + respond(404, "404 page not found")}, exitError, "returned 404 Not Found: 404 page not found"},
		{[]string{"status", "--url=" + respond(500, `{"error":"a\nb\u001b[31m"}`)}, exitError, `returned a�b�[31m`},
		{[]string{"status", "--url=" + respond(302, "")}, exitError, "returned 302 Found"},
		{[]string{"status", "--url=" + respond(200, "<html>")}, exitError, "not a response of podgauge: invalid character"},
		{[]string{"status", "--url=" + respond(200, strings.Repeat(" ", maxResponseBytes+1))}, exitError, "response of more than 33554432 bytes"},
		{[]string{"status", "--url=localhost:9400"}, exitUsage, `--url "localhost:9400": want http://host:port`},
		{[]string{"status", "--url=ftp://a"}, exitUsage, `--url "ftp://a": want http://host:port`},
		{[]string{"status", "--web.listen-address=9400"}, exitUsage, `--web.listen-address "9400": want host:port`},
		{[]string{"status", "-o", "yaml"}, exitUsage, `--output "yaml": want table or json`},
		{[]string{"status", "GPU-0"}, exitUsage, `unexpected argument "GPU-0"`},
		{[]string{"status", "--pod=a"}, exitUsage, "unknown flag: --pod"},
		{[]string{"status", "--watch=often"}, exitUsage, `--watch: "often": want true or false`},
		{[]string{"incidents", "--since=yesterday"}, exitUsage, `--since "yesterday": want a time`},
		{[]string{"incidents", "--limit=0"}, exitUsage, `--limit "0": want a number from 1 to 1000`},
		{[]string{"incidents", "--pod="}, exitUsage, `--pod "": want a value`},
		{[]string{"incidents", "a\x1b[2Jb"}, exitUsage, `unexpected argument "a\x1b[2Jb"`},
	} {
		out, errs, status := runCLI(t, c.args...)
		if status != c.status || out != "" || !strings.Contains(errs, c.says) || !strings.HasPrefix(errs, "podgauge "+c.args[0]+": ") || strings.Count(errs, "\n") != 1 {
			t.Errorf("%q: status %d, %q, %q", c.args, status, out, errs)
		}
	}
}

func TestClientHelp(t *testing.T) {
	for command := range clientCommands {
		out, errs, status := runCLI(t, command, "--help")
		if status != exitOK || out != "" || !strings.HasPrefix(errs, "Usage: podgauge "+command+" [flags]\n") {
			t.Errorf("%s: %d %s%s", command, status, out, errs)
		}
	}
}

// TestClientURL: asked where the daemon listens by the same flag.
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
		c := clientCommands["status"]
		if err := c.parse("status", strings.Fields(args), io.Discard); err != nil || c.baseURL != want {
			t.Errorf("%s: %s, %v, want %s", args, c.baseURL, err, want)
		}
	}
}

// TestWatch: the screen is overwritten until the command ends, also while the daemon returns errors.
func TestWatch(t *testing.T) {
	bodies := newScriptedNode().serve(t, api.DevicesPath)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	requests := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if requests++; requests == 2 {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		io.WriteString(w, bodies[api.DevicesPath])
	}))
	defer server.Close()
	c := clientCommands["status"]
	if err := c.parse("status", []string{"-w", "--url", server.URL}, io.Discard); err != nil {
		t.Fatal(err)
	}
	screen := &screenRecorder{stop: cancel, after: 3}
	if err := c.watchScreen(ctx, screen, time.Millisecond); err != nil {
		t.Fatal(err)
	}
	all := screen.text.String()
	if !strings.HasPrefix(all, clearScreen+cursorHome+"node-a: driver up") {
		t.Errorf("%q", all)
	}
	pages := strings.Split(all, cursorHome)[1:]
	if len(pages) != 3 || pages[0] != pages[2] || !strings.HasPrefix(pages[1], server.URL+" returned 502 Bad Gateway: "+eraseLineRight+"\n"+eraseBelow) {
		t.Errorf("%q", pages)
	}
}

// screenRecorder is a terminal whose owner has seen enough after so many screens.
type screenRecorder struct {
	text  strings.Builder
	stop  func()
	after int
}

func (s *screenRecorder) Write(b []byte) (int, error) {
	if s.text.Write(b); strings.Count(s.text.String(), cursorHome) >= s.after {
		s.stop()
	}
	return len(b), nil
}

// TestJSONOnATerminal: control characters in JSON are replaced.
func TestJSONOnATerminal(t *testing.T) {
	body := "{\"a\":\"\u009b31m\u202e\"}\n\x1b[2Jx\n"
	c := clientCommand{transport: http.DefaultTransport, path: api.DevicesPath, baseURL: newAPIServer(t, map[string]string{api.DevicesPath: body}), output: "json", terminal: true}
	if got, err := c.render(t.Context()); err != nil || got != "{\"a\":\"\uFFFD31m\uFFFD\"}\n\uFFFD[2Jx\n" {
		t.Errorf("%q, %v", got, err)
	}
}

func TestAgo(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	for d, want := range map[time.Duration]string{
		-time.Hour: "now", 0: "now", 999 * time.Millisecond: "now", time.Second: "1 s ago", 59 * time.Second: "59 s ago", time.Minute: "1 min ago",
		59*time.Minute + 59*time.Second: "59 min ago", time.Hour: "1 h ago", 47 * time.Hour: "47 h ago", 48 * time.Hour: "2 days ago", 9000 * time.Hour: "375 days ago",
	} {
		if got := ago(now, now.Add(-d)); got != want {
			t.Errorf("%s: %s, want %s", d, got, want)
		}
	}
	if got := ago(now, time.Time{}); got != "-" {
		t.Errorf("never: %s", got)
	}
}
