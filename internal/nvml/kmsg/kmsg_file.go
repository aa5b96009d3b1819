package kmsg

import (
	"errors"
	"io"
	"os"
	"syscall"
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

// logReader reads an open log.
type logReader interface {
	// read reads one record. Without a record, it waits at most that long and returns errNoRecord.
	read(buf []byte, wait time.Duration) (int, error)
	wake() // ends a waiting read
	close()
}

var errNoRecord = errors.New("no new record")

// devKmsg is the path of a kernelLog, /dev/kmsg.
type devKmsg string

// open fails for a file that does not support waiting.
func (path devKmsg) open() (logReader, error) {
	f, err := os.OpenFile(string(path), os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	return newKmsgFile(f)
}

func (devKmsg) uptime() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		return 0
	}
	return time.Duration(t.Nano())
}

// kmsgFile is an open /dev/kmsg. Each read returns one record.
type kmsgFile struct {
	*os.File
	raw syscall.RawConn
}

func newKmsgFile(f *os.File) (logReader, error) {
	raw, err := f.SyscallConn()
	if err == nil {
		err = f.SetReadDeadline(time.Time{})
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return kmsgFile{f, raw}, nil
}

// read waits in Go's poller, never in the kernel, so that wake can end the wait.
func (f kmsgFile) read(buf []byte, wait time.Duration) (n int, err error) {
	if wait > 0 {
		if err := f.SetReadDeadline(time.Now().Add(wait)); err != nil {
			return 0, err
		}
	}
	connErr := f.raw.Read(func(fd uintptr) bool {
		for {
			n, err = syscall.Read(int(fd), buf)
			if !errors.Is(err, syscall.EINTR) {
				return wait == 0 || !errors.Is(err, syscall.EAGAIN)
			}
		}
	})
	switch {
	case errors.Is(connErr, os.ErrDeadlineExceeded) || errors.Is(err, syscall.EAGAIN):
		return 0, errNoRecord
	case connErr != nil:
		return 0, connErr
	case err != nil:
		return 0, os.NewSyscallError("read", err)
	case n <= 0:
		return 0, io.EOF
	}
	return n, nil
}

func (f kmsgFile) wake()  { _ = f.SetReadDeadline(time.Unix(1, 0)) } // fails on a closed file only, without a waiting read
func (f kmsgFile) close() { _ = f.Close() }                          // read only
