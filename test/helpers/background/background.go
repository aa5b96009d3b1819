// Package background runs tasks and simulated kubelets beside a test.
package background

import (
	"context"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/sim/kubelet"
)

// timeout limits the start and the end of a task, which take less than a
// second.
const timeout = 30 * time.Second

// Run runs a task until the end of the test, or until stop is called, which
// waits for the end. An error of the task fails the test.
func Run(t testing.TB, run func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("task in the background: %v", err)
			}
		case <-time.After(timeout):
			t.Error("task in the background: no end")
		}
	})
	t.Cleanup(stop)
	return stop
}

// Dir returns a folder for sockets: t.TempDir contains the test's name, and a
// socket's path has at most 107 bytes.
func Dir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "pg")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// Kubelet runs a kubelet until the end of the test, in a new folder unless the
// options have one.
func Kubelet(t testing.TB, o kubelet.Options) *kubelet.Kubelet {
	t.Helper()
	if o.Dir == "" {
		o.Dir = Dir(t)
	}
	k := kubelet.New(o)
	Run(t, k.Run)
	Wait(t, k, func(s kubelet.KubeletState) bool { return s.Serving })
	return k
}

// Wait waits for a state of a kubelet.
func Wait(t testing.TB, k *kubelet.Kubelet, wanted func(kubelet.KubeletState) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	if err := k.Wait(ctx, wanted); err != nil {
		t.Fatal(err)
	}
}
