package health_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/health"
	"github.com/podgauge/podgauge/internal/pubsub"
	"github.com/podgauge/podgauge/internal/sim"
	"github.com/podgauge/podgauge/test/bubble"
	"github.com/podgauge/podgauge/test/helpers/expect"
	"github.com/podgauge/podgauge/test/helpers/require"
	"github.com/podgauge/podgauge/test/helpers/testfile"
)

// scenario is a script for the Monitor of a simulated node. A line, or a part
// before a semicolon, is a pause, an action, or what an operator sees:
//
//	fail d1 xid 79      a fault of device d1, the second allocatable device
//	5s                  pause
//	5s: - xid_79 gone   the reasons of all devices after 5 s; -: healthy, none: nothing published
//	events xid_79!:g1   the events since the last such line, see events
//
// g1 is a GPU, and d1 an allocatable device of the newest layout. The Monitor
// starts before the script, unless the script starts it after its set-up.
type scenario struct {
	name   string
	gpus   int
	script string
}

// runScenarioFile runs the scenarios of testdata/scenarios/NAME.txt. Their
// titles are the number of GPUs and the name.
func runScenarioFile(t *testing.T, name string) {
	t.Helper()
	var rows []scenario
	for _, s := range testfile.Sections(t, "testdata/scenarios/"+name+".txt") {
		gpus, name, _ := strings.Cut(s.Title, " ")
		n, err := strconv.Atoi(gpus)
		require.NoError(t, err)
		rows = append(rows, scenario{name, n, s.Text})
	}
	runScenarios(t, rows)
}

func runScenarios(t *testing.T, rows []scenario) {
	for _, row := range rows {
		bubble.Run(t, row.name, func(t *testing.T) {
			s := newScenarioRun(t, row.gpus)
			beforeStop, _, _ := strings.Cut(row.script, "stop")
			defer func() { s.end() }()
			if !regexp.MustCompile(`\bstart\b`).MatchString(beforeStop) {
				s.start()
			}
			s.script(row.script)
		})
	}
}

// inScenario runs a test of a node in a bubble.
func inScenario(t *testing.T, gpus int, test func(t *testing.T, s *scenarioRun)) {
	bubble.Test(t, func(t *testing.T) {
		s := newScenarioRun(t, gpus)
		defer func() { s.end() }()
		test(t, s)
	})
}

// scenarioRun is a running scenario.
type scenarioRun struct {
	*testing.T
	*monitorFixture
	backend   *scriptedBackend
	recorder  *monitorRecorder
	line      string
	ids       []device.ID // allocatable, of the last layout
	mu        sync.Mutex
	policy    device.XidPolicy   // guarded by mu
	expected  int                // guarded by mu
	allocated device.ID          // guarded by mu
	retired   device.Retirements // guarded by mu
	previous  health.History     // of the next process
	released  chan error         // the result of a release in the background
	begin     time.Time

	unhealthyAfter, restartAfter time.Duration
}

// script runs a script.
func (s *scenarioRun) script(script string) {
	s.Helper()
	for line := range strings.FieldsFuncSeq(script, func(r rune) bool { return r == '\n' || r == ';' }) {
		if s.line = strings.TrimSpace(line); s.line != "" {
			s.run(strings.Fields(line))
		}
	}
}

func newScenarioRun(t *testing.T, gpus int) *scenarioRun {
	m := newMachine(gpus)
	m.SetXidClassifier(func(xid uint64) (e device.Event, alone bool) {
		switch xid {
		case 145:
			return device.Event{
				Class: "undecided", Recovery: device.RecoveryChecksPass, Severity: device.SeverityUndecided,
			}, false
		case 154:
			return device.Event{Class: "asks", Recovery: device.RecoveryChecksPass}, false
		}
		return sim.DefaultXidEvent(xid)
	})
	s := &scenarioRun{
		T: t, backend: &scriptedBackend{Machine: m}, recorder: &monitorRecorder{}, ids: m.AllocatableIDs(),
		released: make(chan error, 1), begin: time.Now(), retired: device.Retirements{},
	}
	s.monitorFixture = &monitorFixture{Machine: m, stop: func() {}}
	return s
}

