package main

import (
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/cli"
	"github.com/podgauge/podgauge/internal/incident"
	"github.com/podgauge/podgauge/internal/web/api"
	"github.com/podgauge/podgauge/test/helpers/testfile"
	corev1 "k8s.io/api/core/v1"
)

const nodeFailures = "node-c: no response within 2s (podgauge/podgauge-node-c)\n" +
	"node-d: error trying to reach service: dial tcp 10.0.0.3:9400: connect: connection refused (podgauge/podgauge-node-d)\n"

// TestReports checks that a hanging node and a failing node cost one line each and exit status 1, and affect no other node.
func TestReports(t *testing.T) {
	c := newBrokenCluster(t)
	for name, args := range map[string][]string{
		"status": {"status"}, "status_wide": {"status", "-o", "wide"}, "status_no_headers": {"status", "--no-headers"},
		"incidents": {"incidents"}, "incidents_wide": {"incidents", "-o=wide", "-n", "serving", "--since=24h"},
		"nodes": {"nodes"}, "nodes_wide": {"nodes", "-o=wide"},
		"pod": {"pod", "llm-0", "-n=serving"}, "pod_wide": {"pod", "llm-0", "-n=serving", "-o=wide"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // each waits for the hanging node
			out, errs, status := c.run(nil, args...)
			wantErrs := nodeFailures
			if args[0] == "nodes" { // its table contains the errors
				wantErrs = ""
			}
			if status != cli.ExitError || errs != wantErrs {
				t.Errorf("got status %d, %s", status, errs)
			}
			testfile.CheckGolden(t, *update, "testdata/"+name+".txt", out)
			c.mu.Lock()
			defer c.mu.Unlock()
			if name == "incidents_wide" && !slices.Contains(c.requests, "podgauge-node-a:9400 "+api.IncidentsPath+"?namespace=serving&since=24h") {
				t.Errorf("missing filters: got requests %q", c.requests)
			}
		})
	}
}

// TestReportsOfHealthyNodes checks exit status 0.
func TestReportsOfHealthyNodes(t *testing.T) {
	c := newFakeCluster(t, map[string]*fakeNode{"node-b": healthyNode(time.Now())})
	for _, args := range [][]string{{"status"}, {"incidents"}, {"nodes"}, {"status", "--podgauge-namespace=podgauge"}, {"nodes", "-w"}} {
		if out, errs, status := c.run(nil, args...); status != cli.ExitOK || errs != "" || !strings.HasPrefix(out, "NODE ") {
			t.Errorf("%v: got status %d, %s%s", args, status, out, errs)
		}
	}
}

// TestDocuments checks that JSON has the responses of all nodes and the errors, and that YAML has the same fields.
func TestDocuments(t *testing.T) {
	c := newBrokenCluster(t)
	out, _, status := c.run(nil, "status", "-o=json")
	var all struct{ Nodes []answer[api.DevicesResponse] }
	if err := json.Unmarshal([]byte(out), &all); err != nil || status != cli.ExitError || len(all.Nodes) != 4 {
		t.Fatalf("got status %d, %v: %s", status, err, out)
	}
	if a := all.Nodes[0]; a.Node != "node-a" || len(a.Response.Devices) != 2 || a.Error != "" {
		t.Errorf("got %+v", a)
	}
	if a := all.Nodes[2]; a.Node != "node-c" || a.Response != nil || a.Error != "no response within 2s" {
		t.Errorf("got %+v", a)
	}
	if out, _, _ := c.run(nil, "nodes", "-o=yaml"); !strings.HasPrefix(out, "nodes:\n  - node: node-c\n    podgauge: podgauge/podgauge-node-c\n    error: no response within 2s\n") {
		t.Error(out)
	}
	if out, _, _ := c.run(nil, "pod", "llm-0", "-n=serving", "-o=json"); !strings.Contains(out, `"health_now": "unhealthy"`) || !strings.Contains(out, `"ended": "Failed, Error, exit 139"`) {
		t.Error(out)
	}
}

// TestIncidentNotes checks the lines about incidents that are omitted or not stored.
func TestIncidentNotes(t *testing.T) {
	node := newNode(time.Now())
	node.incidents.Total, node.incidents.Error = 340, "disk full"
	c := newFakeCluster(t, map[string]*fakeNode{"n": node})
	if out, _, status := c.run(nil, "incidents"); status != cli.ExitOK || !strings.HasPrefix(out, "n: not stored: disk full\nn: the newest 1 of 340\nNODE ") {
		t.Errorf("got status %d, %s", status, out)
	}
}

