package kmsg

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// kernelLog is the kernel log: /dev/kmsg, or a test's.
type kernelLog interface {
	// open returns the log from its beginning.
	open() (logReader, error)
	// uptime returns the time since the boot by the clock of the records; roughly, because NTP does not adjust the records' clock.
	uptime() time.Duration
}

type logReader interface {
	// read reads one record. Without a record, it waits at most that long and returns errNoRecord.
	read(buf []byte, wait time.Duration) (int, error)
	close()
}

var errNoRecord = errors.New("no new record")

// devKmsg is the path of a kernelLog, /dev/kmsg.
type devKmsg string

func (path devKmsg) open() (logReader, error) {
	fd, err := unix.Open(string(path), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: string(path), Err: err}
	}
	return kmsgFile(fd), nil
}

func (devKmsg) uptime() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		return 0
	}
	return time.Duration(t.Nano())
}

// kmsgFile is the descriptor of an open /dev/kmsg, non-blocking. Each read returns one record.
type kmsgFile int

func (f kmsgFile) read(buf []byte, wait time.Duration) (int, error) {
	_, _ = unix.Poll([]unix.PollFd{{Fd: int32(f), Events: unix.POLLIN}}, int(wait.Milliseconds())) // a signal may end the wait
	switch n, err := unix.Read(int(f), buf); {
	case errors.Is(err, unix.EAGAIN):
		return 0, errNoRecord
	case err != nil:
		return 0, os.NewSyscallError("read", err)
	case n == 0:
		return 0, io.EOF
	default:
		return n, nil
	}
}

func (f kmsgFile) close() { _ = unix.Close(int(f)) } // read only
