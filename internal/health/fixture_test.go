package health_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/health"
	"github.com/podgauge/podgauge/internal/sim"
	"github.com/podgauge/podgauge/test/helpers/background"
	"github.com/podgauge/podgauge/test/helpers/expect"
	"github.com/podgauge/podgauge/test/helpers/testlog"
)

// monitorFixture is a running Monitor of a simulated machine.
type monitorFixture struct {
	*sim.Machine
	inventory device.Inventory
	options   health.Options
	monitor   *health.Monitor
	readers   *health.Readers
	log       testlog.Buffer
	stop      func()
}

// logged returns the number of messages, but those for debugging, with a prefix, with or without level.
func (f *monitorFixture) logged(prefix string) int {
	if text, isWarning := strings.CutPrefix(prefix, "WARN "); isWarning {
		return f.log.Count(`level=WARN msg="` + text)
	}
	return f.log.Count(`msg="` + prefix)
}

// startMonitor runs a Monitor in the test's bubble. wrap may replace the
// Backend, and options set the Monitor's options.
func startMonitor(t *testing.T, m *sim.Machine, wrap func(device.Backend) device.Backend,
	options ...func(*monitorFixture),
) *monitorFixture {
	t.Helper()
	var b device.Backend = m
	if wrap != nil {
		b = wrap(m)
	}
	m.BeginProcess()
	w := &monitorFixture{Machine: m, readers: health.NewReaders(b)}
	w.options.Log = slog.New(slog.NewTextHandler(&w.log, nil))
	for _, set := range options {
		set(w)
	}
	w.monitor = health.NewMonitor(b, w.readers, &w.inventory, w.options)
	end := background.Run(t, w.monitor.Run)
	w.stop = func() {
		end()
		m.ReleaseHangs()
		if !w.monitor.Drain(context.Background()) || !w.readers.Drain(context.Background()) {
			t.Error("Drain: got false, want no running calls")
		}
	}
	return w
}

// statusesAfter waits for d and returns the statuses of the Inventory.
func (f *monitorFixture) statusesAfter(d time.Duration) []device.Status {
	time.Sleep(d)
	synctest.Wait()
	statuses, _ := f.inventory.Get()
	return statuses
}

// reasons returns the reason of each device, "" if healthy.
func reasons(statuses []device.Status) []string {
	list := []string{}
	for _, s := range statuses {
		if s.Healthy != (s.Reason == "") {
			list = append(list, "Healthy and Reason disagree")
			continue
		}
		list = append(list, s.Reason)
	}
	return list
}

func newMachine(n int) *sim.Machine {
	return sim.NewMachine([]device.Metric{{Name: "nvidia_gpu_power_watts"}}, n, time.Now)
}

func requireReasons(t *testing.T, when string, statuses []device.Status, reason ...string) {
	t.Helper()
	expect.EqualSlices(t, reasons(statuses), reason, "reasons", when)
}

// monitorRecorder records the events and the saved history of a Monitor.
type monitorRecorder struct {
	mu sync.Mutex
	// All below are guarded by mu.
	events             []device.HealthEvent
	saved              health.History
	saves, urgentSaves int
	unusable           bool // the disk
}

func (s *monitorRecorder) attach(w *monitorFixture) {
	w.options.OnHealthEvent, w.options.Store = s.record, s
}

func (s *monitorRecorder) record(e device.HealthEvent) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events = append(s.events, e)
}

func (s *monitorRecorder) SaveHealth(h health.History, urgent bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.saved, s.saves = h, s.saves+1; urgent {
		s.urgentSaves++
	}
}

func (s *monitorRecorder) Stored() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.unusable
}

// takeEvents returns the events since the previous call.
func (s *monitorRecorder) takeEvents() []device.HealthEvent {
	s.mu.Lock()
	defer s.mu.Unlock()
	events := s.events
	s.events = nil
	return events
}

// savedHistory returns the saved history as the next process reads it.
func (s *monitorRecorder) savedHistory() health.History {
	s.mu.Lock()
	defer s.mu.Unlock()
	return reloaded(s.saved)
}

// reloaded returns a history from its JSON form.
func reloaded(saved health.History) (h health.History) {
	content, err := json.Marshal(saved)
	if err == nil {
		err = json.Unmarshal(content, &h)
	}
	if err != nil {
		panic(err)
	}
	return h
}

// healthPath returns the sequence of the first device's health states within d.
func (f *monitorFixture) healthPath(d time.Duration) string {
	const step = 50 * time.Millisecond
	var path []string
	for end := time.Now().Add(d); time.Now().Before(end); {
		statuses := f.statusesAfter(step)
		is := "nothing"
		if len(statuses) > 0 {
			is = statuses[0].Health.String()
		}
		if len(path) == 0 || path[len(path)-1] != is {
			path = append(path, is)
		}
	}
	return strings.Join(path, " ")
}

var errUnknown = errors.New("UNKNOWN")

// scriptedBackend is a machine whose calls can be made to fail.
type scriptedBackend struct {
	*sim.Machine
	mu sync.Mutex
	// All below are guarded by mu.
	listErr, waitErr      error
	slow                  time.Duration // of a listing, which returns the state at its start
	hidden                device.ID     // a device that listings lack
	waitHangs, closeHangs bool
	checkTime             time.Duration // of each GPU, one after another
	turn                  int           // of the checks
	noCounter             device.GPU    // has no energy counter, and reports no resets
	blind                 bool          // checks fail, without a count of resets
	flaky                 device.GPU    // each third check fails
	checks                int           // of flaky
}

func (b *scriptedBackend) locked(change func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	change()
}

func (b *scriptedBackend) Devices(ctx context.Context) ([]device.Device, error) {
	devices, err := b.Machine.Devices(ctx)
	var slow time.Duration
	b.locked(func() {
		slow = b.slow
		if b.listErr != nil {
			devices, err = nil, b.listErr
		}
		devices = slices.DeleteFunc(devices, func(d device.Device) bool { return d.ID == b.hidden })
	})
	time.Sleep(slow)
	return devices, err
}

func (b *scriptedBackend) Wait(ctx context.Context) (device.Event, error) {
	b.hangWhile(&b.waitHangs)
	var err error
	if b.locked(func() { err = b.waitErr }); err != nil {
		return device.Event{}, err
	}
	return b.Machine.Wait(ctx)
}

func (b *scriptedBackend) Close() {
	b.hangWhile(&b.closeHangs)
	b.Machine.Close()
}

// hangWhile returns when a flag is not set.
func (b *scriptedBackend) hangWhile(flag *bool) {
	for hangs := true; hangs; {
		if b.locked(func() { hangs = *flag }); hangs {
			time.Sleep(10 * time.Millisecond)
		}
	}
}

func (b *scriptedBackend) Check(gpu device.GPU) (device.ResetEvidence, error) {
	if b.checkTime > 0 { // set before the start
		var turn int
		b.locked(func() {
			b.turn++
			turn = b.turn
		})
		time.Sleep(time.Duration(turn%8) * b.checkTime)
	}
	v, err := b.Machine.Check(gpu)
	b.mu.Lock()
	defer b.mu.Unlock()
	if gpu == b.noCounter {
		v.Resets, v.EnergyCounter = 0, 0
	}
	if gpu == b.flaky {
		b.checks++
	}
	if b.blind || gpu == b.flaky && b.checks%3 == 0 {
		return device.ResetEvidence{}, errUnknown
	}
	return v, err
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
