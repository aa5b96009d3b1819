package kmsg

import (
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

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/sxid"
	"github.com/podgauge/podgauge/internal/xid"
	"github.com/podgauge/podgauge/test/bubble"
	"github.com/podgauge/podgauge/test/helpers/background"
	"github.com/podgauge/podgauge/test/helpers/expect"
	"github.com/podgauge/podgauge/test/helpers/require"
	"github.com/podgauge/podgauge/test/helpers/testfile"
	"github.com/podgauge/podgauge/test/helpers/testlog"
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

func (k *fakeKernelLog) uptime() time.Duration { return time.Since(k.bootedAt) }

// writeAt adds records of a time since the boot.
func (k *fakeKernelLog) writeAt(since time.Duration, messages ...string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, m := range messages {
		k.records = append(k.records,
			fmt.Sprintf("4,%d,%d,-;%s\n KEY=x\n", len(k.records)+100, since.Microseconds(), m))
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
	known    map[string]device.GPU // by address
	reported time.Time             // Xid 79 of GPU-1, by an earlier process
	got      []string
	times    []time.Time    // of got
	log      testlog.Buffer // of the Reader
}

// xidLine returns the driver's message for an Xid of a GPU: "1", "ff", or "2/7"
// for GPU instance 7.
func xidLine(gpu, xid string) string {
	gpu, instance, isMIG := strings.Cut(gpu, "/")
	if isMIG {
		instance = " GPU-I:0" + instance
	}
	return fmt.Sprintf("NVRM: Xid (PCI:0000:%02s:00%s): %s, pid=1, name=a, b", gpu, instance, xid)
}

// runTest runs a script in a synctest bubble. Its lines are pauses, and
//
//	xid GPU XID, past D GPU XID   the driver's line now, and D after the boot
//	load                          the line of a driver that is loaded
//	run                           starts the Reader, an hour after the boot
//	unlist, list GPU              the GPU is unknown; known
//	fail ERR, open ERR            the next read fails; opening fails
//	want REPORT, …                the reports since the previous line
//	log TIMES TEXT                of the Reader
func runTest(t *testing.T, script string) {
	bubble.Test(t, func(t *testing.T) {
		s := &readerFixture{T: t, fakeKernelLog: newKernel(), known: map[string]device.GPU{}}
		s.Reader = NewReader("", s, s, slog.New(slog.NewTextHandler(&s.log, nil)))
		s.source = s.fakeKernelLog
		for _, gpu := range []string{"1", "2"} {
			s.script("list " + gpu)
		}
		before, after, _ := strings.Cut(script, "run;")
		s.script(before)
		defer background.Run(t, s.Reader.Run)()
		synctest.Wait()
		s.script(after)
	})
}

var scriptErrors = map[string]error{
	"EOF": io.EOF, "EPIPE": syscall.EPIPE, "ENOENT": fs.ErrNotExist, "ok": nil,
	"EPERM": &fs.PathError{Op: "open", Path: "/dev/kmsg", Err: syscall.EPERM},
}

func (s *readerFixture) script(script string) {
	s.Helper()
	for line := range strings.SplitSeq(script, ";") {
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		if pause, err := time.ParseDuration(words[0]); err == nil {
			time.Sleep(pause)
			continue
		}
		args := words[1:]
		switch words[0] {
		case "xid":
			s.writeAt(s.uptime(), xidLine(args[0], args[1]))
		case "past":
			age, _ := time.ParseDuration(args[0])
			s.writeAt(age, xidLine(args[1], args[2]))
		case "load":
			s.writeAt(s.uptime(), "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.95.05")
		case "nvlink": // SEVERITY [UNIT STATUS] of an NVLink error of GPU 1
			args = append(args, "RLW_CTRL", "0x1")
			s.writeAt(s.uptime(), fmt.Sprintf("NVRM: Xid (PCI:0000:01:00): 145, %s %s XC0 i0 Link 02 (0x00000000 %s)", args[1], args[0], args[2]))
		case "sxid", "oldsxid": // SEVERITY of an NVSwitch error, now or 1 min after the boot
			at := map[bool]time.Duration{true: s.uptime(), false: time.Minute}[words[0] == "sxid"]
			s.writeAt(at, "nvidia-nvswitch1: SXid (PCI:0000:06:00.0): 20034, "+args[0]+", Link 30 LTSSM Fault Up",
				"nvidia-nvswitch1: SXid (PCI:0000:06:00.0): 20034, Severity 1 Engine instance 30 Sub-engine instance 00")
		case "other":
			s.writeAt(s.uptime(), "usb 1-1: new device")
		case "list":
			s.locked(func() { s.known[fmt.Sprintf("0000:%02s:00", args[0])] = device.GPU("GPU-" + args[0]) })
		case "unlist":
			s.locked(func() { delete(s.known, fmt.Sprintf("0000:%02s:00", args[0])) })
		case "fail":
			s.failNextRead(scriptErrors[args[0]])
		case "open":
			s.locked(func() { s.openErr = scriptErrors[args[0]] })
		case "reported": // D after the boot
			age, _ := time.ParseDuration(args[0])
			s.reported = s.bootedAt.Add(age)
		case "want":
			s.wantReports(strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(line), "want")))
		case "log":
			s.wantLogged(strings.Join(args[1:], " "), args[0])
		case "opened":
			expect.Equal(s, fmt.Sprint(s.opened), args[0], line)
		default:
			s.Fatal("unknown command: ", line)
		}
	}
}

