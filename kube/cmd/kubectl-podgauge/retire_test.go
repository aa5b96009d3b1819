package main

import (
	"context"
	"errors"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/cli"
	"github.com/podgauge/podgauge/internal/config"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/test/helpers/expect"
	"github.com/podgauge/podgauge/test/helpers/testfile"
	corev1 "k8s.io/api/core/v1"
)

var dateNow = regexp.MustCompile(`date: "20[-\d]+T[:\d]+Z"`)

// TestRetire checks the list of retired devices after each command.
func TestRetire(t *testing.T) {
	now := time.Now()
	c := newFakeCluster(t, map[string]*fakeNode{"node-a": newNode(now), "node-b": healthyNode(now), "node-c": {serve: unreachable}, "node-d": {noList: true}})
	c.nodes["node-a"].devices.Devices[0].InfoLabels = map[string]string{"serial": "0324018045603"}
	for _, step := range []struct {
		args, out, errs string
		list            []string // device, reason and operator; nil: unchanged
	}{
		{args: "unretire node-a 0", errs: gpu0 + " is not retired"},
		{args: "retire node-a 0", errs: "reason: expected one line"},
		{args: "retire node-a 7 --reason=fan", errs: `node-a has no device "7": expected one of 0 (` + gpu0 + "), 1 (" + gpu1 + ")"},
		{args: "retire node-x 0 --reason=fan", errs: `node "node-x" has no pod of podgauge`},
		{args: "retire node-c 0 --reason=fan", errs: "list devices of node-c: error trying to reach service"},
		{args: "retire node-d 0 --reason=fan", errs: "pod podgauge/podgauge-node-d mounts no ConfigMap as volume retired: set retired.enabled"},
		{
			args: "retire node-a 0 --reason=fan", out: gpu0 + " is retired in ConfigMap podgauge/podgauge-retired; node-a follows within about a minute; allocated until the pods end",
			list: []string{gpu0 + " fan alice"},
		},
		{args: "retire node-a 0324018045603 --reason=fan", errs: gpu0 + " is already retired: fan"},
		{args: "retire node-a " + gpu1 + " --reason=RMA --by=bob", out: gpu1 + " is retired", list: []string{gpu0 + " fan alice", gpu1 + " RMA bob"}},
		{args: "retire node-c " + mig0 + " --reason=slow", out: mig0 + " is retired", list: []string{gpu0 + " fan alice", gpu1 + " RMA bob", mig0 + " slow alice"}},
		{args: "unretire node-a 0324018045603", out: gpu0 + " is no longer retired in ConfigMap podgauge/podgauge-retired", list: []string{gpu1 + " RMA bob", mig0 + " slow alice"}},
		{args: "unretire node-c " + mig0, out: mig0 + " is no longer", list: []string{gpu1 + " RMA bob"}},
		{args: "unretire node-a 1", out: gpu1 + " is no longer", list: []string{}},
	} {
		before := c.retiredFile()
		if strings.HasPrefix(step.args, "retire node-d") {
			c.nodes["node-d"].devices = c.nodes["node-b"].devices
		}
		out, errs, status := c.run(nil, strings.Fields(step.args)...)
		wantStatus := cli.ExitOK
		if step.errs != "" {
			wantStatus = cli.ExitError
		}
		if status != wantStatus || !strings.HasPrefix(out, step.out) || (out == "") != (step.out == "") ||
			!strings.HasPrefix(errs, strings.TrimSuffix("error: "+step.errs, "error: ")) || (errs == "") != (step.errs == "") || strings.Count(out+errs, "\n") != 1 {
			t.Errorf("%s: got status %d, %s%s", step.args, status, out, errs)
		}
		file := c.retiredFile()
		if step.list == nil {
			expect.Equal(t, file, before, step.args)
			continue
		}
		list, err := config.ParseRetired(file)
		got := []string{}
		for _, r := range list.Retired {
			got = append(got, r.Device+" "+r.Reason+" "+r.By)
		}
		if err != nil || !slices.Equal(got, step.list) || len(dateNow.FindAllString(file, -1)) != len(got) {
			t.Errorf("%s: got list %s, %v", step.args, file, err)
		}
	}
}

// TestAmbiguousNames checks that a name of several devices is refused: the index of a gone GPU that another has now, and the serial number
// of a board with several GPUs, which the list may have.
func TestAmbiguousNames(t *testing.T) {
	node := newNode(time.Now())
	d := node.devices.Devices
	d[0].Index, d[1].Gone = 1, true
	for i := range d {
		d[i].InfoLabels = map[string]string{"serial": "0324018045603"}
	}
	c := newFakeCluster(t, map[string]*fakeNode{"node-a": node})
	ids := gpu0 + " and " + gpu1 + " (gone): use the UUID\n"
	for args, want := range map[string]string{
		"retire node-a 1 --reason=fan": `error: "1" names ` + ids, "unretire node-a 1": `error: "1" names ` + ids, "bundle node-a 1": `error: "1" names ` + ids,
		"retire node-a 0324018045603 --reason=fan": `error: "0324018045603" names ` + ids,
	} {
		if out, errs, status := c.run(nil, strings.Fields(args)...); status != cli.ExitError || out != "" || errs != want {
			t.Errorf("%s: got status %d, %s%s", args, status, out, errs)
		}
	}
	c.setRetired(&corev1.ConfigMap{Data: map[string]string{config.RetiredFile: "retired: [{device: 0324018045603, reason: board}]\n"}})
	d[0].Reason, d[1].Reason = "retired", "retired"
	out, errs, status := c.run(nil, "retired", "-o=wide", "--no-headers")
	if status != cli.ExitOK || errs != "" || strings.Count(out, "podgauge/podgauge-retired") != 2 || !strings.Contains(out, gpu0) || !strings.Contains(out, gpu1) {
		t.Errorf("board: got status %d, %s%s", status, out, errs)
	}
	if out, errs, status := c.run(nil, "unretire", "node-a", "0324018045603"); status != cli.ExitOK || strings.Contains(c.retiredFile(), "0324018045603") {
		t.Errorf("board: got status %d, %s%s", status, out, errs)
	}
}

