package device_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/test/bubble"
)

// failingLister is a Backend whose listings can fail as a whole, and whose
// checks take time.
type failingLister struct {
	device.Backend
	err   atomic.Pointer[error] // of a listing; nil: none
	both  bool                  // checks fail as listings do
	check time.Duration         // of each GPU, one after another
	slow  atomic.Bool           // a listing takes six seconds
	turn  atomic.Int64
}

func (b *failingLister) fail(err error) {
	b.err.Store(nil)
	if err != nil {
		b.err.Store(&err)
	}
}

func (b *failingLister) Devices(ctx context.Context) ([]device.Device, error) {
	if b.slow.Load() {
		time.Sleep(6 * time.Second)
	}
	if err := b.err.Load(); err != nil {
		return nil, *err
	}
	return b.Backend.Devices(ctx)
}

func (b *failingLister) Check(gpu device.GPU) (device.ResetEvidence, error) {
	time.Sleep(time.Duration(b.turn.Add(1)%8) * b.check)
	if err := b.err.Load(); err != nil && b.both {
		return device.ResetEvidence{}, *err
	}
	return b.Backend.Check(gpu)
}

// TestDriverFault lets the checks of some GPUs fail. If those of all fail
// alike, driver or container has the fault, and no GPU.
func TestDriverFault(t *testing.T) {
	errTimeout, errLost := errors.New("TIMEOUT"), device.ErrLost
	coded := fmt.Errorf("nvmlDeviceGetFieldValues: %w", device.ErrDriverFault)
	drivers := slices.Repeat([]string{"driver"}, 8)
	for _, row := range []struct {
		name    string
		errs    []error // of the checks, by GPU
		listErr error
		check   time.Duration
		want    []string // reasons
		events  int
	}{
		{"all GPUs", slices.Repeat([]error{errUnknown}, 8), nil, 0, drivers, 0},
		{"all GPUs, one after another", slices.Repeat([]error{errUnknown}, 8), nil, 200 * time.Millisecond, drivers, 0},
		{"all GPUs, and listings", slices.Repeat([]error{errUnknown}, 4), errUnknown, 0, drivers[:4], 0},
		{"all GPUs, no driver", slices.Repeat([]error{device.ErrNoDriver}, 4), device.ErrNoDriver, 0, drivers[:4], 0},
		{"both GPUs", slices.Repeat([]error{errUnknown}, 2), nil, 0, drivers[:2], 0},
		{
			"all GPUs but a lost one",
			[]error{errUnknown, errLost, errUnknown},
			nil, 0,
			[]string{"driver", "lost", "driver"},
			1,
		},
		{"one GPU of eight", []error{7: errUnknown}, nil, 0, []string{7: "check_failed"}, 1},
		{"one slow GPU of eight", []error{7: errUnknown}, nil, 200 * time.Millisecond, []string{7: "check_failed"}, 1},
		{
			"two GPUs of three",
			[]error{errUnknown, errUnknown, nil},
			nil, 0,
			[]string{"check_failed", "check_failed", ""},
			2,
		},
		{
			"two GPUs, each in another way",
			[]error{errUnknown, errTimeout},
			nil, 0,
			[]string{"check_failed", "check_failed"},
			2,
		},
		{
			"two GPUs beside a GPU with a fault",
			[]error{errUnknown, errUnknown, &device.Fault{Reason: "fabric"}},
			nil,
			0,
			[]string{"check_failed", "check_failed", "fabric"},
			3,
		},
		{"one lost GPU of eight", []error{3: errLost, 7: nil}, nil, 0, []string{3: "lost", 7: ""}, 1},
		{"all GPUs lost", slices.Repeat([]error{errLost}, 4), nil, 0, []string{"lost", "lost", "lost", "lost"}, 4},
		{"the only GPU", []error{errUnknown}, nil, 0, []string{"check_failed"}, 1},
		{"the only GPU, and listings", []error{errUnknown}, errUnknown, 0, drivers[:1], 0},
		{"the only GPU, with a code of the driver", []error{coded}, nil, 0, drivers[:1], 0},
		{"one GPU of two, with a code of the driver", []error{coded, nil}, nil, 0, []string{"check_failed", ""}, 1},
		{"listings only", []error{nil, nil}, errUnknown, 0, []string{"", ""}, 0},
	} {
		for _, early := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, early %v", row.name, early), func(t *testing.T) {
				bubble.Test(t, func(t *testing.T) {
					m, s := newMachine(len(row.errs)), monitorRecorder{}
					b := &failingLister{Backend: m, check: row.check}
					ids := m.AllocatableIDs()
					setErrors := func(set bool) {
						b.fail(nil)
						if set {
							b.fail(row.listErr)
						}
						for i, id := range ids {
							m.SetCheckError(id, nil)
							if set {
								m.SetCheckError(id, row.errs[i])
							}
						}
					}
					if early && row.listErr == nil { // from the first check
						setErrors(true)
					}
					w := startMonitor(t, m, func(device.Backend) device.Backend { return b }, s.attach)
					defer w.stop()
					if !early {
						w.statusesAfter(10*time.Second + 300*time.Millisecond)
					} else {
						w.statusesAfter(time.Millisecond)
					}
					setErrors(true)
					requireReasons(t, "after 12 s", w.statusesAfter(12*time.Second), row.want...)
					statuses := w.statusesAfter(time.Minute)
					requireReasons(t, "after a minute", statuses, row.want...)
					events, flaps := s.takeEvents(), uint64(0)
					for _, status := range statuses {
						flaps += status.Flaps
					}
					if len(events) != row.events || int(flaps) != row.events {
						t.Errorf("got %d events and %d flaps, want %d: %+v", len(events), flaps, row.events, events)
					}
					isDriver := slices.Contains(row.want, "driver") || row.listErr != nil
					if d := w.monitor.Driver(); (d.State == device.DriverUp) == isDriver {
						t.Errorf("driver: got %+v, want a fault: %v", d, isDriver)
					}
					if n := w.log.count("driver unusable") + w.log.count("device unhealthy"); isDriver && n != 1 {
						t.Errorf("log lines about the fault: got %d, want 1: %v", n, w.log.counts)
					}
					if slices.Contains(row.want, "lost") {
						return
					}
					setErrors(false)
					requireReasons(t, "after the fault", w.statusesAfter(15*time.Second), make([]string, len(ids))...)
					if events := s.takeEvents(); len(events) > 0 {
						t.Errorf("after the fault: got events %+v, want none", events)
					}
					if d := w.monitor.Driver(); d.State != device.DriverUp {
						t.Errorf("driver after the fault: got %+v, want up", d)
					}
				})
			})
		}
	}
}