func (s *readerFixture) locked(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

// LastReported returns the time of an earlier process's report.
func (s *readerFixture) LastReported(e device.Event) time.Time {
	if e.GPU != "GPU-1" || e.Xid != 79 {
		return time.Time{}
	}
	return s.reported
}

// Record is of the SwitchHandler.
func (s *readerFixture) Record(e sxid.Line, at time.Time, historical bool) {
	text := fmt.Sprint("sxid ", e.Number, " ", e.Severity)
	if historical {
		text += " past"
	}
	s.locked(func() { s.got, s.times = append(s.got, text), append(s.times, at) })
}

func (s *readerFixture) OnDriverLoaded() { s.locked(func() { s.got = append(s.got, "loaded") }) }

func (s *readerFixture) Report(_ context.Context, e device.Event, count int, at time.Time) error {
	text := fmt.Sprintf("%s %s %d ", e.GPU, e.Device, e.Xid) + [...]string{
		device.RecoveryNone: "itself", device.RecoveryChecksPass: "check", device.RecoveryAfterReset: "reset",
	}[e.Recovery]
	if e.Severity == device.SeverityNonfatal {
		text += " nonfatal"
	}
	if e.Action == xid.ActionResetGPU {
		text += " " + e.Action
	}
	if e.Historical {
		text += " past"
	}
	expect.Equal(s, e.Source, "kmsg")
	text = strings.Join(strings.Fields(text), " ")
	s.locked(func() {
		s.got, s.times = append(s.got, slices.Repeat([]string{text}, count)...), append(s.times, at)
	})
	return nil
}

// EventOf returns events that need no recovery for Xid 31, passed checks for
// Xid 74, and a reset for all others.
func (s *readerFixture) EventOf(l XidLine) (e device.Event, known bool) {
	e = device.Event{Xid: l.Xid, Recovery: device.RecoveryAfterReset, Class: "c", Action: "a"}
	s.locked(func() { e.GPU, known = s.known[l.PCI] })
	switch l.Xid {
	case 31:
		e.Recovery = device.RecoveryNone
	case 74:
		e.Recovery = device.RecoveryChecksPass
	case 145:
		e.Severity = device.SeverityUndecided
	}
	if l.GI == 7 {
		e.Device = "MIG-a"
	}
	return e, known
}

// wantReports checks the reports since the previous call, after two more reads.
func (s *readerFixture) wantReports(want string) {
	s.Helper()
	time.Sleep(2*readInterval + readInterval/2)
	synctest.Wait()
	s.locked(func() {
		expect.Equal(s, strings.Join(s.got, ", "), want)
		s.got = nil
	})
}

func (s *readerFixture) wantLogged(text, times string) {
	s.Helper()
	synctest.Wait()
	expect.Equal(s, fmt.Sprint(s.log.Count(text)), times, "logs of", text, s.log.String())
}

func TestReader(t *testing.T) {
	for _, script := range testfile.Sections(t, "testdata/reader.txt") {
		t.Run(script.Title, func(t *testing.T) { runTest(t, script.Text) })
	}
	// Equal lines are counted, and the kinds of lines are bounded.
	t.Run("a storm", func(t *testing.T) {
		manyKinds := ""
		for xid := range 300 {
			manyKinds += fmt.Sprintf("xid ff %d;", xid+1)
		}
		runTest(t, "run;"+strings.Repeat("xid 1 79;", 1000)+"want "+strings.Repeat("GPU-1 79 reset, ", 999)+"GPU-1 79 reset;"+
			manyKinds+"xid 1 79; want; log 1 too many Xids of unknown GPUs; 10m; xid 1 79; want GPU-1 79 reset")
	})
}

// TestReportTimes checks the times of reports for late reads and for wrong
// clocks of the log.
func TestReportTimes(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := &readerFixture{T: t, fakeKernelLog: newKernel(), known: map[string]device.GPU{"0000:01:00": "GPU-1"}}
		s.Reader = NewReader("", s, s, slog.New(slog.DiscardHandler))
		s.source = s.fakeKernelLog
		wants := func(when string, want ...time.Time) {
			t.Helper()
			s.script("3s")
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
		s.script("past 20m 1 95; past 30m 2 95; past 2h 1 64") // the log's clock is an hour ahead
		begun := time.Now()
		defer background.Run(t, s.Reader.Run)()
		wants("historical records", s.bootedAt.Add(20*time.Minute), begun)
		s.script("list 2")
		wants("a GPU listed later", s.bootedAt.Add(30*time.Minute))
		s.script("10500ms; xid 1 79")
		wants("next read", time.Now())
		s.script("past 1m 1 79") // the log's clock is behind
		wants("next read by another clock", time.Now())
	})
}

// TestFile reads from a pipe that, like /dev/kmsg, returns one record per read.
func TestFile(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := &readerFixture{T: t, fakeKernelLog: newKernel(), known: map[string]device.GPU{"0000:01:00": "GPU-1"}}
		var pipe [2]int
		require.NoError(t, unix.Pipe2(pipe[:], unix.O_DIRECT|unix.O_CLOEXEC))
		defer unix.Close(pipe[0])
		write := func(text string) {
			if _, err := unix.Write(pipe[1], []byte(text)); err != nil {
				t.Error(err)
			}
		}
		s.Reader = NewReader(fmt.Sprintf("/proc/self/fd/%d", pipe[0]), s, s, slog.New(slog.NewTextHandler(&s.log, nil)))
		write("4,1,5,-;" + xidLine("1", "95") + "\n")
		defer background.Run(t, s.Reader.Run)()
		s.script("want GPU-1 95 check past")
		write("4,2,6,-;" + xidLine("1", "79") + "\n")
		write("4,3,7,-;" + strings.Repeat("x", 4000) + "\n")
		write("4,4,8,-;" + xidLine("1", "48") + "\n")
		s.script("want GPU-1 79 reset, GPU-1 48 reset")
		unix.Close(pipe[1])
		s.script("1m; log 1 cannot read kernel log")
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

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
