package kmsg

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/podgauge/podgauge/internal/device"
)

// kernel is a log that obeys a test. It keeps the records, each of which every reader gets
// once.
type kernel struct {
	mu sync.Mutex
	// All below are guarded by mu.
	records []string
	booted  time.Time
	openErr error
	opened  int
	readers []*tape
}

// tape is a reader's place in the log.
type tape struct {
	*kernel
	at   int
	errs []error       // given before the next record
	news chan struct{} // has one when there may be something to read
}

func newKernel() *kernel { return &kernel{booted: time.Now().Add(-time.Hour)} }

func (k *kernel) open(string) (source, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.opened++
	if k.openErr != nil {
		return nil, k.openErr
	}
	t := &tape{kernel: k, news: make(chan struct{}, 1)}
	k.readers = append(k.readers, t)
	return t, nil
}

// shut has the log not be opened any more; nil: it can be.
func (k *kernel) shut(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.openErr = err
}

func (k *kernel) uptime() time.Duration { return time.Since(k.booted) }

// says has the kernel log messages, now.
func (k *kernel) says(messages ...string) { k.saysAt(k.uptime(), messages...) }

func (k *kernel) saysAt(since time.Duration, messages ...string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, m := range messages {
		k.records = append(k.records, fmt.Sprintf("4,%d,%d,-;%s\n KEY=x\n", len(k.records)+100, since.Microseconds(), m))
	}
	k.wakeAll()
}

// fails has the next read give errors.
func (k *kernel) fails(errs ...error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, t := range k.readers {
		t.errs = append(t.errs, errs...)
	}
	k.wakeAll()
}

func (k *kernel) wakeAll() {
	for _, t := range k.readers {
		select {
		case t.news <- struct{}{}:
		default:
		}
	}
}

func (t *tape) read(buf []byte, wait time.Duration) (int, error) {
	for timer := time.After(wait); ; {
		if n, err := t.next(buf); !errors.Is(err, errNothing) || wait == 0 {
			return n, err
		}
		select {
		case <-t.news:
		case <-timer:
			return 0, errNothing
		}
	}
}

func (t *tape) next(buf []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.errs) > 0 {
		err := t.errs[0]
		t.errs = t.errs[1:]
		return 0, err
	}
	if t.at == len(t.records) {
		return 0, errNothing
	}
	t.at++
	return copy(buf, t.records[t.at-1]), nil
}

func (t *tape) wake()  { t.mu.Lock(); defer t.mu.Unlock(); t.wakeAll() }
func (t *tape) close() { t.mu.Lock(); defer t.mu.Unlock(); t.readers = nil }

// stage is a Reader, the kernel, and what was reported.
type stage struct {
	*testing.T
	*kernel
	*Reader
	known map[string]device.GPU // by address
	got   []device.Event
	times []time.Time  // of got
	said  bytes.Buffer // read when nobody writes
}

const (
	one   = "0000:1a:00"
	two   = "0000:1b:00"
	gpu1  = device.GPU("GPU-1")
	gpu2  = device.GPU("GPU-2")
	slice = device.ID("MIG-a") // GI 7 of both
)

// xid is a line of the driver's.
func xid(pci string, number int) string {
	return fmt.Sprintf("NVRM: Xid (PCI:%s): %d, pid=1, name=a, b", pci, number)
}

// on runs a test in a bubble of its own, where time passes at once.
func on(t *testing.T, body func(s *stage)) {
	synctest.Test(t, func(t *testing.T) {
		s := &stage{T: t, kernel: newKernel(), known: map[string]device.GPU{one: gpu1, two: gpu2}}
		s.Reader = NewReader(Options{
			Path: "/dev/kmsg", Event: s.event, Report: s.tell,
			Log: slog.New(slog.NewTextHandler(&s.said, nil)),
		})
		s.Reader.open, s.Reader.uptime = s.kernel.open, s.kernel.uptime
		body(s)
	})
}

func (s *stage) tell(e device.Event, at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.got, s.times = append(s.got, e), append(s.times, at)
}

// list has the GPU at an address be known from now on.
func (s *stage) list(pci string, gpu device.GPU) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.known[pci] = gpu
}

// event is what a table of Xids would say: 31 ends by itself, 74 by checks, the rest by a reset.
func (s *stage) event(l Line) (device.Event, bool) {
	s.mu.Lock()
	gpu, known := s.known[l.PCI]
	s.mu.Unlock()
	e := device.Event{GPU: gpu, Xid: l.Xid, Heals: device.ByReset, Class: "c", Action: "a"}
	switch l.Xid {
	case 31:
		e.Heals = device.ByItself
	case 74:
		e.Heals = device.ByCheck
	}
	if l.GI == 7 {
		e.Device = slice
	}
	return e, known
}

