package plugin

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// CheckMPSDaemon returns the reason why no MPS control daemon answers in a
// folder of pipes.
//
// The named pipe or socket "control" reaches the daemon, as in CUDA
// (docs.nvidia.com/deploy/mps, CUDA_MPS_PIPE_DIRECTORY). A killed daemon leaves
// a pipe without a reader or a socket without a listener.
func CheckMPSDaemon(pipes string) error {
	control := filepath.Join(pipes, "control")
	info, err := os.Stat(control)
	if err != nil {
		return fmt.Errorf("find the MPS control daemon: %w", err)
	}
	var conn io.Closer
	switch info.Mode().Type() {
	case os.ModeNamedPipe:
		conn, err = os.OpenFile(control, os.O_WRONLY|syscall.O_NONBLOCK, 0)
	case os.ModeSocket:
		conn, err = net.DialTimeout("unix", control, time.Second)
	default:
		err = errors.New("control is neither a pipe nor a socket")
	}
	if err != nil {
		return fmt.Errorf("reach the MPS control daemon: %w", err)
	}
	return conn.Close()
}