// TestCommandLine checks that a wrong name costs one line, and that help is on stdout.
func TestCommandLine(t *testing.T) {
	c := newFakeCluster(t, nil)
	for args, want := range map[string]string{
		"nods": `error: unknown command "nods" for "kubectl podgauge"`, "pod": "error: accepts 1 arg(s), received 0", "pod a -n=": "error: no pod has the labels",
		"incidents --since=x": `error: --since "x": expected a time`,
	} {
		if out, errs, status := c.run(nil, strings.Fields(args)...); status == cli.ExitOK || out != "" || !strings.HasPrefix(errs, want) || strings.Count(errs, "\n") != 1 {
			t.Errorf("%q: got status %d, %s%s", args, status, out, errs)
		}
	}
	out, errs, status := c.run(nil, "pod", "--help")
	if status != cli.ExitOK || errs != "" || !strings.Contains(out, "kubectl podgauge pod NAME") || !strings.Contains(out, "--prometheus") {
		t.Errorf("got status %d, %s%s", status, out, errs)
	}
	if out, _, _ := c.run(nil, "__complete", "status", "-o", ""); !strings.Contains(out, "wide") {
		t.Error(out)
	}
	if out, _, _ := c.run(nil, "version"); out != "kubectl-podgauge dev\n" {
		t.Error(out)
	}
}

// TestEvictedPods checks that an ended pod is omitted if the node has another pod of podgauge.
func TestEvictedPods(t *testing.T) {
	c := newFakeCluster(t, map[string]*fakeNode{"n": {devices: healthyNode(time.Now()).devices, evicted: true}})
	if out, errs, status := c.run(nil, "status", "--no-headers"); status != cli.ExitOK || errs != "" || strings.Count(out, "\n") != 1 {
		t.Errorf("got status %d, %s%s", status, out, errs)
	}
	c.nodes["n"].phase, c.nodes["n"].serve = corev1.PodFailed, unreachable
	if _, errs, status := c.run(nil, "status"); status != cli.ExitError || strings.Count(errs, "n: pod is Failed") != 2 {
		t.Errorf("no other pod: got status %d, %s", status, errs)
	}
}

// TestPodWithDevice checks that a container that still has a device has no end, although a fault affected it earlier.
func TestPodWithDevice(t *testing.T) {
	node := newNode(time.Now())
	node.incidents.Incidents[0].Affected[1].Termination = &incident.PodTermination{Phase: "Failed"}
	c := newFakeCluster(t, map[string]*fakeNode{"n": node})
	out, errs, status := c.run(nil, "pod", "llm-1", "-n=serving", "--no-headers")
	lines := strings.Split(out, "\n")
	if status != cli.ExitOK || errs != "" || len(lines) != 3 || strings.Join(strings.Fields(lines[1]), " ") != "n 0 server yes healthy - - - - - -" {
		t.Errorf("got status %d, %s%s", status, out, errs)
	}
}

// TestPodOfPartitionedGPU checks that a GPU's fault is shown once, on the MIG device of the container, even if the device is removed.
func TestPodOfPartitionedGPU(t *testing.T) {
	node := newNode(time.Now())
	mig := newDevice(mig0, gpu1, 1)
	mig.Healthy, mig.Health, mig.Reason, mig.PastOwners = false, "unhealthy", "xid_79", []api.OwnerJSON{newOwner("serving", "llm-0", false)}
	node.devices.Devices[0].PastOwners, node.devices.Devices[1].PastOwners = nil, nil
	node.devices.Devices = append(node.devices.Devices, mig)
	fault := &node.incidents.Incidents[0]
	fault.MIGDevices = []incident.AffectedMIGDevice{{Device: mig0, Profile: "1g.10gb"}, {Device: "MIG-gone", Profile: "2g.20gb"}}
	first := fault.Affected[0]
	first.Device = mig0
	second := first
	second.Device = "MIG-gone"
	fault.Affected = []incident.AffectedContainer{first, second}
	c := newFakeCluster(t, map[string]*fakeNode{"n": node})
	out, errs, status := c.run(nil, "pod", "llm-0", "-n=serving", "--no-headers", "-o=wide")
	if status != cli.ExitOK || errs != "" || strings.Count(out, "\n") != 2 || strings.Count(out, mig0) != 1 || !strings.Contains(out, "1 2g.20gb") || strings.Contains(out, gpu1) {
		t.Errorf("got status %d, %s%s", status, out, errs)
	}
	if out, _, _ := c.run(nil, "incidents", "--no-headers"); strings.Count(out, "serving/llm-0/server") != 1 {
		t.Errorf("container with two devices: got\n%s", out)
	}
}