// run follows the log while the test goes on, and takes the Reader's end at the end.
func (s *stage) run(body func()) {
	s.Helper()
	ctx, cancel := context.WithCancel(s.Context())
	done := make(chan error)
	go func() { done <- s.Reader.Run(ctx) }() // ends with ctx; received below
	synctest.Wait()
	body()
	cancel()
	if err := <-done; err != nil {
		s.Errorf("Run ends with %v", err)
	}
}

// wants tells what was reported since it was last asked.
func (s *stage) wants(when string, want ...string) {
	s.Helper()
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	var got []string
	for _, e := range s.got {
		heals := map[device.Heals]string{device.ByItself: "itself", device.ByCheck: "check", device.ByReset: "reset"}[e.Heals]
		witness := e.Witness
		if e.Past {
			witness += "_past"
		}
		got = append(got, strings.Join(strings.Fields(fmt.Sprintf("%s %s %d %s %s", e.GPU, e.Device, e.Xid, heals, witness)), " "))
	}
	s.got = nil
	if !slices.Equal(got, want) {
		s.Errorf("%s: got %q, want %q", when, got, want)
	}
}

func (s *stage) wantsSaid(text string, times int) {
	s.Helper()
	synctest.Wait()
	if n := strings.Count(s.said.String(), text); n != times {
		s.Errorf("%q is said %d times, want %d:\n%s", text, n, times, s.said.String())
	}
}

func TestFollow(t *testing.T) {
	on(t, func(s *stage) {
		s.run(func() {
			s.says("usb 1-1: new device", xid(one, 79), "NVRM: GPU at PCI:0000:1a:00: GPU-1", xid(two+" GPU-I:07", 31))
			s.wants("as they come", "GPU-1 79 reset kmsg", "GPU-2 MIG-a 31 itself kmsg")
			time.Sleep(time.Hour)
			s.says(xid(one, 79), xid(one, 79))
			s.wants("each time", "GPU-1 79 reset kmsg", "GPU-1 79 reset kmsg")
		})
		s.wantsSaid("level", 0)
	})
}

// TestPast: what was there before has a GPU be checked, and no more than that.
func TestPast(t *testing.T) {
	on(t, func(s *stage) {
		s.saysAt(time.Minute, xid(one, 79), xid(one, 31), xid(two+" GPU-I:07", 95), xid(one, 79), xid(one, 74))
		s.run(func() {
			s.wants("what is past", "GPU-1 79 check kmsg_past", "GPU-2 95 check kmsg_past", "GPU-1 74 check kmsg_past")
			s.says(xid(one, 79))
			s.wants("what is not", "GPU-1 79 reset kmsg")
			time.Sleep(time.Hour)
			s.wants("later")
		})
	})
}

// TestTimes: a report has the time of its record, however late it is read and however wrong
// the log's clock is.
func TestTimes(t *testing.T) {
	on(t, func(s *stage) {
		wants := func(when string, want ...time.Time) {
			t.Helper()
			synctest.Wait()
			s.mu.Lock()
			defer s.mu.Unlock()
			if !slices.EqualFunc(s.times, want, time.Time.Equal) {
				t.Errorf("%s: the times are %v, want %v", when, s.times, want)
			}
			s.times = nil
		}
		s.saysAt(20*time.Minute, xid(one, 95))
		s.saysAt(2*time.Hour, xid(one, 64)) // by a clock that is an hour ahead
		begun := time.Now()
		s.run(func() {
			wants("of the past", s.booted.Add(20*time.Minute), begun)
			time.Sleep(10500 * time.Millisecond)
			s.says(xid(one, 79))
			wants("at once", time.Now())
			s.saysAt(s.kernel.uptime()-time.Minute, xid(one, 79)) // by a clock that is a minute late
			wants("within the second since the log was empty", time.Now().Add(-500*time.Millisecond))
			s.fails(io.EOF)
			synctest.Wait()
			said := time.Now()
			s.says(xid(one, 79))
			time.Sleep(2 * againAfter)
			wants("of a log that was opened again", said)
		})
	})
	on(t, func(s *stage) {
		delete(s.known, two)
		s.saysAt(30*time.Minute, xid(two, 95))
		s.run(func() {
			time.Sleep(time.Minute)
			s.list(two, gpu2)
			time.Sleep(2 * time.Second)
			synctest.Wait()
			s.mu.Lock()
			defer s.mu.Unlock()
			if len(s.times) != 1 || !s.times[0].Equal(s.booted.Add(30*time.Minute)) {
				t.Errorf("of a GPU that is listed a minute later the times are %v", s.times)
			}
		})
	})
}

