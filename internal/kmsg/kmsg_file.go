package kmsg

import (
	"io"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// kernelLog is the kernel log: /dev/kmsg, or a test's.
type kernelLog interface {
	// open returns the log from its beginning. A Read returns one record, and
	// EAGAIN if there is none.
	open() (io.ReadCloser, error)
	// uptime returns the time since the boot by the clock of the records;
	// roughly, because NTP does not adjust the records' clock.
	uptime() time.Duration
}

// devKmsg is the path of a kernelLog, /dev/kmsg.
type devKmsg string

func (path devKmsg) open() (io.ReadCloser, error) {
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

// kmsgFile is the descriptor of an open /dev/kmsg. An os.File would wait for a
// record.
type kmsgFile int

func (f kmsgFile) Read(buf []byte) (int, error) {
	n, err := unix.Read(int(f), buf)
	if err == nil && n == 0 {
		return 0, io.EOF
	}
	return max(n, 0), os.NewSyscallError("read", err)
}

func (f kmsgFile) Close() error { return unix.Close(int(f)) }