// TestDriverFaultOfUnhealthyGPUs lets all checks fail while devices have faults
// or recover. Earlier causes remain, and an Xid is a fault of its GPU.
func TestDriverFaultOfUnhealthyGPUs(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m, s := newMachine(4), monitorRecorder{}
		ids := m.AllocatableIDs()
		w := startMonitor(t, m, nil, s.attach)
		defer w.stop()
		w.statusesAfter(time.Second)
		m.Fail(ids[0], "xid 95")
		m.Fail(ids[1], "xid 95")
		w.statusesAfter(20 * time.Second)
		m.ResetGPU(ids[1])
		w.statusesAfter(1500 * time.Millisecond) // recovering
		for _, id := range ids {
			m.SetCheckError(id, errUnknown)
		}
		requireReasons(t, "while the driver fails", w.statusesAfter(10*time.Second), "xid_95", "xid_95", "driver",
			"driver")
		m.Fail(ids[3], "xid 48")
		requireReasons(t, "with an Xid", w.statusesAfter(10*time.Second), "xid_95", "xid_95", "driver", "xid_48")
		if events := s.takeEvents(); len(events) != 3 {
			t.Errorf("got events %+v, want three Xids", events)
		}
		for _, id := range ids {
			m.SetCheckError(id, nil)
		}
		requireReasons(t, "afterwards", w.statusesAfter(10*time.Second), "xid_95", "", "", "xid_48")
	})
}

// TestFaultAfterDriverFault lets the checks of all GPUs fail, and then those of
// some. The fault is theirs after the driver works again.
func TestFaultAfterDriverFault(t *testing.T) {
	coded := fmt.Errorf("nvmlDeviceGetFieldValues: %w", device.ErrDriverFault)
	for _, row := range []struct {
		name   string
		gpus   int
		broken int // GPUs that stay so
		err    error
		check  time.Duration
	}{
		{"all fail, then one of eight stays", 8, 1, errUnknown, 0},
		{"all fail, then one of eight slow GPUs stays", 8, 1, errUnknown, 200 * time.Millisecond},
		{"all fail, then one of two stays", 2, 1, errUnknown, 0},
		{"all fail with a code of the driver, then one of eight stays", 8, 1, coded, 0},
		{"all fail, then two of eight stay", 8, 2, errUnknown, 0},
	} {
		t.Run(row.name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				m, s := newMachine(row.gpus), monitorRecorder{}
				w := startMonitor(t, m, func(b device.Backend) device.Backend {
					return &failingLister{
						Backend: b,
						check:   row.check,
					}
				}, s.attach)
				defer w.stop()
				w.statusesAfter(10 * time.Second)
				ids, want := m.AllocatableIDs(), make([]string, row.gpus)
				setErrors := func(ids []device.ID, err error) {
					for _, id := range ids {
						m.SetCheckError(id, err)
					}
				}
				for _, pause := range []time.Duration{30 * time.Second, 30*time.Second + 300*time.Millisecond} {
					setErrors(ids, row.err)
					requireReasons(t, "while the driver fails", w.statusesAfter(pause),
						slices.Repeat([]string{"driver"}, row.gpus)...)
					for i := range row.broken {
						want[i] = "check_failed"
					}
					setErrors(ids[row.broken:], nil)
					requireReasons(t, "after the fault", w.statusesAfter(15*time.Second), want...)
					if events := s.takeEvents(); len(events) != row.broken {
						t.Errorf("got events %+v, want %d", events, row.broken)
					}
					if d := w.monitor.Driver(); d.State != device.DriverUp {
						t.Errorf("driver after the fault: got %+v, want up", d)
					}
					setErrors(ids, nil)
					requireReasons(t, "at the end", w.statusesAfter(time.Minute), make([]string, row.gpus)...)
				}
			})
		})
	}
}