// TestDriverLoaded: what was before the driver was loaded is over.
func TestDriverLoaded(t *testing.T) {
	on(t, func(s *stage) {
		s.saysAt(time.Minute, xid(one, 79), xid(two, 95), "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.95.05", xid(two, 64))
		s.run(func() { s.wants("what is past", "GPU-2 64 check kmsg_past") })
	})
	on(t, func(s *stage) {
		delete(s.known, one)
		s.run(func() {
			s.says(xid(one, 79), "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.95.05", xid(one, 95))
			s.wants("of a GPU that is not known")
			s.list(one, gpu1)
			time.Sleep(2 * time.Second)
			s.wants("when it is listed", "GPU-1 95 reset kmsg")
		})
	})
}

// TestRemembered: what an earlier process has counted is not counted again, and what came
// after it is.
func TestRemembered(t *testing.T) {
	on(t, func(s *stage) {
		s.options.Remembered = func(e device.Event) time.Time {
			if e.GPU != gpu1 || e.Xid != 79 {
				return time.Time{}
			}
			return s.booted.Add(30 * time.Minute)
		}
		s.saysAt(30*time.Minute+2*time.Second, xid(one, 79), xid(two, 79), xid(one, 95))
		s.run(func() { s.wants("of what is remembered", "GPU-2 79 check kmsg_past", "GPU-1 95 check kmsg_past") })
	})
	on(t, func(s *stage) {
		s.options.Remembered = func(device.Event) time.Time { return s.booted.Add(30 * time.Minute) }
		s.saysAt(31*time.Minute, xid(one, 79))
		s.run(func() {
			s.wants("of what came after", "GPU-1 79 check kmsg_past")
			s.says(xid(one, 79))
			s.wants("and now", "GPU-1 79 reset kmsg")
		})
	})
}

// TestUnknownGPU: a line waits for its GPU to be listed, in a log that is never quiet too.
func TestUnknownGPU(t *testing.T) {
	for _, chatty := range []bool{false, true} {
		on(t, func(s *stage) {
			delete(s.known, one)
			s.saysAt(time.Minute, xid(one, 95))
			s.run(func() {
				s.says(xid(one, 79), xid(two, 74))
				s.wants("of the one that is known", "GPU-2 74 check kmsg")
				for range 100 {
					time.Sleep(100 * time.Millisecond)
					if chatty {
						s.says("chatter")
					}
				}
				s.wants("meanwhile")
				s.list(one, gpu1)
				for range 15 {
					time.Sleep(100 * time.Millisecond)
					if chatty {
						s.says("chatter")
					}
				}
				s.wants("when it is listed", "GPU-1 95 check kmsg_past", "GPU-1 79 reset kmsg")
				s.says(xid("0000:ff:00", 79))
				time.Sleep(knownBy + time.Minute)
				s.list("0000:ff:00", "GPU-3")
				time.Sleep(time.Minute)
				s.wants("too late")
				s.wantsSaid("that is not known", 1)
			})
		})
	}
}

// TestFlood of lines about unknown GPUs costs little memory.
func TestFlood(t *testing.T) {
	on(t, func(s *stage) {
		s.run(func() {
			for range 3 * mostWaiting {
				s.says(xid("0000:ff:00", 79))
			}
			synctest.Wait()
			if len(s.waiting) != mostWaiting {
				s.Errorf("%d lines wait", len(s.waiting))
			}
			s.wantsSaid("more errors of unknown GPUs", 1)
			s.says(xid(one, 79)) // it finds no room, and is lost
			time.Sleep(2 * knownBy)
			s.says(xid(one, 79))
			s.wants("afterwards", "GPU-1 79 reset kmsg")
		})
	})
}

// TestOverrun goes on behind what was lost.
func TestOverrun(t *testing.T) {
	on(t, func(s *stage) {
		s.run(func() {
			for range 5 {
				s.fails(syscall.EPIPE)
				s.says(xid(one, 79))
				s.wants("behind it", "GPU-1 79 reset kmsg")
			}
			s.wantsSaid("lines are missing", 1)
			if s.opened != 1 {
				s.Errorf("it was opened %d times", s.opened)
			}
		})
	})
}