// start starts a process with the saved history.
func (s *scenarioRun) start() {
	s.monitorFixture = startMonitor(s.T, s.Machine, func(device.Backend) device.Backend { return s.backend },
		s.recorder.attach, func(f *monitorFixture) {
			f.options.History = s.previous
			f.options.UnhealthyTimeout, f.options.RestartAfter = s.unhealthyAfter, s.restartAfter
			f.options.OnHealthEvent = func(e device.HealthEvent) { s.record(f, e) }
			f.options.IsAllocated = func(id device.ID) bool { return id == locked(s, &s.allocated) }
			f.options.ExpectedGPUs = func() int { return locked(s, &s.expected) }
			f.options.Retired = func() device.Retirements { return locked(s, &s.retired) }
			f.options.Policy = func(uint64) device.XidPolicy { return locked(s, &s.policy) }
		})
}

// locked returns the value of a field that the Monitor reads.
func locked[T any](s *scenarioRun, field *T) T {
	s.mu.Lock()
	defer s.mu.Unlock()
	return *field
}

// set sets a field that the Monitor reads.
func set[T any](s *scenarioRun, field *T, value T) {
	s.mu.Lock()
	defer s.mu.Unlock()
	*field = value
}

// record records an event, which precedes its result in the Inventory.
func (s *scenarioRun) record(f *monitorFixture, e device.HealthEvent) {
	statuses, _ := f.inventory.Get()
	isResult := func(d device.Status) bool { return d.GPU == e.GPU && d.Reason == e.Reason && d.Since.Equal(e.At) }
	if e.MarkedUnhealthy && slices.ContainsFunc(statuses, isResult) {
		s.Errorf("the result of %+v was published before the event", e)
	}
	s.recorder.record(e)
}

// end ends the process.
func (s *scenarioRun) end() {
	s.stop()
	s.stop = func() {}
	s.previous = s.recorder.savedHistory()
	if s.ClosedDuringCall() {
		s.Error("the driver was closed during a call")
	}
}

// run runs a line.
func (s *scenarioRun) run(words []string) {
	s.Helper()
	first, args := words[0], words[1:]
	if pause, err := time.ParseDuration(strings.TrimSuffix(first, ":")); err == nil {
		time.Sleep(pause)
		synctest.Wait()
		if strings.HasSuffix(first, ":") {
			s.wantReasons(args)
		}
		return
	}
	if args == nil {
		args = []string{}
	}
	if want := s.expectations()[first]; want != nil {
		synctest.Wait()
		expect.Equal(s.T, want(args), strings.Join(args, " "), s.line)
		return
	}
	action := s.actions()[first]
	if action == nil {
		s.Fatalf("%s: no such action", s.line)
	}
	action(args)
	synctest.Wait()
}

func (s *scenarioRun) wantReasons(want []string) {
	s.Helper()
	statuses, _ := s.inventory.Get()
	got := []string{}
	for _, reason := range reasons(statuses) {
		got = append(got, cmp.Or(reason, "-"))
	}
	if statuses == nil {
		got = []string{"none"}
	}
	if !slices.Equal(got, want) {
		s.Errorf("%s: got %s", s.line, strings.Join(got, " "))
	}
}

