package kmsg

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/test/bubble"
	"golang.org/x/sys/unix"
)

// fakeKernelLog is a kernelLog in memory. Each reader gets each record once.
type fakeKernelLog struct {
	mu sync.Mutex
	// All below are guarded by mu.
	records  []string
	bootedAt time.Time
	openErr  error
	opened   int
	readers  []*fakeReader
}

// fakeReader is an open fakeKernelLog.
type fakeReader struct {
	*fakeKernelLog
	position int
	closed   bool
	errs     []error // returned before the next record
}

func newKernel() *fakeKernelLog { return &fakeKernelLog{bootedAt: time.Now().Add(-time.Hour)} }

func (k *fakeKernelLog) open() (io.ReadCloser, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.opened++
	if k.openErr != nil {
		return nil, k.openErr
	}
	t := &fakeReader{fakeKernelLog: k}
	k.readers = append(k.readers, t)
	return t, nil
}

// setOpenError makes open fail; nil: succeed.
func (k *fakeKernelLog) setOpenError(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.openErr = err
}

func (k *fakeKernelLog) uptime() time.Duration { return time.Since(k.bootedAt) }

// write adds records with the current time.
func (k *fakeKernelLog) write(messages ...string) { k.writeAt(k.uptime(), messages...) }

func (k *fakeKernelLog) writeAt(since time.Duration, messages ...string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, m := range messages {
		k.records = append(k.records, fmt.Sprintf("4,%d,%d,-;%s\n KEY=x\n", len(k.records)+100, since.Microseconds(),
			m))
	}
}

// failNextRead makes the next reads of each reader fail.
func (k *fakeKernelLog) failNextRead(errs ...error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, t := range k.readers {
		t.errs = append(t.errs, errs...)
	}
}

func (t *fakeReader) Read(buf []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.errs) > 0 {
		err := t.errs[0]
		t.errs = t.errs[1:]
		return 0, err
	}
	if t.closed {
		return 0, fs.ErrClosed
	}
	if t.position == len(t.records) {
		return 0, syscall.EAGAIN
	}
	t.position++
	return copy(buf, t.records[t.position-1]), nil
}

func (t *fakeReader) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.readers, t.closed = nil, true
	return nil
}

// readerFixture is a Reader of a fakeKernelLog, and the Handler with its
// reports.
type readerFixture struct {
	*testing.T
	*fakeKernelLog
	*Reader
	known        map[string]device.GPU // by address
	lastReported func(device.Event) time.Time
	got          []device.Event
	times        []time.Time  // of got
	logBuf       bytes.Buffer // guarded by mu
}

const (
	addressGPU1 = "0000:1a:00"
	addressGPU2 = "0000:1b:00"
	gpu1        = device.GPU("GPU-1")
	gpu2        = device.GPU("GPU-2")
	migDeviceID = device.ID("MIG-a") // GPU instance 7 of both GPUs
)

// xidLine returns the driver's message for an Xid.
func xidLine(pci string, xid int) string {
	return fmt.Sprintf("NVRM: Xid (PCI:%s): %d, pid=1, name=a, b", pci, xid)
}

// runTest runs a test in a synctest bubble.
func runTest(t *testing.T, body func(s *readerFixture)) {
	bubble.Test(t, func(t *testing.T) {
		s := &readerFixture{
			T: t, fakeKernelLog: newKernel(),
			known: map[string]device.GPU{addressGPU1: gpu1, addressGPU2: gpu2},
		}
		s.Reader = NewReader("", s, slog.New(slog.NewTextHandler(s, nil)))
		s.source = s.fakeKernelLog
		body(s)
	})
}

// LastReported returns the time of an earlier process's report; zero unless a
// test sets lastReported.
func (s *readerFixture) LastReported(e device.Event) time.Time {
	if s.lastReported == nil {
		return time.Time{}
	}
	return s.lastReported(e)
}

func (s *readerFixture) Report(_ context.Context, e device.Event, count int, at time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.got, s.times = append(s.got, slices.Repeat([]device.Event{e}, count)...), append(s.times, at)
	return nil
}

