package kmsg

import (
	"cmp"
	"errors"
	"io"
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
	// close ends a read that waits. It may be repeated.
	close()
}

var errNoRecord = errors.New("no new record")

// devKmsg is the path of a kernelLog, /dev/kmsg.
type devKmsg string

func (path devKmsg) open() (logReader, error) {
	f, err := os.OpenFile(string(path), os.O_RDONLY|unix.O_NONBLOCK, 0)
	return kmsgFile{f}, err
}

func (devKmsg) uptime() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		return 0
	}
	return time.Duration(t.Nano())
}

// kmsgFile is an open /dev/kmsg, non-blocking. Each read returns one record.
type kmsgFile struct{ *os.File }

// read without a wait has no deadline: a process that gets no CPU time would miss it, and take older records for new ones.
func (f kmsgFile) read(buf []byte, wait time.Duration) (n int, err error) {
	conn, _ := f.SyscallConn() // fails only without a file
	if wait > 0 {
		_ = f.SetReadDeadline(time.Now().Add(wait)) // fails for a file without waits
	}
	waitErr := conn.Read(func(fd uintptr) bool {
		n, err = unix.Read(int(fd), buf)
		return wait == 0 || !errors.Is(err, unix.EAGAIN)
	})
	switch {
	case errors.Is(waitErr, os.ErrDeadlineExceeded), waitErr == nil && errors.Is(err, unix.EAGAIN):
		return 0, errNoRecord
	case waitErr == nil && n == 0:
		return 0, io.EOF
	}
	return max(n, 0), os.NewSyscallError("read", cmp.Or(waitErr, err))
}

func (f kmsgFile) close() { _ = f.Close() } // read only