// expectations returns what is seen, by the first word of a line.
func (s *scenarioRun) expectations() map[string]func(args []string) string {
	each := func(text func(device.Status) string) func([]string) string {
		return func([]string) string {
			statuses, _ := s.inventory.Get()
			var got []string
			for _, status := range statuses {
				got = append(got, cmp.Or(text(status), "-"))
			}
			return strings.Join(got, " ")
		}
	}
	return map[string]func(args []string) string{
		"action": each(func(d device.Status) string { return d.Action }),
		"health": each(func(d device.Status) string { return d.Health.String() }),
		"flaps":  each(func(d device.Status) string { return strconv.FormatUint(d.Flaps, 10) }),
		"note":   each(func(d device.Status) string { return d.Note }),
		"behind": each(func(d device.Status) string { // the fault behind a retirement
			text := d.MaskedFault.Reason
			if d.MaskedFault.Present {
				text += "!" + d.MaskedFault.Action
			}
			return text
		}),
		"profile": each(func(d device.Status) string { return d.Profile }),
		"gone": each(func(d device.Status) string {
			return map[bool]string{true: "gone"}[d.Gone]
		}),
		"xids": each(func(d device.Status) string { // code:count of each
			var all []string
			for _, x := range d.Xids {
				all = append(all, fmt.Sprintf("%d:%d", x.Code, x.Count))
			}
			return strings.Join(all, ",")
		}),
		"driver": func([]string) string {
			names := [...]string{"starting", "up", "failing", "absent", "not responding", "replaced", "released"}
			return names[s.monitor.Driver().State]
		},
		"missing": func([]string) string {
			var got []string
			for _, d := range s.monitor.Missing() {
				got = append(got, fmt.Sprintf("g%d", slices.Index(s.GPUs(), d.GPU)))
			}
			return strings.Join(got, " ")
		},
		"events": func([]string) string { return strings.Join(s.events(), " ") },
		// The records with a reason, by the number of the GPU.
		"records": func([]string) string { return strings.Join(s.records(), " ") },
		// log TIMES MESSAGE
		"log": func(args []string) string {
			message := strings.Join(args[1:], " ")
			return fmt.Sprint(s.logged(message), " ", message)
		},
		// path DURATION: the states of the first device.
		"path": func(args []string) string { return args[0] + " " + s.healthPath(s.duration(args)) },
		// first WITHIN: the reasons of the first publication
		"first": func(args []string) string {
			within, begin := s.duration(args), time.Now()
			for s.statusesAfter(0) == nil && time.Since(begin) < time.Minute {
				time.Sleep(50 * time.Millisecond)
			}
			if time.Since(begin) > within {
				return time.Since(begin).String()
			}
			return args[0] + " " + each(func(d device.Status) string { return d.Reason })(nil)
		},
		// quiet DURATION: nothing is published
		"quiet": func(args []string) string {
			_, changed := s.inventory.Get()
			s.script(args[0])
			return map[bool]string{false: args[0], true: "a publication"}[pubsub.IsClosed(changed)]
		},
		// severe: when the last severe Xid of the first device came, after the start
		"severe": func([]string) string {
			statuses, _ := s.inventory.Get()
			if at := statuses[0].Xids[0].LastSevere(); !at.IsZero() {
				return at.Sub(s.begin).Truncate(time.Second).String()
			}
			return "never"
		},
		"over": func([]string) string { // whether the Xids of the first device are
			statuses, _ := s.inventory.Get()
			return fmt.Sprint(!statuses[0].Xids[0].Last.After(statuses[0].XidsOverAt))
		},
		"since": func([]string) string { // how long the first device has its reason
			statuses, _ := s.inventory.Get()
			return time.Since(statuses[0].Since).Round(time.Second).String()
		},
		// links NUMBER READINGS
		"links":       func([]string) string { return fmt.Sprint(len(s.monitor.Links()), " ", s.LinkReads()) },
		"ready":       func([]string) string { return fmt.Sprint(s.monitor.Ready() == nil) },
		"alive":       func([]string) string { return fmt.Sprint(s.monitor.Alive() == nil) },
		"interrupted": func([]string) string { return fmt.Sprint(s.monitor.EventsInterrupted()) },
		"closed":      func([]string) string { return fmt.Sprint(s.Closed()) },
		"saves":       func([]string) string { return fmt.Sprint(s.recorder.saves, " ", s.recorder.urgentSaves) },
		"lost":        func([]string) string { return fmt.Sprint(s.recorder.savedHistory().Lost) },
		"read": func([]string) string {
			r := s.readers.Read(s.Context(), s.GPUs(), true)[0]
			return fmt.Sprint(r.Err)
		},
	}
}