// Write is called by the Reader's log.
func (s *readerFixture) Write(line []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.logBuf.Write(line)
}

// addGPU maps an address to a GPU.
func (s *readerFixture) addGPU(pci string, gpu device.GPU) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.known[pci] = gpu
}

// EventOf returns events that need no recovery for Xid 31, passed checks for
// Xid 74, and a reset for all others.
func (s *readerFixture) EventOf(l XidLine) (device.Event, bool) {
	s.mu.Lock()
	gpu, known := s.known[l.PCI]
	s.mu.Unlock()
	e := device.Event{GPU: gpu, Xid: l.Xid, Recovery: device.RecoveryAfterReset, Class: "c", Action: "a"}
	switch l.Xid {
	case 31:
		e.Recovery = device.RecoveryNone
	case 74:
		e.Recovery = device.RecoveryChecksPass
	}
	if l.GI == 7 {
		e.Device = migDeviceID
	}
	return e, known
}

// runReader runs the Reader during body, and waits for the end of Run.
func (s *readerFixture) runReader(body func()) {
	s.Helper()
	ctx, cancel := context.WithCancel(s.Context())
	done := make(chan error)
	go func() { done <- s.Reader.Run(ctx) }() // ends with ctx; received below
	synctest.Wait()
	body()
	cancel()
	if err := <-done; err != nil {
		s.Errorf("Run: %v", err)
	}
}

// wantReports checks the reports since the previous call, after two more reads.
func (s *readerFixture) wantReports(when string, want ...string) {
	s.Helper()
	time.Sleep(2*readInterval + readInterval/2)
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	var got []string
	for _, e := range s.got {
		recovery := map[device.Recovery]string{
			device.RecoveryNone: "itself", device.RecoveryChecksPass: "check",
			device.RecoveryAfterReset: "reset",
		}[e.Recovery]
		source := e.Source
		if e.Historical {
			source += "_past"
		}
		got = append(got, strings.Join(strings.Fields(fmt.Sprintf("%s %s %d %s %s", e.GPU, e.Device, e.Xid, recovery,
			source)), " "))
	}
	s.got = nil
	if !slices.Equal(got, want) {
		s.Errorf("%s: got %q, want %q", when, got, want)
	}
}

func (s *readerFixture) wantLogged(text string, times int) {
	s.Helper()
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := strings.Count(s.logBuf.String(), text); n != times {
		s.Errorf("logs of %q: got %d, want %d:\n%s", text, n, times, s.logBuf.String())
	}
}

func TestFollow(t *testing.T) {
	runTest(t, func(s *readerFixture) {
		s.runReader(func() {
			s.write("usb 1-1: new device", xidLine(addressGPU1, 79), "NVRM: GPU at PCI:0000:1a:00: GPU-1",
				xidLine(addressGPU2+" GPU-I:07", 31))
			s.wantReports("new records", "GPU-1 79 reset kmsg", "GPU-2 MIG-a 31 itself kmsg")
			time.Sleep(time.Hour)
			s.write(xidLine(addressGPU1, 79), xidLine(addressGPU1, 79))
			s.wantReports("repeated records", "GPU-1 79 reset kmsg", "GPU-1 79 reset kmsg")
		})
		s.wantLogged("level", 0)
	})
}

// TestHistoricalRecords checks that Xids from before the start only request
// checks, once per kind.
func TestHistoricalRecords(t *testing.T) {
	runTest(t, func(s *readerFixture) {
		s.writeAt(time.Minute, xidLine(addressGPU1, 79), xidLine(addressGPU1, 31), xidLine(addressGPU2+" GPU-I:07", 95),
			xidLine(addressGPU1, 79), xidLine(addressGPU1, 74))
		s.runReader(func() {
			s.wantReports("historical records", "GPU-1 79 check kmsg_past", "GPU-2 95 check kmsg_past",
				"GPU-1 74 check kmsg_past")
			s.write(xidLine(addressGPU1, 79))
			s.wantReports("new record", "GPU-1 79 reset kmsg")
			time.Sleep(time.Hour)
			s.wantReports("an hour later")
		})
	})
}

