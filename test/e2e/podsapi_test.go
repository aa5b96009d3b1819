package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/podgauge/podgauge/test/e2e/node"
)

// TestPodsAPI checks the pod's UID and selected labels on the allocation's series. Kubelets without a Pods API do not provide them.
func TestPodsAPI(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	n := node.ForTest(ctx, t, node.Options{})
	startKubelet(ctx, t, n)
	backdateKubelet(t, n)
	d := newMachine(t, n, "gpus 2").start(t, n, "--metrics.pod-uid", "--metrics.labels-allowlist=app,team*")
	waitForAllocatable(ctx, t, n, uuids(2)...)

	pod := podWithResource("labeled", gpuResource, 1)
	pod.Labels = map[string]string{"app": "train", "team": "blue", "team.example.com/cost-center": "7", "secret": "x", "application": "y"}
	status, _ := runPod(ctx, t, n, pod)
	want := seriesLabels{"label_app": "train", "label_team": "blue", "label_team_example_com_cost_center": "7"}
	begin := time.Now()
	d.scrapeUntil(ctx, t, "the pod's UID and labels are exported", checkPodInfo(n, pod, status, want))
	measureDurations(t, "container started → pod's UID and labels exported", 2*time.Second, time.Since(begin))

	// While the kubelet is stopped, podgauge keeps the owner. UID and labels are exported again after the kubelet's start.
	if err := n.StopKubelet(ctx, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	watch := watchScrapes(ctx, t, d, 200*time.Millisecond, func(s metricsScrape) error {
		return s.wantValue(1, "nvidia_gpu_allocation_info", ownerLabels(mainContainer(pod)))
	})
	startKubelet(ctx, t, n)
	begin = time.Now()
	d.scrapeUntil(ctx, t, "the pod's UID and labels are exported after a kubelet restart", checkPodInfo(n, pod, status, want))
	measureDurations(t, "kubelet started → pod's UID and labels exported", 5*time.Second, time.Since(begin))
	watch.stop(t)
	waitForAllocatable(ctx, t, n, uuids(2)...)

	// Another pod with the same name.
	removePod(ctx, t, n, pod)
	pod.Labels = map[string]string{"app": "serve"}
	status, _ = runPod(ctx, t, n, pod)
	d.scrapeUntil(ctx, t, "the other pod's UID and labels are exported", checkPodInfo(n, pod, status, seriesLabels{"label_app": "serve"}))
	replaceStaticPod(ctx, t, n, d, pod)
	checkKubeletCalls(ctx, t, n, d)
	expected := func(line string) bool { return strings.Contains(line, "pod-resources API unavailable") } // kubelet restart
	if lines := slices.DeleteFunc(logWarnings(t, d), expected); len(lines) > 0 {
		t.Errorf("podgauge's warnings: got %q, want none", lines)
	}
}

// checkPodInfo returns a check of the only allocation's series: it must have the pod's UID and, of the pod's labels, only the wanted labels.
func checkPodInfo(n *node.RealNode, pod node.StaticPod, status node.StaticPodStatus, want seriesLabels) func(s metricsScrape) error {
	return func(s metricsScrape) error {
		found := s.series["nvidia_gpu_allocation_info"]
		if len(found) != 1 {
			return fmt.Errorf("number of series nvidia_gpu_allocation_info: got %d, want 1", len(found))
		}
		got, wrong := found[0].Labels, []error{checkOwnerLabels(found[0], mainContainer(pod))}
		uid, all := status.UID, want
		if n.KubeletVersion < "v1.37" {
			uid, all = "", nil
		}
		if id, ok := got["pod_uid"]; !ok || id != uid {
			wrong = append(wrong, fmt.Errorf("pod_uid: got %q, want %q", id, uid))
		}
		for name, value := range got {
			if strings.HasPrefix(name, "label_") && all[name] != value {
				wrong = append(wrong, fmt.Errorf("%s: got %q, want %q", name, value, all[name]))
			}
		}
		for name := range all {
			if _, ok := got[name]; !ok {
				wrong = append(wrong, fmt.Errorf("label %s is missing", name))
			}
		}
		return errors.Join(wrong...)
	}
}

// replaceStaticPod replaces a static pod by a pod with the same name while the old container still runs. The kubelet's List has the new
// allocation at once, but the Pods API has the new pod only after the old pod's end, which the kubelet checks about every 10 s. Until
// then podgauge exports the old pod's UID and labels, and never a mixture.
func replaceStaticPod(ctx context.Context, t *testing.T, n *node.RealNode, d *podgaugeProcess, pod node.StaticPod) {
	t.Helper()
	removePod(ctx, t, n, pod)
	pod.Labels, pod.Grace = map[string]string{"app": "old"}, 3*time.Second
	pod.Containers[0].Args = []string{"stubborn"}
	old, _ := runPod(ctx, t, n, pod)
	d.scrapeUntil(ctx, t, "the old pod's UID and labels are exported", checkPodInfo(n, pod, old, seriesLabels{"label_app": "old"}))
	pod.Labels = map[string]string{"app": "new"}
	begin := time.Now()
	uid, err := n.CreatePod(pod)
	if err != nil {
		t.Fatal(err)
	}
	fresh := node.StaticPodStatus{UID: uid}
	d.scrapeUntil(ctx, t, "the new pod's UID and labels are exported", func(s metricsScrape) error {
		err := checkPodInfo(n, pod, fresh, seriesLabels{"label_app": "new"})(s)
		oldErr := checkPodInfo(n, pod, old, seriesLabels{"label_app": "old"})(s)
		infos := s.series["nvidia_gpu_allocation_info"]
		if err != nil && oldErr != nil && len(findSamples(infos, seriesLabels{"pod_uid": ""})) != len(infos) {
			t.Errorf("UID and labels: got a mixture of two pods: %v", infos)
		}
		return err
	})
	measureDurations(t, "static pod replaced, 3 s until the old pod's end → new UID and labels exported", 25*time.Second, time.Since(begin))
}

// checkKubeletCalls counts podgauge's List and Get calls. Get is for new pods of the Pods API, so older kubelets must not receive Get.
func checkKubeletCalls(ctx context.Context, t *testing.T, n *node.RealNode, d *podgaugeProcess) {
	t.Helper()
	s := d.nextScrape(ctx, t)
	calls := func(method string) float64 {
		return s.sum("podgauge_pod_resources_request_duration_seconds_count", seriesLabels{"method": method})
	}
	printMeasurement(t, "pod-resources calls for four pods", fmt.Sprintf("%.0f List, %.0f Get", calls("List"), calls("Get")))
	if n.KubeletVersion < "v1.37" && calls("Get") > 0 {
		t.Errorf("Get calls without a Pods API: got %v, want none", calls("Get"))
	}
	if failed := s.sum("podgauge_pod_resources_request_errors_total", seriesLabels{"method": "Get"}); failed > 0 {
		t.Errorf("failed Get calls: got %v, want none", failed)
	}
}