// events returns the events since the last call: the reason, "!" if the event
// marked the devices unhealthy, "?" if it was before the start, the class, the
// source, and the affected devices.
func (s *scenarioRun) events() (got []string) {
	for _, e := range s.recorder.takeEvents() {
		text := e.Reason
		if e.MarkedUnhealthy {
			text += "!"
		}
		if e.Historical {
			text += "?"
		}
		if e.Class != "" {
			text += "/" + e.Class
		}
		if e.Source != "" {
			text += "@" + e.Source
		}
		var names []string
		for _, d := range e.Affected {
			name := fmt.Sprint("d", slices.Index(s.ids, d.ID))
			if d.WholeGPU() {
				name = fmt.Sprint("g", slices.Index(s.GPUs(), d.GPU))
			}
			names = append(names, name)
		}
		text += ":" + strings.Join(names, ",")
		got = append(got, text)
	}
	return got
}

func (s *scenarioRun) records() (got []string) {
	for _, r := range s.recorder.savedHistory().Records {
		text := cmp.Or(r.Reason, "-")
		if r.ResetSeen {
			text += "+reset"
		}
		if r.FailedResets.Count > 0 {
			text += fmt.Sprintf("+failed%d", r.FailedResets.Count)
		}
		if r.Retired != nil {
			text += "+retired" + strings.Repeat("ByList", min(1, len(r.Retired.ListedAs)))
		}
		for _, x := range r.Xids {
			if !x.LastHistorical.IsZero() {
				text += "+historical"
			}
		}
		if r.Device != "" {
			text = "mig:" + text
		}
		got = append(got, text)
	}
	return got
}

