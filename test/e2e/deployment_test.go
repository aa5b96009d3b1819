package e2e

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/test/e2e/node"
)

// deployedPodgauge is podgauge in a pod, as with a DaemonSet. It has access only to the host paths and namespaces of its pod.
type deployedPodgauge struct {
	*podgaugeProcess // Process is nil
	pod              node.StaticPod
}

// deploy runs podgauge in a pod with the name and namespaces of the argument, and waits until podgauge serves HTTP. The pod mounts these
// paths of the node, and the kubelet's folders of the device-plugin and pod-resources sockets.
func (m *simulatedMachine) deploy(
	ctx context.Context, t *testing.T, n *node.RealNode, pod node.StaticPod, paths []string, args ...string,
) *deployedPodgauge {
	t.Helper()
	command := commandLine(t, m.withStateDir(args)...)
	pod.HostNetwork, pod.Grace = true, 5*time.Second
	pod.HostPaths = slices.Concat([]string{
		"/lib", "/lib64", filepath.Dir(command[0]), m.libraryDir, // podgauge and its libraries: the image contains only testcmd
		filepath.Dir(m.scenarioFile), "/var/lib/kubelet/device-plugins", "/var/lib/kubelet/pod-resources",
	}, paths)
	env := map[string]string{"LD_LIBRARY_PATH": m.libraryDir}
	for _, variable := range m.environ() {
		name, value, _ := strings.Cut(variable, "=")
		env[name] = value
	}
	pod.Containers = []node.StaticContainer{{Name: "podgauge", Command: command, Env: env}}
	runPod(ctx, t, n, pod)
	d := &deployedPodgauge{podgaugeProcess: newPodgaugeProcess(n), pod: pod}
	d.waitUntilListening(ctx, t)
	return d
}

// removePod removes podgauge's pod and checks that podgauge removed its sockets.
func (d *deployedPodgauge) removePod(ctx context.Context, t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, waitTimeout)
	defer cancel()
	if err := d.n.RemovePod(ctx, d.pod); err != nil {
		t.Fatal(err)
	}
	if left := d.sockets(t); len(left) > 0 {
		t.Errorf("podgauge's sockets after its exit: got %q, want none", left)
	}
}

func (d *deployedPodgauge) logLines(t *testing.T, words ...string) []string {
	t.Helper()
	out, err := containerLog(d.n, d.pod, "podgauge")
	if err != nil {
		t.Fatal(err)
	}
	return linesWith(out, words...)
}

// TestUsageFromPods checks process usage if podgauge runs in pods with different access to the node. In the node's pid namespace each
// source of container names suffices. In other pid namespaces only the families of processes are missing.
func TestUsageFromPods(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	n := node.ForTest(ctx, t, node.Options{Containerd2: true})
	startKubelet(ctx, t, n)
	backdateKubelet(t, n)
	config := newConfigMap(t, n, timeSlicingConfig(4))
	m := newMachine(t, n, "gpus 1")
	args := []string{"--config-file=" + config.path()}
	logs := "--pod-logs-dir=" + n.PodLogs()
	noLogs := "--pod-logs-dir=/nowhere"
	const links, podsAPI = "/var/log/containers", "/var/lib/kubelet/pods-api"

	first := m.deploy(ctx, t, n, node.StaticPod{Name: "first", HostPID: true}, []string{links, podsAPI}, append(args, logs)...)
	waitForResources(ctx, t, n, idsByResource{gpuResource: replicaIDs(uuid(0), 4)})
	all := runSharedGPUPods(ctx, t, n, m)
	if err := checkUsage(first.nextScrape(ctx, t), uuid(0), all.usage, all.unattributed); err != nil {
		t.Error(err)
	}
	full := first.nextScrape(ctx, t) // includes means between two samples
	first.removePod(ctx, t)

	for _, source := range []struct {
		name  string
		paths []string
		logs  string
		since string // oldest kubelet version with the source
	}{
		{"links", []string{links}, noLogs, ""},
		{"pods-api", []string{podsAPI}, noLogs, "v1.37"},
	} {
		if n.KubeletVersion < source.since {
			continue
		}
		t.Run("names by "+source.name, func(t *testing.T) {
			d := m.deploy(ctx, t, n, node.StaticPod{Name: source.name, HostPID: true}, source.paths, append(args, source.logs)...)
			waitForResources(ctx, t, n, idsByResource{gpuResource: replicaIDs(uuid(0), 4)})
			if err := checkUsage(d.nextScrape(ctx, t), uuid(0), all.usage, all.unattributed); err != nil {
				t.Error(err)
			}
			d.removePod(ctx, t)
		})
	}
	t.Run("names by folders", func(t *testing.T) {
		d := m.deploy(ctx, t, n, node.StaticPod{Name: "folders", HostPID: true}, nil, append(args, logs)...)
		waitForResources(ctx, t, n, idsByResource{gpuResource: replicaIDs(uuid(0), 4)})
		// A log folder identifies only the pod. In a pod with several containers, usage is unattributed.
		usage, rest := map[node.OwnerKey]processUsage{}, all.unattributed
		for owner, u := range all.usage {
			if usage[owner] = u; owner.Pod == all.secondPod.FullName() {
				usage[owner] = processUsage{}
				rest.memory, rest.sm, rest.decoder, rest.processes = rest.memory+u.memory, rest.sm+u.sm, rest.decoder+u.decoder, rest.processes+u.processes
			}
		}
		if err := checkUsage(d.nextScrape(ctx, t), uuid(0), usage, rest); err != nil {
			t.Error(err)
		}
		d.removePod(ctx, t)
	})
	for _, pod := range []node.StaticPod{{Name: "without"}, {Name: "shared", ShareProcesses: true}} {
		t.Run("pid namespace "+pod.Name, func(t *testing.T) {
			d := m.deploy(ctx, t, n, pod, []string{links, podsAPI}, append(args, logs)...)
			waitForResources(ctx, t, n, idsByResource{gpuResource: replicaIDs(uuid(0), 4)})
			d.scrapeUntil(ctx, t, "all other families are exported", func(s metricsScrape) error {
				return compareFamilies(s, full, containerPrefix, unattributedPrefix)
			})
			if lines := d.logLines(t, "processes not visible", "hostPID"); len(lines) != 1 {
				t.Errorf("log lines about invisible processes: got %q, want one", lines)
			}
			d.removePod(ctx, t)
		})
	}
	checkKubeletNotRestarted(t, n)
}

// compareFamilies returns an error unless a scrape has the same families as a full scrape, except for the families with these prefixes.
// These families must exist in the full scrape only.
func compareFamilies(s, full metricsScrape, prefixes ...string) error {
	wrong := []error{}
	if found := familiesWithPrefix(s, prefixes...); len(found) > 0 {
		wrong = append(wrong, fmt.Errorf("families with prefixes %q: got %q, want none", prefixes, found))
	}
	if len(familiesWithPrefix(full, prefixes...)) == 0 {
		wrong = append(wrong, fmt.Errorf("families with prefixes %q in the full scrape: got none", prefixes))
	}
	for name, series := range full.series {
		excluded := slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
		if strings.HasPrefix(name, "nvidia_gpu_") && !excluded && len(s.series[name]) != len(series) {
			wrong = append(wrong, fmt.Errorf("number of series %s: got %d, want %d", name, len(s.series[name]), len(series)))
		}
	}
	return errors.Join(wrong...)
}
