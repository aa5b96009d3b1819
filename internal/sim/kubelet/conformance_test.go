package kubelet_test

import (
	"context"
	"errors"
	"os"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"github.com/podgauge/podgauge/internal/sim/kubelet"
	"github.com/podgauge/podgauge/test/conformance"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestConformance runs the table of real kubelets (test/e2e) with a new kubelet for each case.
func TestConformance(t *testing.T) {
	for _, version := range []kubelet.Version{kubelet.V136, kubelet.V137} {
		for _, habit := range conformance.All() {
			t.Run(string(version)+"/"+habit.Name, func(t *testing.T) {
				t.Parallel()
				habit.Run(t, simulatedKubelet{start(t, kubelet.Options{Version: version})})
			})
		}
	}
}

func TestConformanceInARow(t *testing.T) {
	for _, version := range []kubelet.Version{kubelet.V136, kubelet.V137} {
		t.Run(string(version), func(t *testing.T) {
			t.Parallel()
			conformance.Run(t, simulatedKubelet{start(t, kubelet.Options{Version: version})})
		})
	}
}

// simulatedKubelet is a conformance.Subject.
type simulatedKubelet struct{ *kubelet.Kubelet }

// TakesClaims makes it a conformance.ClaimSupport.
func (k simulatedKubelet) TakesClaims() {}

func (k simulatedKubelet) RunPod(ctx context.Context, p kubelet.PodSpec) (kubelet.PodStatus, error) {
	var rejected *kubelet.AdmissionError
	if err := k.Kubelet.RunPod(ctx, p); err != nil && !errors.As(err, &rejected) {
		return kubelet.PodStatus{}, err
	}
	return k.Kubelet.Pod(p)
}

func (k simulatedKubelet) Pod(_ context.Context, p kubelet.PodSpec) (kubelet.PodStatus, error) {
	return k.Kubelet.Pod(p)
}

func (k simulatedKubelet) EndPod(_ context.Context, p kubelet.PodSpec) error {
	return k.Kubelet.EndPod(p)
}

func (k simulatedKubelet) RemovePod(_ context.Context, p kubelet.PodSpec) error {
	return k.DeletePod(p)
}

func (k simulatedKubelet) Restart(ctx context.Context, signal syscall.Signal, while func()) error {
	return k.Kubelet.Restart(ctx, kubelet.RestartOptions{Signal: signal, While: while})
}

// start runs a kubelet until the test ends, in a new folder unless the options have one.
func start(t testing.TB, o kubelet.Options) *kubelet.Kubelet {
	t.Helper()
	if o.Dir == "" {
		o.Dir = shortDir(t)
	}
	k := kubelet.New(o)
	run(t, k)
	if err := k.Wait(t.Context(), func(s kubelet.KubeletState) bool { return s.Serving }); err != nil {
		t.Fatal(err)
	}
	return k
}

// run runs a kubelet until the test ends or stop is called.
func run(t testing.TB, k *kubelet.Kubelet) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- k.Run(ctx); close(ended) }()
	stop = func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	}
	t.Cleanup(stop)
	return stop
}

// shortDir returns a temporary folder with a path that is short enough for sockets, unlike t.TempDir.
func shortDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "kubelet")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}