// TestTransports covers TLS, other ports, pods that do not run, and errors of podgauge and the API server.
func TestTransports(t *testing.T) {
	now := time.Now()
	respond := func(status int, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(status)
			w.Write([]byte(body))
		}
	}
	tls := func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasPrefix(r.PathValue("name"), "https:") {
			respond(http.StatusBadRequest, "Client sent an HTTP request to an HTTPS server.\n")(w, r)
			return
		}
		writeJSON(w, http.StatusOK, healthyNode(now).devices)
	}
	hostCheck := func(w http.ResponseWriter, r *http.Request) { // as podgauge does for the name of an API server
		if r.Header.Get("Sec-Fetch-Site") != "none" {
			respond(http.StatusForbidden, "host \"api.example.com\": not a name")(w, r)
			return
		}
		writeJSON(w, http.StatusOK, healthyNode(now).devices)
	}
	for name, c := range map[string]struct {
		node    *fakeNode
		args    []string
		request string
		status  int
		want    string // in stdout or stderr
	}{
		"TLS":           {&fakeNode{serve: tls}, nil, "https:podgauge-n:9400", cli.ExitOK, "n     0"},
		"port":          {&fakeNode{serve: healthyNode(now).serve, devices: healthyNode(now).devices, port: 9410}, nil, "podgauge-n:9410", cli.ExitOK, "n     0"},
		"given port":    {&fakeNode{devices: healthyNode(now).devices, port: 9410}, []string{"--port=9"}, "podgauge-n:9 ", cli.ExitOK, "n     0"},
		"pending":       {&fakeNode{serve: unreachable, phase: corev1.PodPending}, nil, "", cli.ExitError, "n: pod is Pending (podgauge/podgauge-n)\n"},
		"password":      {&fakeNode{serve: respond(401, "Unauthorized\n")}, nil, "", cli.ExitError, "n: podgauge requires a password, which the API server's proxy cannot send: use --exec"},
		"metrics only":  {&fakeNode{serve: http.NotFound}, nil, "", cli.ExitError, "n: podgauge serves only metrics on the network: use --exec"},
		"host":          {&fakeNode{serve: hostCheck}, nil, "", cli.ExitOK, "n     0"},
		"podgauge":      {&fakeNode{serve: respond(503, `{"error":"too many\nresponses"}`)}, nil, "", cli.ExitError, "n: too many\uFFFDresponses (podgauge/podgauge-n)\n"},
		"no podgauge":   {&fakeNode{serve: respond(200, "<html>")}, nil, "", cli.ExitError, "n: not a podgauge response: invalid character"},
		"other error":   {&fakeNode{serve: respond(418, "a  \n b")}, nil, "", cli.ExitError, "n: 418 I'm a teapot: a b (podgauge/podgauge-n)\n"},
		"redirect":      {&fakeNode{serve: http.RedirectHandler("http://127.0.0.1:1/", http.StatusFound).ServeHTTP}, nil, "", cli.ExitError, "n: 302 Found: "},
		"too long":      {&fakeNode{serve: respond(200, strings.Repeat(" ", maxResponseBytes+1))}, nil, "", cli.ExitError, "n: response larger than 33554432 bytes"},
		"no pods":       {&fakeNode{}, []string{"--podgauge-selector=a=b"}, "", cli.ExitError, "error: no pod has the labels a=b; set --podgauge-selector and --podgauge-namespace\n"},
		"argument":      {&fakeNode{}, []string{"x"}, "", cli.ExitUsage, "error: "},
		"flag":          {&fakeNode{}, []string{"--no-such-flag"}, "", cli.ExitUsage, "error: unknown flag: --no-such-flag\n"},
		"output":        {&fakeNode{}, []string{"-o=xml"}, "", cli.ExitUsage, `error: --output "xml": expected table, wide, json or yaml` + "\n"},
		"timeout":       {&fakeNode{}, []string{"--timeout=0"}, "", cli.ExitUsage, "error: --timeout and --parallel: expected more than 0\n"},
		"no API server": {&fakeNode{}, []string{"--server=http://127.0.0.1:1"}, "", cli.ExitError, "error: list pods of podgauge: "},
	} {
		t.Run(name, func(t *testing.T) {
			cluster := newFakeCluster(t, map[string]*fakeNode{"n": c.node})
			out, errs, status := cluster.run(nil, append([]string{"status", "--timeout=1m"}, c.args...)...)
			if status != c.status || !strings.Contains(out+errs, c.want) || strings.Count(errs, "\n") > 1 {
				t.Errorf("got status %d, %s%s", status, out, errs)
			}
			if c.request != "" && !strings.HasPrefix(cluster.requests[len(cluster.requests)-1]+" ", c.request) {
				t.Errorf("requests: got %q", cluster.requests)
			}
		})
	}
}

// TestProgress checks that a terminal shows the number of nodes that responded, and finally clears the line.
func TestProgress(t *testing.T) {
	c := newFakeCluster(t, map[string]*fakeNode{"n": healthyNode(time.Now())})
	_, errs, status := c.run(func(c *client) { c.isTerminal = func(io.Writer) bool { return true } }, "status")
	if status != cli.ExitOK || !strings.HasPrefix(errs, "\r0 of 1 node responded") || !strings.HasSuffix(errs, "\r\x1b[K") {
		t.Errorf("got status %d, %q", status, errs)
	}
}
