package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/podgauge/podgauge/test/e2e/node"
	"github.com/podgauge/podgauge/test/helpers/testfile"
)

// TestPodsAPI checks the pod's UID and selected labels on the allocation's series. Kubelets without a Pods API do not provide them.
func TestPodsAPI(t *testing.T) {
	n := startNode(t, node.Options{})
	d := newMachine(t, n, "gpus 2").start(t, n, "--metrics.pod-uid", "--metrics.labels-allowlist=app,team*")
	waitForAllocatable(t, n, uuids(2)...)
	pod := podWithGPUs("labeled", 1)
	pod.Labels = map[string]string{"app": "train", "team": "blue", "team.example.com/cost-center": "7", "secret": "x", "application": "y"}
	status, _ := runPod(t, n, pod)
	exported := checkPodInfo(n, pod, status.UID, seriesLabels{"label_app": "train", "label_team": "blue", "label_team_example_com_cost_center": "7"})
	begin := time.Now()
	d.scrapeUntil(t, "the pod's UID and labels are exported", exported)
	measureDurations(t, "container started → pod's UID and labels exported", 2*time.Second, time.Since(begin))

	// While the kubelet is stopped, podgauge keeps the owner. UID and labels are exported again after the kubelet's start.
	stopKubelet(t, n, syscall.SIGTERM)
	scrapes := watchScrapes(t, d, 200*time.Millisecond, func(s metricsScrape) error {
		return s.wantValue(1, "nvidia_gpu_allocation_info", ownerLabels(mainContainer(pod)))
	})
	startKubelet(t, n)
	begin = time.Now()
	d.scrapeUntil(t, "the pod's UID and labels are exported after a kubelet restart", exported)
	measureDurations(t, "kubelet started → pod's UID and labels exported", 5*time.Second, time.Since(begin))
	scrapes.stop(t)
	waitForAllocatable(t, n, uuids(2)...)
	removePod(t, n, pod)
	replaceStaticPod(t, n, d, pod)

	// Get is for new pods of the Pods API, so older kubelets must not receive Get.
	s := d.nextScrape(t)
	const calls = "podgauge_pod_resources_request_duration_seconds_count"
	list, get := s.sum(calls, seriesLabels{"method": "List"}), s.sum(calls, seriesLabels{"method": "Get"})
	printMeasurement(t, "pod-resources calls for three pods", fmt.Sprintf("%.0f List, %.0f Get", list, get))
	if failed := s.sum("podgauge_pod_resources_request_errors_total", seriesLabels{"method": "Get"}); failed > 0 || n.KubeletVersion < "v1.37" && get > 0 {
		t.Errorf("Get calls: got %v, of which %v failed", get, failed)
	}
	d.checkNoWarnings(t)
}

// checkPodInfo returns a check of the only allocation's series: it must have the pod's UID and, of the pod's labels, only the wanted labels.
func checkPodInfo(n *node.RealNode, pod node.StaticPod, uid string, want seriesLabels) func(s metricsScrape) error {
	if n.KubeletVersion < "v1.37" {
		uid, want = "", nil
	}
	return func(s metricsScrape) error {
		with := ownerLabels(mainContainer(pod))
		with["pod_uid"] = uid
		maps.Copy(with, want)
		if err := errors.Join(s.wantCount(1, "nvidia_gpu_allocation_info", nil), s.wantCount(1, "nvidia_gpu_allocation_info", with)); err != nil {
			return err
		}
		for name, value := range s.series["nvidia_gpu_allocation_info"][0].Labels {
			if strings.HasPrefix(name, "label_") && want[name] != value {
				return fmt.Errorf("%s: got %q, want %q", name, value, want[name])
			}
		}
		return nil
	}
}

// replaceStaticPod replaces a static pod by a pod with the same name while the old container still runs. The kubelet's List has the new
// allocation at once, but the Pods API has the new pod only after the old pod's end, which the kubelet checks about every 10 s. Until
// then podgauge exports the old pod's UID and labels, and never a mixture.
func replaceStaticPod(t *testing.T, n *node.RealNode, d *podgaugeProcess, pod node.StaticPod) {
	t.Helper()
	pod.Labels, pod.Grace = map[string]string{"app": "old"}, 3*time.Second
	pod.Containers[0].Args = []string{"stubborn"}
	status, _ := runPod(t, n, pod)
	old := checkPodInfo(n, pod, status.UID, seriesLabels{"label_app": "old"})
	d.scrapeUntil(t, "the old pod's UID and labels are exported", old)
	pod.Labels = map[string]string{"app": "new"}
	begin := time.Now()
	uid, err := n.CreatePod(pod)
	must(t, err)
	replaced := checkPodInfo(n, pod, uid, seriesLabels{"label_app": "new"})
	d.scrapeUntil(t, "the new pod's UID and labels are exported", func(s metricsScrape) error {
		err := replaced(s)
		infos := s.series["nvidia_gpu_allocation_info"]
		if err != nil && old(s) != nil && len(findSamples(infos, seriesLabels{"pod_uid": ""})) != len(infos) {
			t.Errorf("UID and labels: got a mixture of two pods: %v", infos)
		}
		return err
	})
	measureDurations(t, "static pod replaced, 3 s until the old pod's end → new UID and labels exported", 25*time.Second, time.Since(begin))
}

