package e2e

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/podgauge/podgauge/test/e2e/node"
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
