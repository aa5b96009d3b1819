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
	root  = "../../.." // the repository's
	chart = root + "/deploy/helm/podgauge"

	release   = "podgauge"
	namespace = "podgauge"
	team      = "team" // where pods use GPUs

	gpus     = 8
	resource = "nvidia.com/gpu"

	// patience is how long a test waits for what takes seconds. How long something may take is said where it is measured.
	patience = time.Minute
)

// scene is the cluster, and the hardware that podgauge finds in it: a library that obeys the test.
type scene struct {
	*cluster.Cluster
	machine    *nvmltest.Scenario
	driver     string // a folder of the node: a driver's installation, with the library
	values     string // the chart's, by which podgauge finds both
	prometheus *node.Prometheus
	before     []string  // the objects that there were before the release
	installed  time.Time // when that began
}

func newScene(ctx context.Context, t *testing.T) *scene {
	t.Helper()
	n := node.ForTest(ctx, t, cluster.Options())
	begin := time.Now()
	c, err := cluster.Up(ctx, n, "baseline")
	if err != nil {
		t.Fatal(err)
	}
	figure(t, "the cluster is up: its node is ready and takes pods, after", seconds(time.Since(begin)))
	s := &scene{Cluster: c, driver: n.Path("driver"), values: n.Path("values.yaml")}
	image, err := c.LoadImage(ctx, cluster.Archive(root, "podgauge"))
	if err != nil {
		t.Fatal(err)
	}
	machine := n.Path("machine")
	if err := errors.Join(os.MkdirAll(machine, 0o755), installDriver(ctx, s)); err != nil {
		t.Fatal(err)
	}
	s.machine = nvmltest.NewScenario(filepath.Join(machine, "scenario"))
	// It has been up for an hour: the counters of its GPUs go on when podgauge is started anew.
	s.set(t, fmt.Sprintf("epoch %d", time.Now().Add(-time.Hour).Unix()))
	_, tag, _ := strings.Cut(image, ":")
	values := strings.NewReplacer("@TAG@", tag, "@DRIVER@", s.driver, "@MACHINE@", machine).Replace(values)
	if err := os.WriteFile(s.values, []byte(values), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{namespace, team} {
		s.kubectl(ctx, t, "create", "namespace", name)
	}
	return s
}

// installDriver leaves what the installation of a driver does: its files, and the GPUs' nodes.
func installDriver(ctx context.Context, s *scene) error {
	libraries := filepath.Join(s.driver, "usr/lib64")
	if err := os.MkdirAll(libraries, 0o755); err != nil {
		return err
	}
	if _, err := nvmltest.Build(libraries); err != nil {
		return err
	}
	script := "mknod /dev/nvidiactl c 195 255\n"
	for i := range gpus {
		script += fmt.Sprintf("mknod /dev/nvidia%d c 195 %d\n", i, i)
	}
	_, err := s.Node.Shell(ctx, script)
	return errors.Join(err,
		os.WriteFile(filepath.Join(libraries, "libcuda.so.580.95.05"), nil, 0o755),
		os.WriteFile(filepath.Join(s.driver, "hook"), []byte("#!/bin/sh\n"), 0o755))
}

// values have podgauge find the library as NVIDIA's runtime would inject it: mounted into the container, on its path.
const values = `
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

func (s *scene) set(t *testing.T, lines ...string) {
	t.Helper()
	if err := s.machine.Set(lines...); err != nil {
		t.Fatal(err)
	}
}

// uuid of the GPU with this index, as the stand-in names it.
func uuid(index int) string { return fmt.Sprintf("GPU-00000000-0000-4000-8000-%012d", index) }

func (s *scene) kubectl(ctx context.Context, t *testing.T, args ...string) string {
	t.Helper()
	out, err := s.Kubectl(ctx, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func (s *scene) helm(ctx context.Context, t *testing.T, args ...string) string {
	t.Helper()
	out, err := s.Helm(ctx, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func (s *scene) apply(ctx context.Context, t *testing.T, objects string) {
	t.Helper()
	if _, err := s.Apply(ctx, objects); err != nil {
		t.Fatal(err)
	}
}

// await waits for something, for as long as a test has patience, and returns how long it took.
func await(ctx context.Context, t *testing.T, what string, try func(context.Context) error) time.Duration {
	t.Helper()
	begin := time.Now()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := node.Until(ctx, what, try); err != nil {
		t.Fatal(err)
	}
	return time.Since(begin)
}

// pod is what the API server says of one.
type pod struct {
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

func (s *scene) pods(ctx context.Context, namespace, label string) ([]pod, error) {
	var list struct{ Items []pod }
	err := s.Get(ctx, fmt.Sprintf("/api/v1/namespaces/%s/pods?labelSelector=%s", namespace, strings.ReplaceAll(label, "=", "%3D")), &list)
	return list.Items, err
}

// podgauges are the release's pods.
func (s *scene) podgauges(ctx context.Context) ([]pod, error) {
	return s.pods(ctx, namespace, "app.kubernetes.io/instance="+release)
}

// shell runs a script in the node that knows a container's processes, the first one first, as $PIDS.
func (s *scene) shell(ctx context.Context, t *testing.T, p pod, script string) string {
	t.Helper()
	_, id, _ := strings.Cut(p.Status.ContainerStatuses[0].ContainerID, "://")
	out, err := s.Node.Shell(ctx, `PIDS=$(grep -l "$ID" /proc/[0-9]*/cgroup 2>/dev/null | cut -d/ -f3 | sort -n | tr '\n' ' ')`+"\n"+script, "ID="+id)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// daemonSet is ready when its controller says so of what it was last told.
func (s *scene) daemonSet(ctx context.Context) error {
	var set struct {
		Metadata struct{ Generation int }
		Status   struct{ ObservedGeneration, DesiredNumberScheduled, UpdatedNumberScheduled, NumberAvailable, NumberMisscheduled int }
	}
	if err := s.Get(ctx, fmt.Sprintf("/apis/apps/v1/namespaces/%s/daemonsets/%s", namespace, release), &set); err != nil {
		return err
	}
	if st := set.Status; st.ObservedGeneration != set.Metadata.Generation || st.DesiredNumberScheduled != 1 ||
		st.UpdatedNumberScheduled != 1 || st.NumberAvailable != 1 || st.NumberMisscheduled != 0 {
		return fmt.Errorf("the DaemonSet is %+v", set)
	}
	return nil
}

// allocatable is how many GPUs the node's status has to give away.
func (s *scene) allocatable(ctx context.Context) (string, error) {
	var n struct {
		Status struct{ Allocatable map[string]string }
	}
	err := s.Get(ctx, "/api/v1/nodes/"+node.Name, &n)
	return n.Status.Allocatable[resource], err
}

func (s *scene) hasAllocatable(n int) func(context.Context) error {
	return func(ctx context.Context) error {
		if got, err := s.allocatable(ctx); err != nil || got != fmt.Sprint(n) {
			return fmt.Errorf("the node has %q, %w", got, err)
		}
		return nil
	}
}

// scrape asks a podgauge for its metrics, through the API server.
func (s *scene) scrape(ctx context.Context, p pod) (map[string]*dto.MetricFamily, error) {
	body, err := s.Read(ctx, fmt.Sprintf("/api/v1/namespaces/%s/pods/%s:9400/proxy/metrics", p.Metadata.Namespace, p.Metadata.Name))
	if err != nil {
		return nil, err
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	return parser.TextToMetricFamilies(bytes.NewReader(body))
}

// scraped asks the one podgauge that there is.
func (s *scene) scraped(ctx context.Context) (map[string]*dto.MetricFamily, error) {
	all, err := s.podgauges(ctx)
	if err != nil {
		return nil, err
	}
	if len(all) != 1 {
		return nil, fmt.Errorf("there are %d podgauges", len(all))
	}
	return s.scrape(ctx, all[0])
}

// labels of a family's series.
func labels(family *dto.MetricFamily) []map[string]string {
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

// holder is the pod that has a GPU by what a scrape says, empty where none has.
func holder(families map[string]*dto.MetricFamily, uuid string) (string, error) {
	for _, l := range labels(families["nvidia_gpu_healthy"]) {
		if l["uuid"] == uuid {
			return l["pod"], nil
		}
	}
	return "", errors.New("no series of " + uuid)
}

// figure prints what was measured, in the one form that docs/e2e.md copies.
func figure(t *testing.T, what, value string) {
	t.Helper()
	t.Logf("figure: %s: %s", what, value)
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.2f s", d.Seconds()) }