// TestLogEnds: one that fails is opened again after a while, and nothing of it counts twice.
func TestLogEnds(t *testing.T) {
	on(t, func(s *stage) {
		s.saysAt(time.Minute, xid(one, 95))
		s.run(func() {
			s.says(xid(one, 79))
			s.wants("at first", "GPU-1 95 check kmsg_past", "GPU-1 79 reset kmsg")
			for range 3 {
				s.fails(io.EOF)
				synctest.Wait()
				s.says(xid(one, 74))
				time.Sleep(againAfter / 2)
				s.wants("while it is shut")
				time.Sleep(againAfter)
				s.wants("when it is open again", "GPU-1 74 check kmsg")
			}
			s.wantsSaid("will go on trying", 1)
			s.shut(fs.ErrNotExist)
			s.fails(io.ErrUnexpectedEOF)
			time.Sleep(10 * againAfter)
			s.shut(nil)
			time.Sleep(2 * againAfter)
			s.says(xid(one, 79))
			s.wants("after it was gone", "GPU-1 79 reset kmsg")
		})
	})
}

// TestNoLog: one that is not there, or must not be read, is one line, and nobody asks again.
func TestNoLog(t *testing.T) {
	for _, err := range []error{fs.ErrNotExist, &fs.PathError{Op: "open", Path: "/dev/kmsg", Err: syscall.EPERM}} {
		on(t, func(s *stage) {
			s.shut(err)
			s.run(func() {
				time.Sleep(time.Hour)
				s.wantsSaid("the kernel's log is not read", 1)
				s.wantsSaid("level", 1)
				if s.opened != 1 {
					s.Errorf("%v: it was opened %d times", err, s.opened)
				}
			})
		})
	}
}

// TestFile reads a file of which each read gives a record, as the kernel's does.
func TestFile(t *testing.T) {
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_SEQPACKET|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	say := func(text string) {
		if _, err := syscall.Write(pair[1], []byte(text)); err != nil {
			t.Error(err)
		}
	}
	say("4,1,5,-;" + xid(one, 95) + "\n")
	reports := make(chan device.Event, 10)
	r := NewReader(Options{
		Path: "a socket",
		Event: func(l Line) (device.Event, bool) {
			return device.Event{GPU: gpu1, Xid: l.Xid, Heals: device.ByReset}, true
		},
		Report: func(e device.Event, _ time.Time) { reports <- e }, Log: slog.New(slog.DiscardHandler),
	})
	r.open = func(string) (source, error) { // a socket has no path to be opened by
		if err := syscall.SetNonblock(pair[0], true); err != nil {
			return nil, err
		}
		return newFile(os.NewFile(uintptr(pair[0]), "kmsg"))
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- r.Run(ctx) }() // ends with ctx; received below
	if e := <-reports; e.Xid != 95 || !e.Past || e.Witness != Witness {
		t.Errorf("got %+v", e)
	}
	say("4,2,6,-;" + xid(one, 79) + "\n")
	say("4,3,7,-;" + strings.Repeat("x", 4000) + "\n")
	say("4,4,8,-;" + xid(one, 48) + "\n")
	for _, want := range []uint64{79, 48} {
		if e := <-reports; e.Xid != want || e.Witness != Witness || e.Heals != device.ByReset {
			t.Errorf("got %+v, want xid %d", e, want)
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if err := syscall.Close(pair[1]); err != nil {
		t.Error(err)
	}
}

// TestNotALog: what cannot be waited for, and what ends, is told and tried again.
func TestNotALog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kmsg")
	if err := os.WriteFile(path, []byte("4,1,5,-;"+xid(one, 95)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{path, t.TempDir()} {
		if s, err := openFile(p); err == nil {
			s.close()
			t.Errorf("%s can be waited for", p)
		}
	}
	if _, err := openFile(path + ".none"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v", err)
	}
	if s, err := openFile("/dev/null"); err == nil {
		n, err := s.read(make([]byte, mostRecord), 0)
		if n != 0 || !errors.Is(err, io.EOF) {
			t.Errorf("of /dev/null it reads %d bytes, %v", n, err)
		}
		s.close()
	}
}

// TestKernel reads the log of the machine that it runs on, where it may.
func TestKernel(t *testing.T) {
	s, err := openFile("/dev/kmsg")
	if err != nil {
		t.Skip(err)
	}
	defer s.close()
	buf := make([]byte, mostRecord)
	records, last := 0, uint64(0)
	for {
		n, err := s.read(buf, 0)
		if errors.Is(err, errNothing) {
			break
		}
		if errors.Is(err, syscall.EPIPE) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if r, ok := parseRecord(buf[:n]); ok {
			if records++; r.sequence <= last && records > 1 || r.since > uptime()+time.Minute {
				t.Fatalf("after %d comes %+v", last, r)
			}
			last = r.sequence
		}
	}
	if records == 0 {
		t.Skip("it is empty")
	}
	if _, err := s.read(buf, 10*time.Millisecond); err != nil && !errors.Is(err, errNothing) && !errors.Is(err, syscall.EPIPE) {
		t.Errorf("a read that waits: %v", err)
	}
	t.Logf("%d records of the kernel's", records)
}
