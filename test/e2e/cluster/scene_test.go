//go:build cluster

package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/podgauge/podgauge/test/e2e/cluster"
	"github.com/podgauge/podgauge/test/e2e/node"
	"github.com/podgauge/podgauge/test/helpers/program"
	nvmltest "github.com/podgauge/podgauge/test/nvml"
)

const (
	repoRoot = "../../.." // repository root
	chartDir = repoRoot + "/deploy/helm/podgauge"

	releaseName      = "podgauge"
	releaseNamespace = "podgauge"
	teamNamespace    = "team" // of pods with GPUs

	gpuCount    = 8
	gpuResource = "nvidia.com/gpu"

	// waitTimeout limits waits for operations that need seconds. Measured operations have separate limits.
	waitTimeout = 2 * time.Minute // controllers need up to a minute after an outage of the API server
)

// clusterFixture is the cluster with the NVML stand-in as hardware.
type clusterFixture struct {
	*cluster.Cluster
	machine        *nvmltest.Scenario
	driver         string // folder of the node with a driver installation
	values         string // chart values for library and scenario
	prometheus     *node.PrometheusServer
	objectsBefore  []string  // objects before the installation
	installStarted time.Time // start of the installation
}

// clusterStep is a part of a test. Later steps depend on earlier steps.
type clusterStep struct {
	name string
	run  func(*testing.T, *clusterFixture)
}

func (s *clusterFixture) runSteps(t *testing.T, steps ...clusterStep) {
	t.Helper()
	for _, step := range steps {
		if !t.Run(step.name, func(t *testing.T) { step.run(t, s) }) {
			return
		}
	}
}

// newClusterFixture starts a cluster whose namespaces reject privileged pods, and prepares the node.
func newClusterFixture(t *testing.T, o node.Options) *clusterFixture {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*waitTimeout)
	defer cancel()
	n := node.ForTest(ctx, t, o)
	begin := time.Now()
	c, err := cluster.Up(ctx, n, "baseline")
	must(t, err)
	printMeasurement(t, "start of the cluster → the node is ready", formatSeconds(time.Since(begin)))
	s := &clusterFixture{Cluster: c, driver: n.Path("driver"), values: n.Path("values.yaml")}
	image, err := n.LoadImage(ctx, cluster.Archive(repoRoot, "podgauge"))
	must(t, err)
	s.installDriver(t)
	machine := n.Path("machine")
	must(t, os.MkdirAll(machine, 0o755))
	s.machine = nvmltest.NewScenario(filepath.Join(machine, "scenario"))
	// An epoch an hour ago, so that the GPUs' counters continue after a restart of podgauge.
	must(t, s.machine.Set(fmt.Sprintf("epoch %d", time.Now().Add(-time.Hour).Unix())))
	_, tag, _ := strings.Cut(image, ":")
	values := strings.NewReplacer("@TAG@", tag, "@DRIVER@", s.driver, "@MACHINE@", machine).Replace(chartValues)
	must(t, os.WriteFile(s.values, []byte(values), 0o644))
	for _, name := range []string{releaseNamespace, teamNamespace} {
		s.kubectl(t, "create", "namespace", name)
	}
	return s
}

// installDriver creates the files and device nodes of a driver installation.
func (s *clusterFixture) installDriver(t *testing.T) {
	t.Helper()
	libraries := filepath.Join(s.driver, "usr/lib64")
	must(t, os.MkdirAll(libraries, 0o755))
	_, err := nvmltest.Build(libraries)
	must(t, err)
	must(t, os.WriteFile(filepath.Join(libraries, "libcuda.so.580.95.05"), nil, 0o755))
	must(t, os.WriteFile(filepath.Join(s.driver, "hook"), []byte("#!/bin/sh\n"), 0o755))
	script := "mknod /dev/nvidiactl c 195 255\n"
	for i := range gpuCount {
		script += fmt.Sprintf("mknod /dev/nvidia%d c 195 %d\n", i, i)
	}
	_, err = s.Node.Shell(t.Context(), script)
	must(t, err)
}

// chartValues mounts the library into podgauge's container, as NVIDIA's runtime does.
const chartValues = `
image: {tag: "@TAG@", pullPolicy: Never}
runtimeClassName: ""
gpuNodesOnly: false
podMonitor: {enabled: true}
prometheusRule: {enabled: true}
dashboards: {enabled: true}
claims: {ignore: [observers/*]}
extraEnv:
  - {name: LD_LIBRARY_PATH, value: /injected}
  - {name: NVML_STANDIN, value: /machine/scenario}
extraVolumes:
  - {name: injected, hostPath: {path: "@DRIVER@/usr/lib64", type: Directory}}
  - {name: machine, hostPath: {path: "@MACHINE@", type: Directory}}
extraVolumeMounts:
  - {name: injected, mountPath: /injected, readOnly: true}
  - {name: machine, mountPath: /machine, readOnly: true}
`

