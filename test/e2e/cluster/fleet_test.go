//go:build cluster

package cluster_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/test/e2e/cluster"
	"github.com/podgauge/podgauge/test/e2e/node"
	"github.com/prometheus/procfs"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	fleetNodes   = 500
	fleetRack    = 50          // nodes that fail at once
	fleetIdle    = time.Minute // measured without a fault
	fleetMetrics = "127.0.0.1:19401"
)

// fleet is a fleet with a controller.
type fleet struct {
	*cluster.Fleet
	c *cluster.Cluster
}

// startController starts podgauge-kube as the administrator: rights_test.go and device_taints_test.go test its own rights.
func (f *fleet) startController(t *testing.T) *exec.Cmd {
	t.Helper()
	p := exec.Command(repoRoot+"/bin/podgauge-kube", "controller", "--kubeconfig="+f.c.Kubeconfig,
		"--namespace="+cluster.FleetNamespace, "--lease-namespace="+cluster.FleetNamespace, fmt.Sprintf("--port=%d", cluster.FleetPort),
		"--events", "--node-condition=podgauge", "--device-taints", "--web.listen-address="+fleetMetrics)
	log := &strings.Builder{}
	p.Stdout, p.Stderr = log, log
	must(t, p.Start())
	t.Cleanup(func() {
		p.Process.Kill() //nolint:errcheck // may have ended
		p.Wait()         //nolint:errcheck // killed
		if t.Failed() {
			t.Log(log)
		}
	})
	return p
}

// metric returns the sum of the controller's series with a prefix.
func (f *fleet) metric(ctx context.Context, prefix string) (sum float64, err error) {
	text, err := get(ctx, "http://"+fleetMetrics+"/metrics")
	for line := range strings.Lines(text) {
		var value float64
		if !strings.HasPrefix(line, prefix) {
			continue
		}
		if _, err := fmt.Sscan(line[strings.LastIndex(line, " ")+1:], &value); err != nil {
			return 0, err
		}
		sum += value
	}
	return sum, err
}

// follows returns an error unless the controller follows a number of nodes.
func (f *fleet) follows(want float64) func(context.Context) error {
	return func(ctx context.Context) error {
		got, err := f.metric(ctx, `podgauge_kube_nodes{state="followed"}`)
		if err == nil && got != want {
			err = fmt.Errorf("%v nodes are followed, want %v", got, want)
		}
		return err
	}
}

// conditions returns the conditions GPUUnhealthy by node.
func (f *fleet) conditions(ctx context.Context) (map[string]corev1.NodeCondition, error) {
	list, err := f.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return nil, err
	}
	all := map[string]corev1.NodeCondition{}
	for i := range list.Items {
		for _, c := range list.Items[i].Status.Conditions {
			if c.Type == "GPUUnhealthy" {
				all[list.Items[i].Name] = c
			}
		}
	}
	return all, nil
}

// hasConditions returns a check of the numbers of nodes with the condition, and of those with a fault.
func (f *fleet) hasConditions(known, failed int) func(context.Context) error {
	return func(ctx context.Context) error {
		all, err := f.conditions(ctx)
		if err != nil {
			return err
		}
		faults := 0
		for _, c := range all {
			if c.Status == corev1.ConditionTrue {
				faults++
			}
		}
		if len(all) != known || faults != failed {
			err = fmt.Errorf("%d nodes have the condition and %d a fault, want %d and %d", len(all), faults, known, failed)
		}
		return err
	}
}

// usage returns the CPU time in seconds, the requests and the memory in MiB of the controller so far.
func (f *fleet) usage(t *testing.T, p *exec.Cmd) (cpu, requests, memory float64) {
	t.Helper()
	process, err := procfs.NewProc(p.Process.Pid)
	must(t, err)
	stat, err := process.Stat()
	must(t, err)
	requests, err = f.metric(t.Context(), "podgauge_kube_requests_total")
	must(t, err)
	return stat.CPUTime(), requests, float64(stat.ResidentMemory()) / (1 << 20)
}