// TestReportTimes checks the times of reports for late reads and for wrong
// clocks of the log.
func TestReportTimes(t *testing.T) {
	runTest(t, func(s *readerFixture) {
		wants := func(when string, want ...time.Time) {
			t.Helper()
			time.Sleep(3 * readInterval)
			synctest.Wait()
			s.mu.Lock()
			defer s.mu.Unlock()
			isRead := func(got, written time.Time) bool {
				return !got.Before(written) && got.Sub(written) <= readInterval
			}
			if !slices.EqualFunc(s.times, want, isRead) {
				t.Errorf("%s: got times %v, want %v", when, s.times, want)
			}
			s.times = nil
		}
		s.writeAt(20*time.Minute, xidLine(addressGPU1, 95))
		s.writeAt(2*time.Hour, xidLine(addressGPU1, 64)) // the log's clock is an hour ahead
		begun := time.Now()
		s.runReader(func() {
			wants("historical records", s.bootedAt.Add(20*time.Minute), begun)
			time.Sleep(10500 * time.Millisecond)
			s.write(xidLine(addressGPU1, 79))
			wants("next read", time.Now())
			s.writeAt(s.uptime()-time.Minute, xidLine(addressGPU1, 79)) // the log's clock is a minute behind
			wants("next read by another clock", time.Now())
		})
	})
	runTest(t, func(s *readerFixture) {
		delete(s.known, addressGPU2)
		s.writeAt(30*time.Minute, xidLine(addressGPU2, 95))
		s.runReader(func() {
			time.Sleep(time.Minute)
			s.addGPU(addressGPU2, gpu2)
			time.Sleep(2 * time.Second)
			synctest.Wait()
			s.mu.Lock()
			defer s.mu.Unlock()
			if len(s.times) != 1 || !s.times[0].Equal(s.bootedAt.Add(30*time.Minute)) {
				t.Errorf("GPU listed a minute later: got times %v, want the record's time", s.times)
			}
		})
	})
}

// TestDriverLoaded checks that loading the driver drops earlier Xids.
func TestDriverLoaded(t *testing.T) {
	runTest(t, func(s *readerFixture) {
		s.writeAt(time.Minute, xidLine(addressGPU1, 79), xidLine(addressGPU2, 95),
			"NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.95.05", xidLine(addressGPU2, 64))
		s.runReader(func() { s.wantReports("historical records", "GPU-2 64 check kmsg_past") })
	})
	runTest(t, func(s *readerFixture) {
		delete(s.known, addressGPU1)
		s.runReader(func() {
			s.write(xidLine(addressGPU1, 79), "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.95.05",
				xidLine(addressGPU1, 95))
			s.wantReports("unknown GPU")
			s.addGPU(addressGPU1, gpu1)
			time.Sleep(2 * time.Second)
			s.wantReports("GPU listed", "GPU-1 95 reset kmsg")
		})
	})
}

// TestLastReported checks that Xids of an earlier process are not reported
// again.
func TestLastReported(t *testing.T) {
	runTest(t, func(s *readerFixture) {
		s.lastReported = func(e device.Event) time.Time {
			if e.GPU != gpu1 || e.Xid != 79 {
				return time.Time{}
			}
			return s.bootedAt.Add(30 * time.Minute)
		}
		s.writeAt(30*time.Minute+2*time.Second, xidLine(addressGPU1, 79), xidLine(addressGPU2, 79),
			xidLine(addressGPU1, 95))
		s.runReader(func() {
			s.wantReports("reported by an earlier process", "GPU-2 79 check kmsg_past", "GPU-1 95 check kmsg_past")
		})
	})
	runTest(t, func(s *readerFixture) {
		s.lastReported = func(device.Event) time.Time { return s.bootedAt.Add(30 * time.Minute) }
		s.writeAt(31*time.Minute, xidLine(addressGPU1, 79))
		s.runReader(func() {
			s.wantReports("later than the earlier process's report", "GPU-1 79 check kmsg_past")
			s.write(xidLine(addressGPU1, 79))
			s.wantReports("new record", "GPU-1 79 reset kmsg")
		})
	})
}