// uuid returns the stand-in's UUID of a GPU.
func uuid(index int) string { return fmt.Sprintf("GPU-00000000-0000-4000-8000-%012d", index) }

// uuids returns the UUIDs of all GPUs, ordered by minor number.
func uuids() (all []string) {
	for i := range gpuCount {
		all = append(all, uuid(i))
	}
	return all
}

func (s *clusterFixture) kubectl(t *testing.T, args ...string) string {
	t.Helper()
	out, err := s.Kubectl(t.Context(), args...)
	must(t, err)
	return out
}

func (s *clusterFixture) helm(t *testing.T, args ...string) string {
	t.Helper()
	out, err := s.Helm(t.Context(), args...)
	must(t, err)
	return out
}

func (s *clusterFixture) apply(t *testing.T, objects string) {
	t.Helper()
	_, err := s.Apply(t.Context(), objects)
	must(t, err)
}

// must ends the test after an error.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// await waits for a condition for at most waitTimeout.
func await(t *testing.T, what string, try func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	must(t, node.Until(ctx, what, try))
}

// podObject is a pod of the API server.
type podObject struct {
	Metadata struct{ Name, UID, DeletionTimestamp string }
	Spec     struct{ Containers []struct{ Image string } }
	Status   struct {
		Phase, PodIP      string
		ContainerStatuses []struct {
			Name, ContainerID string
			RestartCount      int
			Ready             bool
		}
	}
}

func (s *clusterFixture) pods(ctx context.Context, namespace, label string) ([]podObject, error) {
	var list struct{ Items []podObject }
	err := s.Get(ctx, fmt.Sprintf("/api/v1/namespaces/%s/pods?labelSelector=%s", namespace, strings.ReplaceAll(label, "=", "%3D")), &list)
	return list.Items, err
}

// trainers returns the pods of runTrainers.
func (s *clusterFixture) trainers(t *testing.T) []podObject {
	t.Helper()
	pods, err := s.pods(t.Context(), teamNamespace, "app=trainer")
	must(t, err)
	return pods
}

// podgaugePods returns the pods of the release's DaemonSet.
func (s *clusterFixture) podgaugePods(ctx context.Context) ([]podObject, error) {
	return s.pods(ctx, releaseNamespace, "app.kubernetes.io/name="+releaseName)
}

// podgaugePod returns the release's only pod.
func (s *clusterFixture) podgaugePod(ctx context.Context) (podObject, error) {
	all, err := s.podgaugePods(ctx)
	if err != nil || len(all) != 1 {
		return podObject{}, fmt.Errorf("podgauge pods: got %v, want 1: %w", all, err)
	}
	return all[0], nil
}

// gpuPod has GPUs and ends with its container.
const gpuPod = `
apiVersion: v1
kind: Pod
metadata: {name: @NAME@, namespace: team, labels: {team: red}}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 1
  containers:
    - {name: main, image: "@IMAGE@", imagePullPolicy: Never, args: [stubborn], resources: {limits: {nvidia.com/gpu: 1}}}
`

// runGPUPod runs a pod with a GPU and returns the pod and the index of its GPU.
func (s *clusterFixture) runGPUPod(t *testing.T, name string) (p podObject, gpu int) {
	t.Helper()
	s.apply(t, strings.NewReplacer("@NAME@", name, "@IMAGE@", node.TestImage).Replace(gpuPod))
	s.kubectl(t, "wait", "--namespace="+teamNamespace, "pod/"+name, "--for=condition=Ready", "--timeout="+waitTimeout.String())
	must(t, s.Get(t.Context(), "/api/v1/namespaces/"+teamNamespace+"/pods/"+name, &p))
	owners, err := s.Node.Owners(t.Context(), gpuResource)
	must(t, err)
	for i := range gpuCount {
		if owners[uuid(i)].Pod == name {
			return p, i
		}
	}
	t.Fatalf("pod %s has no GPU: owners are %v", name, owners)
	return p, 0
}

// shell runs a script in the node with the sorted process ids of a container in $PIDS.
func (s *clusterFixture) shell(t *testing.T, p podObject, script string) string {
	t.Helper()
	_, id, _ := strings.Cut(p.Status.ContainerStatuses[0].ContainerID, "://")
	out, err := s.Node.Shell(t.Context(), `PIDS=$(grep -l "$ID" /proc/[0-9]*/cgroup 2>/dev/null | cut -d/ -f3 | sort -n | tr '\n' ' ')`+"\n"+script, "ID="+id)
	must(t, err)
	return out
}