// actions returns the actions, by the first word of a line.
func (s *scenarioRun) actions() map[string]func(args []string) {
	on := func(act func(device.ID)) func([]string) { return func(args []string) { act(s.id(args[0])) } }
	request := func(args []string, err error) { s.wantError(strings.Join(args, " "), err) }
	withTimeout := func(call func(context.Context) error) func([]string) {
		return func(args []string) {
			ctx, cancel := context.WithTimeout(s.Context(), 10*time.Second)
			defer cancel()
			request(args, call(ctx))
		}
	}
	return map[string]func(args []string){
		"start":           func([]string) { s.start() },
		"stop":            func([]string) { s.end() },
		"lose":            func([]string) { s.previous.Lost = true }, // the history
		"booted":          func([]string) { s.previous.Rebooted = true },
		"unhealthy-after": func(args []string) { s.unhealthyAfter = s.duration(args) },
		"restart-after":   func(args []string) { s.restartAfter = s.duration(args) },
		"disk": func(args []string) { // usable or not
			s.recorder.mu.Lock()
			defer s.recorder.mu.Unlock()
			s.recorder.unusable = args[0] == "unusable"
		},
		"restart": func([]string) {
			s.end()
			s.start()
		},
		"reboot": func([]string) {
			s.end()
			s.previous.Rebooted = true
			s.start()
		},
		"age": func(args []string) { // DURATION: the GPUs of the history are gone for longer
			for i := range s.previous.Records {
				if r := &s.previous.Records[i]; !r.GoneSince.IsZero() {
					r.GoneSince = r.GoneSince.Add(-s.duration(args))
				}
			}
		},
		"suspect": func([]string) { // waits until the first device is
			for n := 0; n < 1000 && s.statusesAfter(10 * time.Millisecond)[0].Health != device.Suspect; n++ {
			}
		},
		"fail":    func(args []string) { s.Machine.Fail(s.id(args[0]), strings.Join(args[1:], " ")) },
		"reset":   on(s.ResetGPU),
		"repair":  on(s.SetRepairPending), // is pending
		"hang":    on(s.HangGPU),
		"hangall": func([]string) { s.HangAll() },
		"respond": func([]string) { s.ReleaseHangs() },
		"remove":  on(s.RemoveGPU),
		"hide":    on(func(id device.ID) { s.backend.locked(func() { s.backend.hidden = id }) }),
		"show":    func([]string) { s.backend.locked(func() { s.backend.hidden = "" }) },
		"add":     func([]string) { s.AddGPU(); s.ids = s.AllocatableIDs() },
		"partition": func(args []string) {
			profiles := slices.Clone(args[1:])
			for i := range profiles {
				profiles[i] = strings.Trim(profiles[i], "-") // "-": removed
			}
			s.Partition(device.GPU(s.id(args[0])), profiles...)
			s.ids = s.AllocatableIDs()
		},
		"unpartition": func(args []string) { s.Unpartition(device.GPU(s.id(args[0]))) },
		"check": func(args []string) { // DEVICE, or all GPUs, and what their checks return
			for i, id := range s.ids {
				if args[0] == "all" || id == s.id(args[0]) {
					s.SetCheckError(s.ids[i], s.checkError(args[1:]))
				}
			}
		},
		"lists":     func(args []string) { s.backend.locked(func() { s.backend.listErr = s.checkError(args) }) },
		"slow":      func(args []string) { s.backend.locked(func() { s.backend.slow = s.duration(args) }) }, // listings
		"waits":     func(args []string) { s.backend.locked(func() { s.backend.waitErr = s.checkError(args) }) },
		"holdwait":  func([]string) { s.backend.locked(func() { s.backend.waitHangs = true }) },
		"holdclose": func([]string) { s.backend.locked(func() { s.backend.closeHangs = true }) },
		"go": func([]string) {
			s.backend.locked(func() { s.backend.waitHangs, s.backend.closeHangs = false, false })
		},
		"no-counter": on(func(id device.ID) { s.backend.locked(func() { s.backend.noCounter = device.GPU(id) }) }),
		"blind":      func(args []string) { s.backend.locked(func() { s.backend.blind = args[0] == "true" }) },
		"flaky":      on(func(id device.ID) { s.backend.locked(func() { s.backend.flaky = device.GPU(id) }) }),
		"until": func(args []string) { // the state of the driver
			for range 200 {
				if s.expectations()["driver"](nil) == strings.Join(args, " ") {
					return
				}
				s.script("100ms")
			}
			s.Errorf("%s: got driver %+v", s.line, s.monitor.Driver())
		},
		"unload":   func([]string) { s.SetDriverError(errors.New("libnvidia-ml.so.1 not found")) },
		"load":     func([]string) { s.SetDriverError(nil) },
		"allocate": on(func(id device.ID) { set(s, &s.allocated, id) }),
		"free":     func([]string) { set(s, &s.allocated, "") },
		"expect": func(args []string) {
			n, _ := strconv.Atoi(args[0])
			set(s, &s.expected, n)
		},
		"policy": func(args []string) {
			policies := map[string]device.Policy{
				"ignore": device.PolicyIgnore, "warn": device.PolicyWarn, "unhealthy": device.PolicyUnhealthy,
			}
			policy := device.XidPolicy{Policy: policies[args[0]]}
			if len(args) > 1 { // unhealthy 3 10m BELOW
				policy.Count, _ = strconv.Atoi(args[1])
				policy.Window, _ = time.ParseDuration(args[2])
				policy.Below = policies[args[3]]
			}
			set(s, &s.policy, policy)
		},
		"kernel":  s.reportKernelXid,
		"retire":  func(args []string) { request(args[2:], s.monitor.Retire(s.Context(), s.id(args[0]), args[1])) },
		"list":    s.list,
		"trust":   s.trust,
		"forget":  func(args []string) { request(args[1:], s.monitor.Forget(s.Context(), s.id(args[0]))) },
		"release": withTimeout(func(ctx context.Context) error { return s.monitor.Release(ctx) }),
		"resume":  withTimeout(func(ctx context.Context) error { return s.monitor.Resume(ctx) }),
		"begin-release": func([]string) { // with a deadline of 10 s
			go func() {
				ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
				defer cancel()
				s.released <- s.monitor.Release(ctx)
			}()
		},
		"end-release": func(args []string) { request(args, <-s.released) },
	}
}

