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

// TestPodsAPI has a pod's uid and chosen labels on the series of its holding, where the kubelet has a Pods API, and nothing else changed where it
// has none.
func TestPodsAPI(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	n := node.ForTest(ctx, t, node.Options{})
	startKubelet(ctx, t, n)
	backdateKubelet(t, n)
	d := newMachine(t, n, "gpus 2").start(t, n, "--metrics.pod-uid", "--metrics.labels-allowlist=app,team*")
	waitForAllocatable(ctx, t, n, uuids(2)...)

	pod := podWithResource("labelled", gpuResource, 1)
	pod.Labels = map[string]string{"app": "train", "team": "blue", "team.example.com/cost-center": "7", "secret": "x", "application": "y"}
	status, _ := runPod(ctx, t, n, pod)
	want := seriesLabels{"label_app": "train", "label_team": "blue", "label_team_example_com_cost_center": "7"}
	begin := time.Now()
	d.scrapeUntil(ctx, t, "the pod's uid and labels are shown", checkPodInfo(n, pod, status, want))
	measureDurations(t, "a pod's uid and labels are shown after its container's start", 2*time.Second, time.Since(begin))

	// A kubelet that is away says nothing of pods: the holder stays, and what was known of him comes back with it.
	if err := n.StopKubelet(ctx, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	held := watchScrapes(ctx, t, d, 200*time.Millisecond, func(s metricsScrape) error {
		return s.wantValue(1, "nvidia_gpu_allocation_info", ownerLabels(mainContainer(pod)))
	})
	startKubelet(ctx, t, n)
	begin = time.Now()
	d.scrapeUntil(ctx, t, "they are back after a restart", checkPodInfo(n, pod, status, want))
	measureDurations(t, "… and are back after a kubelet's restart", 5*time.Second, time.Since(begin))
	held.stop(t)
	waitForAllocatable(ctx, t, n, uuids(2)...)

	// Another pod under the same name.
	removePod(ctx, t, n, pod)
	pod.Labels = map[string]string{"app": "serve"}
	status, _ = runPod(ctx, t, n, pod)
	d.scrapeUntil(ctx, t, "another pod's uid and labels are shown", checkPodInfo(n, pod, status, seriesLabels{"label_app": "serve"}))
	replaceStaticPod(ctx, t, n, d, pod)
	checkKubeletCalls(ctx, t, n, d)
	away := func(line string) bool { return strings.Contains(line, "pod-resources API unavailable") } // it was restarted
	if said := slices.DeleteFunc(logWarnings(t, d), away); len(said) > 0 {
		t.Errorf("podgauge warns: %q", said)
	}
}

// checkPodInfo says where a scrape is wrong about what is known of the only pod that holds a GPU: its uid, and of its labels these alone.
func checkPodInfo(n *node.RealNode, pod node.StaticPod, status node.StaticPodStatus, want seriesLabels) func(s metricsScrape) error {
	return func(s metricsScrape) error {
		found := s.series["nvidia_gpu_allocation_info"]
		if len(found) != 1 {
			return fmt.Errorf("nvidia_gpu_allocation_info is there %d times", len(found))
		}
		got, wrong := found[0].Labels, []error{checkOwnerLabels(found[0], mainContainer(pod))}
		uid, all := status.UID, want
		if n.KubeletVersion < "v1.37" {
			uid, all = "", nil
		}
		if id, there := got["pod_uid"]; !there || id != uid {
			wrong = append(wrong, fmt.Errorf("pod_uid is %q, not %q", id, uid))
		}
		for name, value := range got {
			if strings.HasPrefix(name, "label_") && all[name] != value {
				wrong = append(wrong, fmt.Errorf("%s is %q", name, value))
			}
		}
		for name := range all {
			if _, there := got[name]; !there {
				wrong = append(wrong, fmt.Errorf("%s is not there", name))
			}
		}
		return errors.Join(wrong...)
	}
}

// replaceStaticPod has a static pod be followed by one of the same name while its container still runs. The kubelet lists the new one's holding at once,
// and the Pods API tells of it only when it is started: after the old one's end, which the kubelet looks for every 10 s or so. Until then what is
// known is the old one's; what belongs to different pods is never together.
func replaceStaticPod(ctx context.Context, t *testing.T, n *node.RealNode, d *podgaugeProcess, pod node.StaticPod) {
	t.Helper()
	removePod(ctx, t, n, pod)
	pod.Labels, pod.Grace = map[string]string{"app": "old"}, 3*time.Second
	pod.Containers[0].Args = []string{"stubborn"}
	old, _ := runPod(ctx, t, n, pod)
	d.scrapeUntil(ctx, t, "the old pod is shown", checkPodInfo(n, pod, old, seriesLabels{"label_app": "old"}))
	pod.Labels = map[string]string{"app": "new"}
	begin := time.Now()
	uid, err := n.CreatePod(pod)
	if err != nil {
		t.Fatal(err)
	}
	fresh := node.StaticPodStatus{UID: uid}
	d.scrapeUntil(ctx, t, "the new pod's uid and labels are shown", func(s metricsScrape) error {
		err := checkPodInfo(n, pod, fresh, seriesLabels{"label_app": "new"})(s)
		whose := checkPodInfo(n, pod, old, seriesLabels{"label_app": "old"})(s)
		if err != nil && whose != nil && len(findSamples(s.series["nvidia_gpu_allocation_info"], seriesLabels{"pod_uid": ""})) != len(s.series["nvidia_gpu_allocation_info"]) {
			t.Errorf("what is known is of two pods: %v", s.series["nvidia_gpu_allocation_info"])
		}
		return err
	})
	measureDurations(t, "a static pod is replaced under its name, and the old one takes 3 s to end: the new one's uid and labels are shown after", 25*time.Second, time.Since(begin))
}

// checkKubeletCalls says how the kubelet was asked who holds what was allocated. Where it tells of pods that come, podgauge asks about these alone if
// nobody has asked for all before; without that there is nobody to ask about.
func checkKubeletCalls(ctx context.Context, t *testing.T, n *node.RealNode, d *podgaugeProcess) {
	t.Helper()
	s := d.nextScrape(ctx, t)
	asked := func(method string) float64 {
		return s.sum("podgauge_pod_resources_request_duration_seconds_count", seriesLabels{"method": method})
	}
	printMeasurement(t, "questions to PodResources, of four pods", fmt.Sprintf("%.0f List, %.0f Get", asked("List"), asked("Get")))
	if n.KubeletVersion < "v1.37" && asked("Get") > 0 {
		t.Error("podgauge has asked about pods of which nothing has told it")
	}
	if lost := s.sum("podgauge_pod_resources_request_errors_total", seriesLabels{"method": "Get"}); lost > 0 {
		t.Errorf("%v questions about one pod had no answer", lost)
	}
}
