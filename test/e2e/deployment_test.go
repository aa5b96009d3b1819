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

// deployedPodgauge is podgauge in a container, as a DaemonSet has it, where it sees of the node what its pod was given.
type deployedPodgauge struct {
	*podgaugeProcess // without a process of its own
	pod              node.StaticPod
}

// deploy has the kubelet run podgauge in a pod, whose name and namespaces the caller chooses, and waits until its GPUs can be had. Of the node
// it has the kubelet's sockets for devices and these paths.
func (m *simulatedMachine) deploy(ctx context.Context, t *testing.T, n *node.RealNode, pod node.StaticPod, paths []string, args ...string) *deployedPodgauge {
	t.Helper()
	command := commandLine(t, m.withStateDir(args)...)
	pod.HostNetwork, pod.Grace = true, 5*time.Second
	pod.HostPaths = slices.Concat([]string{
		"/lib", "/lib64", filepath.Dir(command[0]), m.libraryDir, // what it was built for, since the image has nothing but box
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

// removePod has its pod end, and waits until it has.
func (d *deployedPodgauge) removePod(ctx context.Context, t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, waitTimeout)
	defer cancel()
	if err := d.n.RemovePod(ctx, d.pod); err != nil {
		t.Fatal(err)
	}
	if left := d.sockets(t); len(left) > 0 {
		t.Errorf("podgauge left %q", left)
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

// TestSharesInPods has podgauge run in pods that see more of the node, or less: in the node's pid namespace it knows whose each process is,
// whichever one of the sources of names it has, and in another it says nothing of processes, and all else.
func TestSharesInPods(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	n := node.ForTest(ctx, t, node.Options{Containerd2: true})
	startKubelet(ctx, t, n)
	backdateKubelet(t, n)
	config := newConfigMap(t, n, timeSlicingConfig(4))
	m := newMachine(t, n, "gpus 1")
	args := []string{"--config-file=" + config.path()}
	logs := "--pod-logs-dir=" + n.PodLogs()
	nowhere := "--pod-logs-dir=/nowhere"
	const links, podsAPI = "/var/log/containers", "/var/lib/kubelet/pods-api"

	first := m.deploy(ctx, t, n, node.StaticPod{Name: "first", HostPID: true}, []string{links, podsAPI}, append(args, logs)...)
	waitForResources(ctx, t, n, idsByResource{gpuResource: replicaIDs(uuid(0), 4)})
	all := runSharedGPUPods(ctx, t, n, m)
	if err := checkUsage(first.nextScrape(ctx, t), uuid(0), all.usage, all.unattributed); err != nil {
		t.Error(err)
	}
	whole := first.nextScrape(ctx, t) // by now there are means between two samples
	first.removePod(ctx, t)

	for _, by := range []struct {
		name  string
		paths []string
		logs  string
		since string // the oldest kubelet that has it
	}{
		{"links", []string{links}, nowhere, ""},
		{"pods-api", []string{podsAPI}, nowhere, "v1.37"},
	} {
		if n.KubeletVersion < by.since {
			continue
		}
		t.Run("names by "+by.name, func(t *testing.T) {
			d := m.deploy(ctx, t, n, node.StaticPod{Name: by.name, HostPID: true}, by.paths, append(args, by.logs)...)
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
		// A folder tells the pod, and the container where the pod has one: of the other nobody knows which one it is.
		uses, rest := map[node.OwnerKey]processUsage{}, all.unattributed
		for h, u := range all.usage {
			if uses[h] = u; h.Pod == all.secondPod.FullName() {
				uses[h] = processUsage{}
				rest.memory, rest.sm, rest.decoder, rest.processes = rest.memory+u.memory, rest.sm+u.sm, rest.decoder+u.decoder, rest.processes+u.processes
			}
		}
		if err := checkUsage(d.nextScrape(ctx, t), uuid(0), uses, rest); err != nil {
			t.Error(err)
		}
		d.removePod(ctx, t)
	})
	for _, pod := range []node.StaticPod{{Name: "without"}, {Name: "shared", ShareProcesses: true}} {
		t.Run("pid namespace "+pod.Name, func(t *testing.T) {
			d := m.deploy(ctx, t, n, pod, []string{links, podsAPI}, append(args, logs)...)
			waitForResources(ctx, t, n, idsByResource{gpuResource: replicaIDs(uuid(0), 4)})
			d.scrapeUntil(ctx, t, "all else is there", func(s metricsScrape) error { return compareFamilies(s, whole, containerPrefix, unattributedPrefix) })
			if said := d.logLines(t, "processes not visible", "hostPID"); len(said) != 1 {
				t.Errorf("that is said %d times: %q", len(said), said)
			}
			d.removePod(ctx, t)
		})
	}
	checkKubeletNotRestarted(t, n)
}

// compareFamilies says where a scrape differs from another one in which families there are, but for those that begin so, which it must not have.
func compareFamilies(s, whole metricsScrape, beginnings ...string) error {
	wrong := []error{}
	if found := familiesWithPrefix(s, beginnings...); len(found) > 0 {
		wrong = append(wrong, fmt.Errorf("there are %q", found))
	}
	if len(familiesWithPrefix(whole, beginnings...)) == 0 {
		wrong = append(wrong, errors.New("there is nothing to lack"))
	}
	for name, series := range whole.series {
		lacking := slices.ContainsFunc(beginnings, func(b string) bool { return strings.HasPrefix(name, b) })
		if strings.HasPrefix(name, "nvidia_gpu_") && !lacking && len(s.series[name]) != len(series) {
			wrong = append(wrong, fmt.Errorf("%s has %d series, not %d", name, len(s.series[name]), len(series)))
		}
	}
	return errors.Join(wrong...)
}
