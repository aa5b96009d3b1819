package main

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/cli"
	"github.com/podgauge/podgauge/test/helpers/expect"
	"github.com/podgauge/podgauge/test/helpers/testfile"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"
)

// TestDoctor checks that problems of all nodes are shown, and that a failing node costs one line.
func TestDoctor(t *testing.T) {
	c := newFakeCluster(t, map[string]*fakeNode{"node-a": {}, "node-b": {}, "node-c": {}, "node-d": {}})
	runInPod := func(ctx context.Context, p *corev1.Pod, command []string) ([]byte, error) {
		expect.EqualSlices(t, command, []string{"podgauge", "doctor", "--output=json"}, "command")
		switch p.Spec.NodeName {
		case "node-a":
			return []byte(`{"node":"node-a","failures":1,"checks":[{"check":"driver","status":"ok","message":"2 GPUs"},` +
				`{"check":"registration","status":"failure","message":"no socket","impact":"no devices","fix":"start the kubelet"}]}`), nil
		case "node-b":
			return []byte(`{"node":"node-b","checks":[{"check":"driver","status":"ok","message":"2 GPUs"},{"check":"cdi","status":"skipped","message":"x"}]}`), nil
		case "node-c":
			return nil, errors.New("pods \"podgauge-node-c\" is forbidden")
		}
		<-ctx.Done()
		return nil, ctx.Err()
	}
	const failed = "node-c: pods \"podgauge-node-c\" is forbidden (podgauge/podgauge-node-c)\nnode-d: no response within 2s (podgauge/podgauge-node-d)\n"
	for name, args := range map[string][]string{"doctor": {"doctor"}, "doctor_wide": {"doctor", "-o=wide"}} {
		out, errs, status := c.run(func(c *client) { c.runInPod = runInPod }, args...)
		if status != cli.ExitError || errs != failed {
			t.Errorf("got status %d, %s", status, errs)
		}
		testfile.CheckGolden(t, *update, "testdata/"+name+".txt", out)
	}
	delete(c.nodes, "node-c")
	delete(c.nodes, "node-d")
	if _, errs, status := c.run(func(c *client) { c.runInPod = runInPod }, "doctor"); status != cli.ExitError || errs != "" {
		t.Errorf("failed check: got status %d, %s", status, errs)
	}
	delete(c.nodes, "node-a")
	if out, errs, status := c.run(func(c *client) { c.runInPod = runInPod }, "doctor"); status != cli.ExitOK || errs != "" || !strings.Contains(out, "no problems") {
		t.Errorf("no failed check: got status %d, %s%s", status, out, errs)
	}
}

// TestDoctorTimeout checks that a doctor that waits for a hanging driver has time to report it.
func TestDoctorTimeout(t *testing.T) {
	c := newFakeCluster(t, map[string]*fakeNode{"node-a": {}})
	for _, test := range []struct {
		args     []string
		min, max time.Duration
	}{{nil, 50 * time.Second, longTimeout}, {[]string{"--timeout=20s"}, time.Second, 20 * time.Second}} {
		var left time.Duration
		command := newClient(genericiooptions.NewTestIOStreamsDiscard())
		command.runInPod = func(ctx context.Context, _ *corev1.Pod, _ []string) ([]byte, error) {
			deadline, _ := ctx.Deadline()
			left = time.Until(deadline)
			return []byte("{}"), nil
		}
		status := run(t.Context(), command, append([]string{"doctor", "--kubeconfig=" + os.DevNull, "--server=" + c.url}, test.args...))
		if status != cli.ExitOK || left < test.min || left > test.max {
			t.Errorf("%q: got status %d, %s for a node, want %s to %s", test.args, status, left, test.min, test.max)
		}
	}
}

// TestExecTransport checks that --exec runs podgauge's own client commands, which need neither address nor password.
func TestExecTransport(t *testing.T) {
	now := time.Now()
	c := newFakeCluster(t, map[string]*fakeNode{"node-a": newNode(now)})
	var commands []string
	runInPod := func(_ context.Context, _ *corev1.Pod, command []string) ([]byte, error) {
		commands = append(commands, strings.Join(command, " "))
		return []byte(`{"at":"2026-11-21T12:00:00Z","incidents":[]}`), nil
	}
	if _, errs, status := c.run(func(c *client) { c.runInPod = runInPod }, "incidents", "--exec", "--pod=llm-0"); status != cli.ExitOK || len(c.requests) > 0 {
		t.Errorf("got status %d, %s, requests %q", status, errs, c.requests)
	}
	const want = "podgauge incidents --output=json --pod=llm-0"
	expect.EqualSlices(t, commands, []string{want}, "commands")
}