// processStatus returns a field of /proc/PID/status.
func processStatus(t *testing.T, pid int, field string) string {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	must(t, err)
	for line := range strings.Lines(string(b)) {
		if value, found := strings.CutPrefix(line, field+":"); found {
			return strings.TrimSpace(value)
		}
	}
	t.Fatalf("process status: got no %s: %s", field, b)
	return ""
}

// pidInside returns the id of a process in the node's pid namespace, as in the node's driver.
func pidInside(t *testing.T, n *node.RealNode, pid int) int {
	t.Helper()
	inside, err := n.PIDInside(pid)
	must(t, err)
	return inside
}

// allowedCPUs returns the numbers and ranges of the CPUs that a running container may use.
func allowedCPUs(t *testing.T, n *node.RealNode, pod node.StaticPod) []string {
	t.Helper()
	return strings.Split(processStatus(t, mainPID(t, n, pod), "Cpus_allowed_list"), ",")
}

// mainPID returns the machine's id of the first process of a pod's running container "main".
func mainPID(t *testing.T, n *node.RealNode, p node.StaticPod) int {
	t.Helper()
	pid, err := n.ContainerPID(t.Context(), p, "main")
	must(t, err)
	return pid
}

// checkVisibleDevices checks the environment variable of NVIDIA's container runtime.
func checkVisibleDevices(t *testing.T, n *node.RealNode, p node.StaticPod, want string) {
	t.Helper()
	pid := mainPID(t, n, p)
	var environ []byte
	await(t, "the container's program runs", func(context.Context) (err error) {
		// The runtime reports the start shortly before runc executes the program.
		if comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid)); err != nil || bytes.HasPrefix(comm, []byte("runc:")) {
			return fmt.Errorf("process is %q: %w", comm, err)
		}
		environ, err = os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
		if err == nil && len(environ) == 0 { // during exec
			err = errors.New("environment is empty")
		}
		return err
	})
	if !bytes.Contains(append([]byte{0}, environ...), []byte("\x00NVIDIA_VISIBLE_DEVICES="+want+"\x00")) {
		t.Errorf("environment of pod %s: got %q, want NVIDIA_VISIBLE_DEVICES=%s", p.Name, environ, want)
	}
}

// containerMounts returns the mount points of a pod's running container "main".
func containerMounts(t *testing.T, n *node.RealNode, p node.StaticPod) (paths []string) {
	t.Helper()
	b := testfile.Read(t, fmt.Sprintf("/proc/%d/mountinfo", mainPID(t, n, p)))
	for line := range strings.Lines(b) {
		if fields := strings.Fields(line); len(fields) > 4 { // the mount point is the fifth field
			paths = append(paths, fields[4])
		}
	}
	return paths
}

// containerLog returns the output of a container including all restarts, also after its end.
func containerLog(n *node.RealNode, p node.StaticPod, container string) (string, error) {
	logs, err := filepath.Glob(filepath.Join(n.PodLogs(), "*_"+p.FullName()+"_*", container, "*.log"))
	if err != nil {
		return "", err
	}
	var out strings.Builder
	for _, log := range logs {
		b, err := os.ReadFile(log)
		if err != nil {
			return "", err
		}
		for line := range strings.Lines(string(b)) { // time, stream, partial or full, output
			if fields := strings.SplitN(line, " ", 4); len(fields) == 4 {
				out.WriteString(fields[3])
			}
		}
	}
	return out.String(), nil
}

// containerAnnotations returns the kubelet's annotations of a pod's container "main", from containerd.
func containerAnnotations(t *testing.T, n *node.RealNode, p node.StaticPod) map[string]string {
	t.Helper()
	pod, err := n.Pod(t.Context(), p)
	must(t, err)
	c, err := pod.Container("main")
	must(t, err)
	conn, err := grpc.NewClient("unix:"+n.RuntimeSocket(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(t, err)
	defer conn.Close()
	response, err := cri.NewRuntimeServiceClient(conn).ContainerStatus(t.Context(), &cri.ContainerStatusRequest{ContainerId: c.ID})
	must(t, err)
	return response.GetStatus().GetAnnotations()
}
