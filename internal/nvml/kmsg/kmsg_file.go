package kmsg

import (
	"errors"
	"io"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// kmsgFile is a log that is a file: /dev/kmsg, which gives one record a read.
type kmsgFile struct {
	*os.File
	raw syscall.RawConn
}

// openFile opens the log where it begins. A file that cannot be waited for is none.
func openFile(path string) (logSource, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	return newFile(f)
}

func newFile(f *os.File) (logSource, error) {
	raw, err := f.SyscallConn()
	if err == nil {
		err = f.SetReadDeadline(time.Time{})
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return kmsgFile{f, raw}, nil
}

// read never blocks in the kernel: it waits where a goroutine waits that others can wake.
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

func (f kmsgFile) wake()  { _ = f.SetReadDeadline(time.Unix(1, 0)) } // one that is closed waits for nothing
func (f kmsgFile) close() { _ = f.Close() }                          // nothing was written

// uptime is the time since the boot, without what the machine slept.
func uptime() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		return 0
	}
	return time.Duration(t.Nano())
}