// TestRetireConflicts checks that two operators lose no change, and that a list that cannot be read is not replaced.
func TestRetireConflicts(t *testing.T) {
	c := newFakeCluster(t, map[string]*fakeNode{"node-a": newNode(time.Now())})
	write := func(file string) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.setRetired(&corev1.ConfigMap{Data: map[string]string{config.RetiredFile: file, "other": "x"}})
	}
	write("")
	c.conflict = func() { write("retired: [{device: 0324018045603, reason: of the other operator}]\n") }
	_, errs, status := c.run(nil, "retire", "node-a", "1", "--reason=fan")
	if file := c.retiredFile(); status != cli.ExitOK || !strings.Contains(file, "other operator") || !strings.Contains(file, gpu1) || c.retired.Data["other"] != "x" {
		t.Errorf("got status %d, %s%s", status, errs, file)
	}
	write("retired: [")
	for _, args := range [][]string{{"retire", "node-a", "1", "--reason=fan"}, {"unretire", "node-a", "1"}, {"retired"}} {
		_, errs, status := c.run(nil, args...)
		if status != cli.ExitError || !strings.HasPrefix(errs, "error: retired.yaml of ConfigMap podgauge/podgauge-retired: yaml: ") || c.retiredFile() != "retired: [" {
			t.Errorf("%q: got status %d, %s", args, status, errs)
		}
	}
}

// TestRetired checks the report on retired devices: in the list, retired by a command, not applied yet, and of no node.
func TestRetired(t *testing.T) {
	now := time.Now()
	c := newFakeCluster(t, map[string]*fakeNode{"node-a": newNode(now), "node-b": healthyNode(now)})
	days := func(n int) time.Time { return now.Add(-time.Duration(n) * 24 * time.Hour) }
	retire := func(d *device.MaskedFault) {
		*d = device.MaskedFault{Reason: "xid_95", Action: "reset_gpu", Since: now, Present: true}
	}
	a := c.nodes["node-a"].devices.Devices
	a[0].Reason, a[0].Healthy, a[0].Note = "retired", false, "fan (alice)"
	a[0].InfoLabels = map[string]string{"serial": "0324018045603"}
	retire(&a[0].MaskedFault)
	a[1].Reason, a[1].Note, a[1].Since = "retired", "noise", days(3)
	a[1].MaskedFault.Reason = "lost"
	c.setRetired(&corev1.ConfigMap{Data: map[string]string{config.RetiredFile: "retired:\n" +
		"- {device: 0324018045603, reason: fan, by: alice, date: " + days(20).Format(time.RFC3339) + "}\n" +
		"- {device: " + mig0 + ", reason: slow, date: " + days(1).Format(time.RFC3339) + "}\n" +
		"- {device: 9999999999, reason: swapped, by: bob, date: " + days(40).Format(time.RFC3339) + "}\n"}})
	for name, args := range map[string][]string{"retired": {"retired"}, "retired_wide": {"retired", "-o=wide"}} {
		out, errs, status := c.run(nil, args...)
		if status != cli.ExitOK || errs != "" {
			t.Errorf("got status %d, %s", status, errs)
		}
		testfile.CheckGolden(t, *update, "testdata/"+name+".txt", out)
	}
	out, _, _ := c.run(nil, "retired", "-o=json")
	for _, want := range []string{`"source": "podgauge/podgauge-retired"`, `"source": "node"`, `"present": true`, `"pending": true`} {
		expect.Contains(t, out, want)
	}
}

// TestNodeCommands checks that the commands on the node run there, with their output and exit status.
func TestNodeCommands(t *testing.T) {
	c := newFakeCluster(t, map[string]*fakeNode{"node-a": {}, "node-b": {}})
	for args, want := range map[string]struct {
		command, out string
		err          error
	}{
		"trust node-b 3":     {"podgauge device trust 3", "GPU 3 is healthy\n", nil},
		"trust node-b 0:1":   {"podgauge device trust 0:1", "GPU 0:1 is unhealthy: lost\n", cli.ErrReported},
		"release node-b":     {"podgauge driver release", "", errors.New("a call hangs")},
		"resume node-b":      {"podgauge driver resume", "\x1b[2J\n", nil},
		"capture node-b":     {"podgauge capture", "{\"podgauge_capture\":1}\n", nil},
		"resume node-x":      {"", "", errors.New("node \"node-x\" has no pod of podgauge")},
		"trust node-b -- -x": {"podgauge device trust -x", "", errors.New("unknown flag")},
	} {
		var ran string
		out, errs, status := c.run(func(c *client) {
			c.runInPod = func(_ context.Context, p *corev1.Pod, command []string) ([]byte, error) {
				ran = strings.Join(command, " ")
				return []byte(want.out), want.err
			}
		}, strings.Fields(args)...)
		wantErr, wantStatus := "", cli.ExitOK
		if want.err != nil {
			wantStatus = cli.ExitError
		}
		if want.err != nil && !errors.Is(want.err, cli.ErrReported) {
			wantErr = "error: " + want.err.Error() + "\n"
		}
		if ran != want.command || out != strings.ReplaceAll(want.out, "\x1b", "\uFFFD") || errs != wantErr || status != wantStatus {
			t.Errorf("%s: ran %q, got status %d, %q, %q", args, ran, status, out, errs)
		}
	}
}