// TestDelay checks that a line waits for the driver's report of the same Xid.
func TestDelay(t *testing.T) {
	runTest(t, func(s *readerFixture) {
		s.runReader(func() {
			s.write(xidLine(addressGPU1, 79))
			time.Sleep(readInterval + readInterval/2) // until the line is read
			synctest.Wait()
			s.mu.Lock()
			if len(s.got) > 0 {
				s.Errorf("got %+v at once", s.got)
			}
			s.mu.Unlock()
			s.wantReports("later", "GPU-1 79 reset kmsg")
		})
	})
}

// TestUnknownGPU checks that a line waits for the listing of its GPU.
func TestUnknownGPU(t *testing.T) {
	runTest(t, func(s *readerFixture) {
		delete(s.known, addressGPU1)
		s.writeAt(time.Minute, xidLine(addressGPU1, 95))
		s.runReader(func() {
			s.write(xidLine(addressGPU1, 79), xidLine(addressGPU2, 74))
			s.wantReports("known GPU", "GPU-2 74 check kmsg")
			time.Sleep(time.Minute)
			s.wantReports("GPU not listed yet")
			s.addGPU(addressGPU1, gpu1)
			s.wantReports("GPU listed", "GPU-1 95 check kmsg_past", "GPU-1 79 reset kmsg")
			s.write(xidLine("0000:ff:00", 79))
			time.Sleep(listingTimeout + time.Minute)
			s.addGPU("0000:ff:00", "GPU-3")
			s.wantReports("listed after listingTimeout")
			s.wantLogged("unknown GPU in the kernel log", 1)
		})
	})
}

// TestStorm checks that equal lines are counted, and that the kinds of lines
// are bounded.
func TestStorm(t *testing.T) {
	runTest(t, func(s *readerFixture) {
		s.runReader(func() {
			for range 10_000 {
				s.write(xidLine(addressGPU1, 79))
			}
			s.wantReports("equal lines", slices.Repeat([]string{"GPU-1 79 reset kmsg"}, 10_000)...)
			for xid := range 3 * maxPending {
				s.write(xidLine("0000:ff:00", xid+1))
			}
			s.write(xidLine(addressGPU1, 79)) // dropped
			s.wantReports("too many kinds of an unknown GPU")
			s.wantLogged("too many Xids of unknown GPUs", 1)
			time.Sleep(2 * listingTimeout)
			s.write(xidLine(addressGPU1, 79))
			s.wantReports("after listingTimeout", "GPU-1 79 reset kmsg")
		})
	})
}

// TestOverrun checks that reading continues after lost records.
func TestOverrun(t *testing.T) {
	runTest(t, func(s *readerFixture) {
		s.runReader(func() {
			for range 5 {
				s.failNextRead(syscall.EPIPE)
				s.write(xidLine(addressGPU1, 79))
				s.wantReports("after the overrun", "GPU-1 79 reset kmsg")
			}
			s.wantLogged("lines are lost", 1)
			if s.opened != 1 {
				s.Errorf("opened logs: got %d, want 1", s.opened)
			}
		})
	})
}

// TestReopen checks that a failed log is opened again, without duplicate
// reports.
func TestReopen(t *testing.T) {
	runTest(t, func(s *readerFixture) {
		s.writeAt(time.Minute, xidLine(addressGPU1, 95))
		s.runReader(func() {
			s.write(xidLine(addressGPU1, 79))
			s.wantReports("before the failure", "GPU-1 95 check kmsg_past", "GPU-1 79 reset kmsg")
			for range 3 {
				s.failNextRead(io.EOF)
				synctest.Wait()
				s.write(xidLine(addressGPU1, 74))
				time.Sleep(reopenInterval / 2)
				s.wantReports("within reopenInterval")
				time.Sleep(reopenInterval)
				s.wantReports("reopened", "GPU-1 74 check kmsg")
			}
			s.wantLogged("cannot read kernel log", 1)
			s.setOpenError(fs.ErrNotExist)
			s.failNextRead(io.ErrUnexpectedEOF)
			time.Sleep(10 * reopenInterval)
			s.setOpenError(nil)
			time.Sleep(2 * reopenInterval)
			s.write(xidLine(addressGPU1, 79))
			s.wantReports("after a missing log", "GPU-1 79 reset kmsg")
		})
	})
}