// kill ends a pod's container.
func (s *clusterFixture) kill(t *testing.T, p podObject) {
	t.Helper()
	s.shell(t, p, `for pid in $PIDS; do kill -9 "$pid" || true; done`)
}

func (s *clusterFixture) daemonSetPath() string {
	return fmt.Sprintf("/apis/apps/v1/namespaces/%s/daemonsets/%s", releaseNamespace, releaseName)
}

// daemonSet returns an error unless the DaemonSet's current generation is ready on the only node.
func (s *clusterFixture) daemonSet(ctx context.Context) error { return s.daemonSetOn(1)(ctx) }

// daemonSetOn is daemonSet for n nodes.
func (s *clusterFixture) daemonSetOn(n int) func(context.Context) error {
	return func(ctx context.Context) error {
		var set struct {
			Metadata struct{ Generation int }
			Status   struct{ ObservedGeneration, DesiredNumberScheduled, UpdatedNumberScheduled, NumberAvailable, NumberMisscheduled int }
		}
		err := s.Get(ctx, s.daemonSetPath(), &set)
		st := set.Status
		current := st.ObservedGeneration == set.Metadata.Generation && st.NumberMisscheduled == 0
		if err == nil && (!current || st.DesiredNumberScheduled != n || st.UpdatedNumberScheduled != n || st.NumberAvailable != n) {
			err = fmt.Errorf("DaemonSet is %+v", set)
		}
		return err
	}
}

// hasAllocatable returns a condition for await: the node's status has this number of allocatable GPUs.
func (s *clusterFixture) hasAllocatable(n int) func(context.Context) error {
	return func(ctx context.Context) error {
		var object struct {
			Status struct{ Allocatable map[string]string }
		}
		err := s.Get(ctx, "/api/v1/nodes/"+node.Name, &object)
		if got := object.Status.Allocatable[gpuResource]; err != nil || got != fmt.Sprint(n) {
			return fmt.Errorf("allocatable GPUs of the node: got %q, want %d: %w", got, n, err)
		}
		return nil
	}
}

// hasEvent returns a condition for await: an event of a namespace and fields has a text.
func (s *clusterFixture) hasEvent(namespace, fields, text string) func(context.Context) error {
	return func(ctx context.Context) error {
		out, err := s.Kubectl(ctx, "get", "events", "--namespace="+namespace, "--field-selector="+fields)
		if err == nil && !strings.Contains(out, text) {
			err = fmt.Errorf("events lack %q:\n%s", text, out)
		}
		return err
	}
}

// get requests a path of the only podgauge pod, without the API server.
func (s *clusterFixture) get(ctx context.Context, path string) (string, error) {
	p, err := s.podgaugePod(ctx)
	if err != nil {
		return "", err
	}
	return get(ctx, p.url()+path)
}

func (p podObject) url() string { return "http://" + p.Status.PodIP + ":9400" }

func get(ctx context.Context, url string) (string, error) {
	return program.Fetch(ctx, &http.Client{Timeout: 5 * time.Second}, url)
}

// series returns the labels of a family's series of the only podgauge pod.
func (s *clusterFixture) series(ctx context.Context, family string) ([]map[string]string, error) {
	body, err := s.get(ctx, "/metrics")
	if err != nil {
		return nil, err
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(body))
	all := []map[string]string{}
	for _, m := range families[family].GetMetric() {
		labels := map[string]string{}
		for _, l := range m.Label {
			labels[l.GetName()] = l.GetValue()
		}
		all = append(all, labels)
	}
	return all, err
}

// checkOwners compares the owner labels of these GPUs in /metrics.
func (s *clusterFixture) checkOwners(ctx context.Context, want map[string]node.OwnerKey) error {
	all, err := s.series(ctx, "nvidia_gpu_healthy")
	if err != nil {
		return err
	}
	got := map[string]node.OwnerKey{}
	for _, l := range all {
		got[l["uuid"]] = node.OwnerKey{Namespace: l["namespace"], Pod: l["pod"], Container: l["container"]}
	}
	wrong := []error{}
	for id, w := range want {
		if got[id] != w {
			wrong = append(wrong, fmt.Errorf("owner labels of %s: got %v, want %v", id, got[id], w))
		}
	}
	return errors.Join(wrong...)
}

// printMeasurement logs a measurement in the format that docs/contributing/e2e.md copies.
func printMeasurement(t *testing.T, what, value string) {
	t.Helper()
	t.Logf("figure: %s: %s", what, value)
}

func formatSeconds(d time.Duration) string { return fmt.Sprintf("%.2f s", d.Seconds()) }
