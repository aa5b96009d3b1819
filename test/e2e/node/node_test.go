package node

import (
	"errors"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/podgauge/podgauge/test/helpers/require"
)

// TestNsenterThread checks that the thread is never the main thread. The main thread does not end with its goroutine, and would keep
// the node's mounts and cgroups until the process ends.
func TestNsenterThread(t *testing.T) {
	for range 200 {
		thread := &nsenterThread{init: &exec.Cmd{}, funcs: make(chan func()), closed: make(chan struct{})}
		go thread.run()
		err := thread.call(func() error {
			if syscall.Gettid() == os.Getpid() {
				return errors.New("nsenter thread is the main thread")
			}
			return nil
		})
		require.NoError(t, err)
		thread.close()
	}
}
