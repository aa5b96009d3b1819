package kmsg

import (
	"errors"
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

func (f kmsgFile) read(buf []byte, wait time.Duration) (int, error) {
	_ = f.SetReadDeadline(time.Now().Add(wait)) // fails for a file without waits
	n, err := f.Read(buf)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = errNoRecord
	}
	return n, err
}

func (f kmsgFile) close() { _ = f.Close() } // read only
