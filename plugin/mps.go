package plugin

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// CheckMPSDaemon says why nobody answers at an MPS control daemon's folder of pipes. The
// daemon is reached by its named pipe or socket "control", whichever it is, as CUDA
// does (docs.nvidia.com/deploy/mps, CUDA_MPS_PIPE_DIRECTORY): a pipe that nobody
// reads and a socket that nobody listens at are what a dead one leaves behind.
func CheckMPSDaemon(pipes string) error {
	control := filepath.Join(pipes, "control")
	info, err := os.Stat(control)
	if err != nil {
		return fmt.Errorf("find the MPS control daemon: %w", err)
	}
	switch info.Mode().Type() {
	case os.ModeNamedPipe:
		pipe, err := os.OpenFile(control, os.O_WRONLY|syscall.O_NONBLOCK, 0)
		if err != nil {
			return fmt.Errorf("reach the MPS control daemon: %w", err)
		}
		return pipe.Close()
	case os.ModeSocket:
		conn, err := net.DialTimeout("unix", control, time.Second)
		if err != nil {
			return fmt.Errorf("reach the MPS control daemon: %w", err)
		}
		return conn.Close()
	default:
		return errors.New("reach the MPS control daemon: its control is neither a pipe nor a socket")
	}
}
