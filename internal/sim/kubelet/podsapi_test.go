package kubelet_test

import (
	"context"
	"reflect"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	podsapi "k8s.io/kubelet/pkg/apis/pods/v1alpha1"

	"github.com/podgauge/podgauge/internal/sim/kubelet"
)

func podsClient(t testing.TB, k *kubelet.Kubelet) podsapi.PodsClient {
	t.Helper()
	conn, err := grpc.NewClient("unix:"+k.PodsSocket(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return podsapi.NewPodsClient(conn)
}

func watchPods(t testing.TB, k *kubelet.Kubelet) podsapi.Pods_WatchPodsClient {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	t.Cleanup(cancel)
	stream, err := podsClient(t, k).WatchPods(ctx, &podsapi.WatchPodsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	return stream
}

// nextEvent returns the kinds of all events up to the first event of a kind,
// and that event's pod.
func nextEvent(t testing.TB, stream podsapi.Pods_WatchPodsClient, kind podsapi.EventType) (kinds []string, pod []byte) {
	t.Helper()
	for {
		e, err := stream.Recv()
		if err != nil {
			t.Fatalf("after %v: %v", kinds, err)
		}
		kinds = append(kinds, e.Type.String())
		if e.Type == kind {
			return kinds, e.Pod
		}
	}
}

func TestPodsAPIBeforeThePodsAreRead(t *testing.T) {
	t.Parallel()
	k := start(t, kubelet.Options{})
	runPod(t, k, podWithGPUs("one", 0))
	release := make(chan struct{})
	k.SetFaults(kubelet.Faults{HoldStaticPods: release})
	restart(t, k, nil)
	if _, err := watchPods(t, k).Recv(); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("during the start: got %v, want code FailedPrecondition", err)
	}
	close(release)
	waitForState(t, k, func(s kubelet.KubeletState) bool { return s.PodsRead })
	if kinds, _ := nextEvent(t, watchPods(t, k), podsapi.EventType_INITIAL_SYNC_COMPLETE); len(kinds) != 2 {
		t.Errorf("events after the start: got %v, want 2", kinds)
	}
}

func TestSlowWatcherIsDropped(t *testing.T) {
	t.Parallel()
	k := start(t, kubelet.Options{})
	p := kubelet.PodSpec{
		Name: "big", Labels: map[string]string{"x": strings.Repeat("x", 100_000)},
		Containers: []kubelet.ContainerSpec{{Name: "main"}},
	}
	runPod(t, k, p)
	stream := watchPods(t, k)
	nextEvent(t, stream, podsapi.EventType_INITIAL_SYNC_COMPLETE)
	for range 100 {
		if err := k.CrashContainer(t.Context(), p, "main", kubelet.ContainerExit{Code: 1}); err != nil {
			t.Fatal(err)
		}
	}
	var err error
	for err == nil {
		_, err = stream.Recv()
	}
	if status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "watch client channel closed") {
		t.Errorf("end of the stream: got %v, want ResourceExhausted", err)
	}
}

func TestPhaseOfEndedPods(t *testing.T) {
	t.Parallel()
	k := start(t, kubelet.Options{})
	for name, test := range map[string]struct {
		end  kubelet.PodEnd
		want [2]string
	}{
		"done": {want: [2]string{"Succeeded", ""}},
		"failed": {
			kubelet.PodEnd{Exits: map[string]kubelet.ContainerExit{"main": {Code: 1}}},
			[2]string{"Failed", ""},
		},
		"evicted": {kubelet.PodEnd{Reason: "Evicted"}, [2]string{"Failed", "Evicted"}},
	} {
		p := podWithGPUs(name, 0)
		runPod(t, k, p)
		if err := k.EndPodWith(p, test.end); err != nil {
			t.Fatal(err)
		}
		if got, err := k.Pod(p); err != nil || !reflect.DeepEqual([2]string{got.Phase, got.Reason}, test.want) {
			t.Errorf("%s: got %+v, %v, want %v", name, got, err, test.want)
		}
	}
}