// TestDriverFaultWithHang lets a GPU hang and the checks of all others fail.
// The hang is evidence for neither verdict.
func TestDriverFaultWithHang(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m, s := newMachine(3), monitorRecorder{}
		w := startMonitor(t, m, nil, s.attach)
		defer w.stop()
		w.statusesAfter(time.Second)
		m.HangGPU(m.AllocatableIDs()[0])
		m.SetCheckError(m.AllocatableIDs()[1], errUnknown)
		m.SetCheckError(m.AllocatableIDs()[2], errUnknown)
		requireReasons(t, "soon", w.statusesAfter(15*time.Second), "", "driver", "driver")
		requireReasons(t, "later", w.statusesAfter(time.Minute), "not_responding", "driver", "driver")
	})
}

// TestListingsDuringDriverFault lets listings hang or find no driver, while
// calls fail. Once listings work again, the calls are the state.
func TestListingsDuringDriverFault(t *testing.T) {
	for _, row := range []struct {
		name string
		set  func(b *failingLister, on bool)
		want device.DriverState
	}{
		{"slow", func(b *failingLister, on bool) { b.slow.Store(on) }, device.DriverNotResponding},
		{"no driver", func(b *failingLister, on bool) {
			b.fail(nil)
			if on {
				b.fail(device.ErrNoDriver)
			}
		}, device.DriverAbsent},
	} {
		t.Run(row.name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				m := newMachine(2)
				b := &failingLister{Backend: m}
				w := startMonitor(t, m, func(device.Backend) device.Backend { return b })
				defer w.stop()
				state := func(when string, after time.Duration, want device.DriverState) {
					t.Helper()
					w.statusesAfter(after)
					d := w.monitor.Driver()
					isNamed := d.Err != nil && strings.Contains(d.Err.Error(), "calls to all GPUs fail")
					if d.State != want || want == device.DriverFailing && !isNamed {
						t.Errorf("%s: got %+v, want state %v", when, d, want)
					}
				}
				setErrors := func(err error) {
					for _, id := range m.AllocatableIDs() {
						m.SetCheckError(id, err)
						if err != nil {
							m.SetCheckError(id, fmt.Errorf("call about %s: %w", id, err))
						}
					}
				}
				state("at first", 20*time.Second, device.DriverUp)
				setErrors(errUnknown)
				state("calls fail", 19*time.Second, device.DriverFailing)
				row.set(b, true)
				for range 200 {
					if w.statusesAfter(100 * time.Millisecond); w.monitor.Driver().State == row.want {
						break
					}
				}
				state("listings as well", 0, row.want)
				row.set(b, false)
				state("only calls", time.Minute, device.DriverFailing)
				lines := w.log.count("driver")
				state("only calls, later", time.Hour, device.DriverFailing)
				if n := w.log.count("driver"); n != lines {
					t.Errorf("log lines in an hour: got %d, want none", n-lines)
				}
				setErrors(nil)
				state("afterwards", 15*time.Second, device.DriverUp)
			})
		})
	}
}