// TestUnreadableLog checks that a missing or forbidden log is logged once and
// not opened again.
func TestUnreadableLog(t *testing.T) {
	for _, err := range []error{fs.ErrNotExist, &fs.PathError{Op: "open", Path: "/dev/kmsg", Err: syscall.EPERM}} {
		runTest(t, func(s *readerFixture) {
			s.setOpenError(err)
			s.runReader(func() {
				time.Sleep(time.Hour)
				s.wantLogged("kernel log not readable", 1)
				s.wantLogged("level", 1)
				if s.opened != 1 {
					s.Errorf("%v: opened logs: got %d, want 1", err, s.opened)
				}
			})
		})
	}
}

// TestFile reads from a pipe that, like /dev/kmsg, returns one record per read.
func TestFile(t *testing.T) {
	runTest(t, func(s *readerFixture) {
		var pipe [2]int
		if err := unix.Pipe2(pipe[:], unix.O_DIRECT|unix.O_CLOEXEC); err != nil {
			t.Fatal(err)
		}
		defer unix.Close(pipe[0])
		write := func(text string) {
			if _, err := unix.Write(pipe[1], []byte(text)); err != nil {
				t.Error(err)
			}
		}
		s.Reader = NewReader(fmt.Sprintf("/proc/self/fd/%d", pipe[0]), s, slog.New(slog.NewTextHandler(s, nil)))
		write("4,1,5,-;" + xidLine(addressGPU1, 95) + "\n")
		s.runReader(func() {
			s.wantReports("before the start", "GPU-1 95 check kmsg_past")
			write("4,2,6,-;" + xidLine(addressGPU1, 79) + "\n")
			write("4,3,7,-;" + strings.Repeat("x", 4000) + "\n")
			write("4,4,8,-;" + xidLine(addressGPU1, 48) + "\n")
			s.wantReports("after the start", "GPU-1 79 reset kmsg", "GPU-1 48 reset kmsg")
			unix.Close(pipe[1])
			time.Sleep(time.Minute)
			s.wantLogged("cannot read kernel log", 1)
		})
	})
}

// TestOpenErrors opens files other than a kernel log.
func TestOpenErrors(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kmsg")
	if _, err := devKmsg(path).open(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("open a missing file: got %v, want ErrNotExist", err)
	}
	if s, err := devKmsg("/dev/null").open(); err == nil {
		n, err := s.Read(make([]byte, maxRecordBytes))
		if n != 0 || !errors.Is(err, io.EOF) {
			t.Errorf("read of /dev/null: got %d bytes, %v, want EOF", n, err)
		}
		s.Close()
	}
}

// TestKernelLog reads the machine's own log, if permitted.
func TestKernelLog(t *testing.T) {
	s, err := devKmsg("/dev/kmsg").open()
	if err != nil {
		t.Skip(err)
	}
	defer s.Close()
	buf := make([]byte, maxRecordBytes)
	records, last := 0, uint64(0)
	for {
		n, err := s.Read(buf)
		if errors.Is(err, syscall.EAGAIN) {
			break
		}
		if errors.Is(err, syscall.EPIPE) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if r, ok := parseRecord(buf[:n]); ok {
			if records++; r.sequence <= last && records > 1 || r.uptime > devKmsg("").uptime()+time.Minute {
				t.Fatalf("got record %+v after sequence %d", r, last)
			}
			last = r.sequence
		}
	}
	if records == 0 {
		t.Skip("empty log")
	}
	t.Logf("%d records", records)
}