// TestControllerFleet measures podgauge-kube with 500 simulated nodes: memory, CPU time and requests, a rack that fails at once beside a hung
// node, and a restart, after which no condition, no event and no taint has changed.
func TestControllerFleet(t *testing.T) {
	n := node.ForTest(t.Context(), t, cluster.Options())
	c, err := cluster.Up(t.Context(), n, "privileged")
	must(t, err)
	simulated, err := c.NewFleet(t.Context(), fleetNodes)
	must(t, err)
	t.Cleanup(func() { simulated.Close() })
	f := fleet{simulated, c}
	f.Hang(fleetNodes - 1)

	begin := time.Now()
	p := f.startController(t)
	await(t, "the controller follows all nodes but the hung one", f.follows(fleetNodes-1))
	await(t, "all nodes but the hung one have the condition", f.hasConditions(fleetNodes-1, 0))
	printMeasurement(t, fmt.Sprintf("start with %d nodes → each has the condition", fleetNodes), formatSeconds(time.Since(begin)))
	cpu, requests, _ := f.usage(t, p)
	printMeasurement(t, "start: CPU time, requests to the API server", fmt.Sprintf("%.2f s, %.0f", cpu, requests))

	time.Sleep(fleetIdle)
	cpuIdle, requestsIdle, memory := f.usage(t, p)
	printMeasurement(t, "a minute without a fault: CPU time, requests, memory",
		fmt.Sprintf("%.2f s, %.0f, %.0f MiB", cpuIdle-cpu, requestsIdle-requests, memory))

	begin = time.Now()
	for i := range fleetRack {
		f.Fail(i)
	}
	await(t, "the rack has the fault", f.hasConditions(fleetNodes-1, fleetRack))
	printMeasurement(t, fmt.Sprintf("%d nodes fail at once → conditions", fleetRack), formatSeconds(time.Since(begin)))
	await(t, "the rack has taints", f.hasRules(fleetRack))
	printMeasurement(t, fmt.Sprintf("%d nodes fail at once → DeviceTaintRules", fleetRack), formatSeconds(time.Since(begin)))
	await(t, "the rack has events", f.hasEvents(fleetRack))
	_, requests, _ = f.usage(t, p)
	printMeasurement(t, fmt.Sprintf("%d nodes fail at once: requests", fleetRack), fmt.Sprintf("%.0f", requests-requestsIdle))

	before, err := f.conditions(t.Context())
	must(t, err)
	rulesBefore, err := f.rules(t.Context())
	must(t, err)
	must(t, p.Process.Kill())
	begin = time.Now()
	p.Wait() //nolint:errcheck // killed
	f.startController(t)
	await(t, "the next controller follows all nodes", f.follows(fleetNodes-1))
	printMeasurement(t, "kill and start (the lease lasts 15 s) → all nodes followed", formatSeconds(time.Since(begin)))
	time.Sleep(10 * time.Second) // for repeated reports
	after, err := f.conditions(t.Context())
	must(t, err)
	for name, c := range after {
		if b := before[name]; c.LastTransitionTime != b.LastTransitionTime || c.Status != b.Status || c.Message != b.Message {
			got, _ := json.Marshal(c)
			t.Errorf("condition of %s after a restart: got %s, want as before", name, got)
		}
	}
	must(t, f.hasEvents(fleetRack)(t.Context()))
	rulesAfter, err := f.rules(t.Context())
	must(t, err)
	if !slices.Equal(rulesAfter, rulesBefore) {
		t.Errorf("rules after a restart: got %q, want %q", rulesAfter, rulesBefore)
	}
}

// rules returns name, UID and generation of the DeviceTaintRules.
func (f *fleet) rules(ctx context.Context) ([]string, error) {
	out, err := f.c.Kubectl(ctx, "get", "devicetaintrules",
		`--output=jsonpath={range .items[*]}{.metadata.name} {.metadata.uid} {.metadata.generation}{"\n"}{end}`)
	return slices.Collect(strings.Lines(out)), err
}

// hasRules returns a check of the number of DeviceTaintRules.
func (f *fleet) hasRules(want int) func(context.Context) error {
	return func(ctx context.Context) error {
		rules, err := f.rules(ctx)
		if err == nil && len(rules) != want {
			err = fmt.Errorf("%d rules, want %d", len(rules), want)
		}
		return err
	}
}

// hasEvents returns a check of the number of events about failed GPUs, each with count 1.
func (f *fleet) hasEvents(want int) func(context.Context) error {
	return func(ctx context.Context) error {
		list, err := f.Client.CoreV1().Events("").List(ctx, metav1.ListOptions{FieldSelector: "reason=GPUUnhealthy"})
		if err != nil {
			return err
		}
		for i := range list.Items {
			if list.Items[i].Count != 1 {
				return fmt.Errorf("event %s has count %d", list.Items[i].Name, list.Items[i].Count)
			}
		}
		if len(list.Items) != want {
			err = fmt.Errorf("%d events, want %d", len(list.Items), want)
		}
		return err
	}
}