// reportKernelXid reports an Xid of the kernel log: DEVICE XID [nonfatal | historical].
func (s *scenarioRun) reportKernelXid(args []string) {
	id := s.id(args[0])
	xid, err := strconv.ParseUint(args[1], 10, 64)
	require.NoError(s.T, err)
	e, _ := sim.DefaultXidEvent(xid)
	e.GPU, e.Xid, e.Source = device.GPU(id), xid, "kmsg"
	if !slices.Contains(s.GPUs(), e.GPU) && strings.HasPrefix(args[0], "d") { // a MIG device of the first GPU
		e.GPU, e.Device = s.GPUs()[0], id
	}
	at := time.Now()
	switch strings.Join(args[2:], " ") {
	case "nonfatal":
		e.Severity, e.Recovery = device.SeverityNonfatal, device.RecoveryNone
	case "historical":
		e.Historical, e.Recovery = true, device.RecoveryChecksPass
		at = at.Add(-5 * time.Minute)
	}
	expect.NoError(s.T, s.monitor.Report(s.Context(), e, 1, at))
}

// list replaces the list of retired devices: NAME=NOTE[@AGE]..., unknown or
// empty. NAME may be the serial number of a GPU: s1.
func (s *scenarioRun) list(args []string) {
	if args[0] == "unknown" {
		set(s, &s.retired, nil)
		return
	}
	list := device.Retirements{}
	for _, arg := range slices.DeleteFunc(args, func(arg string) bool { return arg == "empty" }) {
		name, note, _ := strings.Cut(arg, "=")
		note, age, dated := strings.Cut(note, "@")
		key := string(s.id(strings.Replace(name, "s", "g", 1)))
		if strings.HasPrefix(name, "s") {
			key = "16500" + fmt.Sprintf("%05s", name[1:])
		}
		key = strings.ToLower(key)
		r := device.Retirement{Note: note, ListedAs: key}
		if dated {
			r.At = s.begin.Add(-s.duration([]string{age}))
		}
		list[key] = r
	}
	set(s, &s.retired, list)
}

// trust trusts a device: DEVICE [retired] [repair] [the text of the error].
func (s *scenarioRun) trust(args []string) {
	trusted, err := s.monitor.Trust(s.Context(), s.id(args[0]))
	err = errors.Join(err, trusted.Err)
	want := strings.Join(args[1:], " ")
	for word, got := range map[string]bool{"retired": trusted.Retired, "repair": trusted.RepairPending} {
		if got != slices.Contains(args, word) {
			s.Errorf("%s: got %+v", s.line, trusted)
		}
		want = strings.TrimSpace(strings.Replace(want, word, "", 1))
	}
	s.wantError(want, err)
}

// wantError requires an error with a text; empty: none.
func (s *scenarioRun) wantError(text string, err error) {
	if (err == nil) != (text == "") || err != nil && !strings.Contains(err.Error(), text) {
		s.Errorf("%s: got error %v", s.line, err)
	}
}

// duration returns the duration of a line.
func (s *scenarioRun) duration(args []string) time.Duration {
	d, err := time.ParseDuration(args[0])
	require.NoError(s.T, err)
	return d
}

// id returns the device of a name: g1 or d1.
func (s *scenarioRun) id(name string) device.ID {
	n, err := strconv.Atoi(name[1:])
	switch {
	case err != nil:
		return device.ID(name)
	case name[0] == 'g':
		return device.ID(s.GPUs()[n])
	}
	return s.ids[n]
}

// checkError returns the error of a check or of a listing.
func (s *scenarioRun) checkError(words []string) error {
	switch words[0] {
	case "ok":
		return nil
	case "unknown":
		return fmt.Errorf("call: %w", errUnknown)
	case "timeout":
		return errors.New("TIMEOUT")
	case "lost":
		return device.ErrLost
	case "stalled":
		return device.ErrStalled
	case "driver-fault":
		return fmt.Errorf("nvmlDeviceGetFieldValues: %w", device.ErrDriverFault)
	case "no-driver":
		return device.ErrNoDriver
	case "replaced":
		return fmt.Errorf("%w: %w", device.ErrNoDriver, device.ErrDriverReplaced)
	}
	f := &device.Fault{Reason: words[0]}
	for _, word := range words[1:] {
		switch word {
		case "lasts":
			f.NeedsReset = true
		case "external":
			f.External = true
		default:
			f.Action = word
		}
	}
	return f
}
