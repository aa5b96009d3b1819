//go:build cluster

package cluster_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/podgauge/podgauge/test/e2e/cluster"
	"github.com/podgauge/podgauge/test/e2e/node"
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
	waitTimeout = time.Minute
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

func newClusterFixture(ctx context.Context, t *testing.T) *clusterFixture {
	t.Helper()
	return newClusterFixtureOf(ctx, t, cluster.Options())
}

func newClusterFixtureOf(ctx context.Context, t *testing.T, o node.Options) *clusterFixture {
	t.Helper()
	n := node.ForTest(ctx, t, o)
	begin := time.Now()
	c, err := cluster.Up(ctx, n, "baseline")
	if err != nil {
		t.Fatal(err)
	}
	printMeasurement(t, "start of the cluster → the node is ready", formatSeconds(time.Since(begin)))
	s := &clusterFixture{Cluster: c, driver: n.Path("driver"), values: n.Path("values.yaml")}
	image, err := n.LoadImage(ctx, cluster.Archive(repoRoot, "podgauge"))
	if err != nil {
		t.Fatal(err)
	}
	machine := n.Path("machine")
	if err := errors.Join(os.MkdirAll(machine, 0o755), installDriver(ctx, s)); err != nil {
		t.Fatal(err)
	}
	s.machine = nvmltest.NewScenario(filepath.Join(machine, "scenario"))
	// An epoch an hour ago, so that the GPUs' counters continue after a restart of podgauge.
	s.set(t, fmt.Sprintf("epoch %d", time.Now().Add(-time.Hour).Unix()))
	_, tag, _ := strings.Cut(image, ":")
	values := strings.NewReplacer("@TAG@", tag, "@DRIVER@", s.driver, "@MACHINE@", machine).Replace(chartValues)
	if err := os.WriteFile(s.values, []byte(values), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{releaseNamespace, teamNamespace} {
		s.kubectl(ctx, t, "create", "namespace", name)
	}
	return s
}

// installDriver creates the files and device nodes of a driver installation.
func installDriver(ctx context.Context, s *clusterFixture) error {
	libraries := filepath.Join(s.driver, "usr/lib64")
	if err := os.MkdirAll(libraries, 0o755); err != nil {
		return err
	}
	if _, err := nvmltest.Build(libraries); err != nil {
		return err
	}
	script := "mknod /dev/nvidiactl c 195 255\n"
	for i := range gpuCount {
		script += fmt.Sprintf("mknod /dev/nvidia%d c 195 %d\n", i, i)
	}
	_, err := s.Node.Shell(ctx, script)
	return errors.Join(err,
		os.WriteFile(filepath.Join(libraries, "libcuda.so.580.95.05"), nil, 0o755),
		os.WriteFile(filepath.Join(s.driver, "hook"), []byte("#!/bin/sh\n"), 0o755))
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

func (s *clusterFixture) set(t *testing.T, lines ...string) {
	t.Helper()
	if err := s.machine.Set(lines...); err != nil {
		t.Fatal(err)
	}
}

// uuid returns the stand-in's UUID of a GPU.
func uuid(index int) string { return fmt.Sprintf("GPU-00000000-0000-4000-8000-%012d", index) }

func (s *clusterFixture) kubectl(ctx context.Context, t *testing.T, args ...string) string {
	t.Helper()
	out, err := s.Kubectl(ctx, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func (s *clusterFixture) helm(ctx context.Context, t *testing.T, args ...string) string {
	t.Helper()
	out, err := s.Helm(ctx, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func (s *clusterFixture) apply(ctx context.Context, t *testing.T, objects string) {
	t.Helper()
	if _, err := s.Apply(ctx, objects); err != nil {
		t.Fatal(err)
	}
}

// await waits for a condition for at most waitTimeout and returns the time.
func await(ctx context.Context, t *testing.T, what string, try func(context.Context) error) time.Duration {
	t.Helper()
	begin := time.Now()
	ctx, cancel := context.WithTimeout(ctx, waitTimeout)
	defer cancel()
	if err := node.Until(ctx, what, try); err != nil {
		t.Fatal(err)
	}
	return time.Since(begin)
}

// podObject is a pod of the API server.
type podObject struct {
	Metadata struct{ Name, Namespace, UID string }
	Status   struct {
		Phase             string
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

// podgaugePods returns the release's pods.
func (s *clusterFixture) podgaugePods(ctx context.Context) ([]podObject, error) {
	return s.pods(ctx, releaseNamespace, "app.kubernetes.io/instance="+releaseName)
}

// shell runs a script in the node with the sorted process ids of a container in $PIDS.
func (s *clusterFixture) shell(ctx context.Context, t *testing.T, p podObject, script string) string {
	t.Helper()
	_, id, _ := strings.Cut(p.Status.ContainerStatuses[0].ContainerID, "://")
	out, err := s.Node.Shell(ctx, `PIDS=$(grep -l "$ID" /proc/[0-9]*/cgroup 2>/dev/null | cut -d/ -f3 | sort -n | tr '\n' ' ')`+"\n"+script, "ID="+id)
	if err != nil {
		t.Fatal(err)
	}
	return out
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
		if err := s.Get(ctx, s.daemonSetPath(), &set); err != nil {
			return err
		}
		if st := set.Status; st.ObservedGeneration != set.Metadata.Generation || st.DesiredNumberScheduled != n ||
			st.UpdatedNumberScheduled != n || st.NumberAvailable != n || st.NumberMisscheduled != 0 {
			return fmt.Errorf("DaemonSet is %+v", set)
		}
		return nil
	}
}

// allocatable returns the number of allocatable GPUs in the node's status.
func (s *clusterFixture) allocatable(ctx context.Context) (string, error) {
	var n struct {
		Status struct{ Allocatable map[string]string }
	}
	err := s.Get(ctx, "/api/v1/nodes/"+node.Name, &n)
	return n.Status.Allocatable[gpuResource], err
}

func (s *clusterFixture) hasAllocatable(n int) func(context.Context) error {
	return func(ctx context.Context) error {
		if got, err := s.allocatable(ctx); err != nil || got != fmt.Sprint(n) {
			return fmt.Errorf("allocatable GPUs of the node: got %q, want %d: %w", got, n, err)
		}
		return nil
	}
}

// scrape returns the metrics of a podgauge pod, through the API server.
func (s *clusterFixture) scrape(ctx context.Context, p podObject) (map[string]*dto.MetricFamily, error) {
	body, err := s.Read(ctx, fmt.Sprintf("/api/v1/namespaces/%s/pods/%s:9400/proxy/metrics", p.Metadata.Namespace, p.Metadata.Name))
	if err != nil {
		return nil, err
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	return parser.TextToMetricFamilies(bytes.NewReader(body))
}

// scrapeOne returns the metrics of the only podgauge pod.
func (s *clusterFixture) scrapeOne(ctx context.Context) (map[string]*dto.MetricFamily, error) {
	all, err := s.podgaugePods(ctx)
	if err != nil {
		return nil, err
	}
	if len(all) != 1 {
		return nil, fmt.Errorf("%d podgauge pods, want 1", len(all))
	}
	return s.scrape(ctx, all[0])
}

// labelSets returns the labels of a family's series.
func labelSets(family *dto.MetricFamily) []map[string]string {
	all := []map[string]string{}
	for _, m := range family.GetMetric() {
		set := map[string]string{}
		for _, l := range m.Label {
			set[l.GetName()] = l.GetValue()
		}
		all = append(all, set)
	}
	return all
}

// ownerOf returns the pod label of a GPU in a scrape, empty for an unallocated GPU.
func ownerOf(families map[string]*dto.MetricFamily, uuid string) (string, error) {
	for _, l := range labelSets(families["nvidia_gpu_healthy"]) {
		if l["uuid"] == uuid {
			return l["pod"], nil
		}
	}
	return "", errors.New("no series of " + uuid)
}

// printMeasurement logs a measurement in the format that docs/contributing/e2e.md copies.
func printMeasurement(t *testing.T, what, value string) {
	t.Helper()
	t.Logf("figure: %s: %s", what, value)
}

func formatSeconds(d time.Duration) string { return fmt.Sprintf("%.2f s", d.Seconds()) }