// TestRestartForDriver lets the driver fail for long. Run ends, with growing
// pauses across processes, until the driver has worked for a while.
func TestRestartForDriver(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m, s := newMachine(2), monitorRecorder{}
		b := &failingLister{Backend: m, both: true}
		run := func(lasts time.Duration, during func()) (ended time.Duration) {
			t.Helper()
			var inventory device.Inventory
			readers := device.NewReaders(b)
			f := &monitorFixture{}
			s.attach(f)
			f.options.Log, f.options.History, f.options.RestartAfter = slog.New(slog.DiscardHandler), s.savedHistory(),
				time.Minute
			monitor := device.NewMonitor(b, readers, &inventory, f.options)
			ctx, cancel := context.WithTimeout(t.Context(), lasts)
			defer cancel()
			began, done := time.Now(), make(chan error, 1)
			go func() { done <- monitor.Run(ctx) }()
			during()
			err := <-done
			if (err == nil) != (ctx.Err() != nil) || err != nil && !errors.Is(err, device.ErrRestart) {
				t.Errorf("Run: got %v, want ErrRestart before the end of the context", err)
			}
			ended = time.Since(began)
			cancel()
			monitor.Drain(context.Background())
			readers.Drain(context.Background())
			synctest.Wait()
			return ended
		}
		nothing := func() {}
		if got := run(3*time.Hour, func() { b.fail(errUnknown) }); got < 3*time.Hour {
			t.Errorf("driver that never listed a device: restart after %s, want none", got)
		}
		b.fail(nil)
		if got := run(2*time.Hour, func() {
			time.Sleep(time.Hour)
			b.fail(errUnknown)
		}); got.Round(5*time.Second) != time.Hour+time.Minute {
			t.Errorf("first restart: got it after %s, want a minute of failures", got-time.Hour)
		}
		for i, want := range []time.Duration{2, 4, 8, 16, 32, 60, 60} {
			if got := run(2*time.Hour, nothing); got.Round(5*time.Second) != want*time.Minute {
				t.Errorf("restart %d: got it after %s, want %d minutes", i+2, got, want)
			}
		}
		working := func(d time.Duration) func() {
			return func() {
				b.fail(nil)
				time.Sleep(d)
				b.fail(errUnknown)
			}
		}
		if got := run(2*time.Hour, working(5*time.Minute)); got < time.Hour {
			t.Errorf("after five minutes of work: restart after %s, want an hour", got)
		}
		if got := run(2*time.Hour, working(15*time.Minute)); got.Round(20*time.Second) != 16*time.Minute {
			t.Errorf("after fifteen minutes of work: restart after %s, want a minute", got-15*time.Minute)
		}
		b.fail(device.ErrNoDriver)
		if got := run(3*time.Hour, nothing); got < 3*time.Hour {
			t.Errorf("no driver: restart after %s, want none", got)
		}
	})
}

// TestNoRestartForDriver has failures that a new process would not end, and a
// store that cannot keep the number of restarts.
func TestNoRestartForDriver(t *testing.T) {
	fails := func(b *failingLister, _ *monitorFixture) { b.both = true; b.fail(errUnknown) }
	lists := func(b *failingLister, _ *monitorFixture) { b.fail(errUnknown) }
	checks := func(errs ...error) func(*failingLister, *monitorFixture) {
		return func(_ *failingLister, w *monitorFixture) {
			for i, err := range errs {
				w.SetCheckError(w.AllocatableIDs()[i], err)
			}
		}
	}
	enabled := func(*monitorFixture) {}
	for name, row := range map[string]struct {
		options func(*monitorFixture)
		fail    func(*failingLister, *monitorFixture)
	}{
		"disabled": {func(w *monitorFixture) { w.options.RestartAfter = 0 }, fails},
		"a hang":   {enabled, func(_ *failingLister, w *monitorFixture) { w.HangAll() }},
		"no driver": {enabled, func(b *failingLister,
			_ *monitorFixture,
		) {
			b.both = true
			b.fail(device.ErrNoDriver)
		}},
		"one GPU":                    {enabled, checks(errUnknown)},
		"all GPUs lost":              {enabled, checks(device.ErrLost, device.ErrLost)},
		"only listings":              {enabled, lists},
		"a disk that cannot be used": {func(w *monitorFixture) { (&monitorRecorder{fails: true}).attach(w) }, fails},
		"a release": {enabled, func(b *failingLister, w *monitorFixture) {
			fails(b, w)
			if err := withTimeout(10*time.Second, w.monitor.Release); err != nil {
				panic(err)
			}
		}},
		"short faults": {enabled, func(b *failingLister, w *monitorFixture) {
			b.both = true
			for range 30 {
				b.fail(errUnknown)
				w.statusesAfter(50 * time.Second)
				b.fail(nil)
				w.statusesAfter(20 * time.Second)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				m := newMachine(2)
				b := &failingLister{Backend: m}
				w := startMonitor(t, m, func(device.Backend) device.Backend { return b },
					func(w *monitorFixture) { w.options.RestartAfter = time.Minute }, row.options)
				defer w.stop() // reports an error of Run
				w.statusesAfter(time.Minute)
				row.fail(b, w)
				w.statusesAfter(3 * time.Hour)
			})
		})
	}
}
