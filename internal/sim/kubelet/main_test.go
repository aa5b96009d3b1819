package kubelet_test

import (
	"context"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/podgauge/podgauge/internal/sim/kubelet"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// start runs a kubelet until the test ends, in a new folder unless the options
// have one.
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

// shortDir returns a temporary folder with a path that is short enough for
// sockets, unlike t.TempDir.
func shortDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "kubelet")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}
