package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	nvmltest "github.com/podgauge/podgauge/test/nvml"

	"github.com/podgauge/podgauge/test/e2e/node"
)

const (
	// answersWithin is how long a scrape may take, whatever hangs.
	answersWithin = 1500 * time.Millisecond
	// extraThreads is how many threads more a machine may cost whose calls hang: one a GPU, one that lists, one that waits, and
	// Go's own.
	extraThreads = gpus + 2 + gosThreads
	// hungIndex is the GPU that hangs, or holds the driver's lock.
	hungIndex = 5
	// hangAfter is the time after which a GPU whose calls hang is to be unhealthy, where it is not the usual 30 s.
	hangAfter = 20 * time.Second
	// meanwhile is a pod that comes in the middle of trouble.
	meanwhile = "meanwhile"
)

// TestHangs has calls to the driver hang, one GPU's, then everybody's, and then the library's start.
func TestHangs(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	n := node.ForTest(ctx, t, node.Options{})
	startKubelet(ctx, t, n)
	ageKubelet(t, n)
	t.Run("one GPU", func(t *testing.T) { oneHangs(ctx, t, n) })
	t.Run("the driver's lock", func(t *testing.T) { driverHangs(ctx, t, n) })
	t.Run("the library's start", func(t *testing.T) { initHangs(ctx, t, n) })
}

// hung is what was seen while something hung.
type hung struct {
	calm    int // threads before
	threads int // the most of them
	calls   int // that did not come back
	slowest time.Duration
	// How long Allocate, a list on a new stream and a new pod took.
	allocate, list, pod time.Duration
}

func (h hung) print(t *testing.T, while string) {
	t.Helper()
	figureOf(t, "slowest scrape while "+while, answersWithin, h.slowest)
	figureOf(t, "Allocate answered while "+while+", by podgauge_plugin_request_duration_seconds", 50*time.Millisecond, h.allocate)
	figureOf(t, "a new pod ran while "+while, 5*time.Second, h.pod)
	figureOf(t, "the list was on a new stream after podgauge's socket was deleted, while "+while, time.Second, h.list)
	figure(t, "calls that do not come back while "+while, fmt.Sprintf("%d; may be %d", h.calls, gpus+2))
	if h.calls > gpus+2 {
		t.Errorf("%d calls hang while %s", h.calls, while)
	}
	figure(t, "threads more than before while "+while, fmt.Sprintf("%d (of %d); may be %d", h.threads-h.calm, h.calm, extraThreads))
	if h.threads > h.calm+extraThreads {
		t.Errorf("%d threads while %s, %d before", h.threads, while, h.calm)
	}
}

// oneHangs hangs one GPU for as long as it takes until it is called unhealthy.
func oneHangs(ctx context.Context, t *testing.T, n *node.Node) {
	m := newMachine(t, n)
	d := m.start(t, n, "--web.enable-pprof")
	allocatable(ctx, t, n, uuids(gpus)...)
	calm := calmly(ctx, t, n, d)
	others := slices.DeleteFunc(uuids(gpus), func(id string) bool { return id == uuid(hungIndex) })
	defer m.clear(t, "hang")
	m.set(t, fmt.Sprintf("hang * gpu %d", hungIndex))
	hangs := time.Now()
	taken := takenAway(ctx, n, uuid(hungIndex), time.Minute)
	h := during(ctx, t, n, m, d, calm, func(s scrape) error {
		return errors.Join(s.is(0, "nvidia_gpu_up", labels{"uuid": uuid(hungIndex)}), s.is(1, "nvidia_gpu_stalled", labels{"uuid": uuid(hungIndex)}),
			gone(s, uuid(hungIndex)))
	})
	// A value that the others have only now has been read only now.
	m.set(t, "gpu * temperature 61")
	s := d.next(ctx, t)
	for _, id := range others {
		if err := s.is(61, "nvidia_gpu_temperature_celsius", labels{"uuid": id, "sensor": "gpu"}); err != nil {
			t.Error(err)
		}
	}
	tellsOfAnother(ctx, t, n, m, hangs)
	if took := <-taken; took == 0 {
		t.Error("the GPU whose calls hang stays among the kubelet's")
	} else {
		figureOf(t, "a GPU whose calls hang is taken from the kubelet's GPUs", 35*time.Second, took)
	}
	allocatable(ctx, t, n, others...)
	isCondemned(ctx, t, d, uuid(hungIndex))
	lasts(ctx, t, d, hangs, func(s scrape) error { return gone(s, uuid(hungIndex)) })
	allocatable(ctx, t, n, others...)
	h.threads = max(h.threads, threads(t, d))
	h.print(t, "one GPU's calls hang")
	m.clear(t, "hang")
	m.clear(t, "gpu * temperature")
	recovers(ctx, t, n, m, d, "one GPU's calls")
	isOver(ctx, t, d, uuid(hungIndex))
}

// isCondemned checks that podgauge tells of these GPUs, and of no others, that their calls have hung for too long. If anybody had one of them
// shortly before, it was the pod that came meanwhile.
func isCondemned(ctx context.Context, t *testing.T, d *daemon, ids ...string) {
	t.Helper()
	another := func(h hit) bool { return h.holder() != holder(holds(meanwhile, 1)) }
	for _, id := range ids {
		d.happened(ctx, t, id, "not_answering", func(i incident) error {
			if !i.Condemned || !i.Healed.IsZero() || slices.ContainsFunc(i.Holders, another) || i.Nameless || i.HoldersUnknown {
				return fmt.Errorf("told is %+v", i)
			}
			return nil
		})
		if s, err := d.standing(ctx, id); err != nil || s.Healthy || s.Health != "unhealthy" || s.Reason != "not_answering" {
			t.Errorf("a GPU whose calls hang is %+v, %v", s, err)
		}
	}
	if all, err := d.incidents(ctx, "reason", "not_answering"); err != nil || len(all) != len(ids) {
		t.Errorf("of calls that hang is told %+v, %v", all, err)
	}
}

// isOver waits until podgauge tells that it is over.
func isOver(ctx context.Context, t *testing.T, d *daemon, ids ...string) {
	t.Helper()
	for _, id := range ids {
		d.happened(ctx, t, id, "not_answering", func(i incident) error {
			if !i.Healed.After(i.Last) {
				return fmt.Errorf("told is %+v", i)
			}
			return nil
		})
	}
}

// lasts has a hang last for a minute, where the tests are in no hurry (make e2e-all).
func lasts(ctx context.Context, t *testing.T, d *daemon, hangs time.Time, stuck func(scrape) error) {
	t.Helper()
	if leniency() > 1 {
		return
	}
	watch := watchScrapes(ctx, t, d, 200*time.Millisecond, stuck)
	within(ctx, t, 2*time.Minute, "the hang has lasted for a minute", since(hangs, time.Minute))
	figure(t, "scrapes in the rest of a minute of a hang", fmt.Sprint(watch.stop(t)))
	figureOf(t, "the slowest of them", answersWithin, watch.longest)
}

// takenAway tells how long it takes from now until the kubelet would not give the GPU away any more; 0 where it does not come
// to that.
func takenAway(ctx context.Context, n *node.Node, id string, most time.Duration) <-chan time.Duration {
	begin, took := time.Now(), make(chan time.Duration, 1)
	ctx, cancel := context.WithTimeout(ctx, most)
	go func() {
		defer cancel()
		var last []string
		err := node.Until(ctx, "the GPU is not allocatable", func(ctx context.Context) (err error) {
			// None at all is a moment without a registration.
			if last, err = n.Allocatable(ctx, gpu); err != nil || len(last) == 0 || slices.Contains(last, id) {
				return fmt.Errorf("%q are: %w", last, err)
			}
			return nil
		})
		if err != nil {
			took <- 0
			return
		}
		took <- time.Since(begin)
	}()
	return took
}

// tellsOfAnother has a GPU fail while another hangs, and be reset. It comes so late that the listing that is made every 10 s hangs as well, and
// that 5 s later podgauge has noticed: that must not keep it from hearing of events.
func tellsOfAnother(ctx context.Context, t *testing.T, n *node.Node, m *machine, hangs time.Time) {
	t.Helper()
	const victim = 2
	await(ctx, t, "the hang has lasted for 16 s", since(hangs, 16*time.Second))
	begin := time.Now()
	m.event(t, victim, "xid 79")
	if took := <-takenAway(ctx, n, uuid(victim), 10*time.Second); took == 0 {
		t.Fatal("an Xid of another GPU is not told while one GPU's calls hang")
	}
	at, err := listArrived(n, begin)
	if err != nil {
		t.Fatal(err)
	}
	figureOf(t, "from Xid 79 of another GPU to Unhealthy on the stream while one GPU's calls hang", 100*time.Millisecond, at.Sub(begin))
	// A real reset takes seconds. One before the first check that follows the Xid could be from before the Xid, and is not evidence.
	await(ctx, t, "the GPU was checked after the Xid", since(begin, 2*time.Second))
	m.set(t, fmt.Sprintf("gpu %d energy 0", victim))
	await(ctx, t, "that GPU is healthy again", func(ctx context.Context) error {
		ids, err := n.Allocatable(ctx, gpu)
		if !slices.Contains(ids, uuid(victim)) {
			return fmt.Errorf("%q are: %w", ids, err)
		}
		return nil
	})
}

// driverHangs has one call hang while it holds the lock that real drivers have: no other call gets anywhere.
func driverHangs(ctx context.Context, t *testing.T, n *node.Node) {
	m := newMachine(t, n)
	d := m.start(t, n, "--web.enable-pprof", "--unhealthy-after="+hangAfter.String())
	allocatable(ctx, t, n, uuids(gpus)...)
	calm := calmly(ctx, t, n, d)
	defer m.clear(t, "lock")
	defer m.clear(t, "hang")
	m.set(t, "lock driver", fmt.Sprintf("hang * gpu %d", hungIndex))
	hangs := time.Now()
	stuck := func(s scrape) error {
		wrong := []error{}
		for _, id := range uuids(gpus) {
			wrong = append(wrong, s.is(1, "nvidia_gpu_stalled", labels{"uuid": id}), gone(s, id))
		}
		return errors.Join(wrong...)
	}
	h := during(ctx, t, n, m, d, calm, stuck)
	allocatable(ctx, t, n) // none is left
	took := time.Since(hangs)
	if took < hangAfter {
		t.Errorf("GPUs are taken away after %s", took)
	}
	figureOf(t, "the driver hangs, which may last for 20 s: all GPUs are taken from the kubelet after", hangAfter+5*time.Second, took)
	isCondemned(ctx, t, d, uuids(gpus)...)
	lasts(ctx, t, d, hangs, stuck)
	h.threads = max(h.threads, threads(t, d))
	h.print(t, "a call hangs that holds the driver's lock")
	m.clear(t, "hang")
	m.clear(t, "lock")
	recovers(ctx, t, n, m, d, "a call that holds the driver's lock")
	isOver(ctx, t, d, uuids(gpus)...)
}

// initHangs starts podgauge on a driver whose library does not get up.
func initHangs(ctx context.Context, t *testing.T, n *node.Node) {
	m := newMachine(t, n, "hang * gpu -")
	defer m.clear(t, "hang")
	d := m.start(t, n, "--web.enable-pprof")
	d.listening(ctx, t)
	watch := watchScrapes(ctx, t, d, 200*time.Millisecond, func(s scrape) error { return s.is(0, "podgauge_nvml_up", nil) })
	await(ctx, t, "podgauge says that the driver does not answer", func(context.Context) error {
		if lines := d.logged(t, "no devices from the driver", "does not return"); len(lines) != 1 {
			return fmt.Errorf("it says %q", lines)
		}
		return nil
	})
	if err := errors.Join(d.probe(ctx, "/healthz"), ready(ctx, d)); err != nil {
		t.Error(err)
	}
	most := threads(t, d)
	watch.stop(t)
	figureOf(t, "slowest scrape while the library's start hangs", answersWithin, watch.longest)
	figure(t, "threads while the library's start hangs", fmt.Sprint(most))
	m.clear(t, "hang")
	took := allocatable(ctx, t, n, uuids(gpus)...)
	figureOf(t, "all GPUs are allocatable after the end of a hanging start", 5*time.Second, took)
	if calm := calmly(ctx, t, n, d); most > calm+2+gosThreads {
		t.Errorf("%d threads while the start hung, %d after", most, calm)
	}
	m.asked(t)
}

// calmly is how many threads podgauge has when nothing hangs.
func calmly(ctx context.Context, t *testing.T, n *node.Node, d *daemon) int {
	t.Helper()
	return atRest(ctx, t, n, d).threads
}

// during puts podgauge to the test while something hangs: scrapes five times a second, a new pod, a new stream.
func during(ctx context.Context, t *testing.T, n *node.Node, m *machine, d *daemon, calm int, stuck func(scrape) error) hung {
	t.Helper()
	h := hung{calm: calm}
	watch := watchScrapes(ctx, t, d, 200*time.Millisecond, func(s scrape) error {
		if s.took > answersWithin*leniency() {
			return fmt.Errorf("it took %s", s.took)
		}
		return nil
	})
	d.scrapeUntil(ctx, t, "what hangs is said to", stuck)
	pod := holds(meanwhile, 1)
	before := d.next(ctx, t)
	status, took := run(ctx, t, n, pod)
	h.pod = took
	after := d.next(ctx, t)
	called := labels{"method": "Allocate"}
	const duration = "podgauge_plugin_request_duration_seconds"
	if calls := after.sum(duration+"_count", called) - before.sum(duration+"_count", called); calls != 1 {
		t.Errorf("Allocate was answered %v times for pod %s", calls, status.Name)
	}
	h.allocate = time.Duration((after.sum(duration+"_sum", called) - before.sum(duration+"_sum", called)) * float64(time.Second))
	h.list = newStream(ctx, t, n, d)
	asked := m.asked(t)
	for range 5 { // what a flight would leave behind adds up
		d.next(ctx, t)
		h.threads = max(h.threads, threads(t, d))
	}
	// A listing may come by once, if it has not yet.
	if again := m.asked(t).Since(asked).PerGPU(hungIndex); again > 1 {
		t.Errorf("the GPU that hangs was asked %d times more", again)
	}
	if s := d.next(ctx, t); stuck(s) != nil {
		t.Errorf("after some scrapes: %v", stuck(s))
	}
	watch.stop(t)
	h.slowest = watch.longest
	remove(ctx, t, n, pod)
	for gpu := range nvmltest.NoGPU + 1 {
		h.calls += int(m.asked(t).InFlight(gpu))
	}
	return h
}

// newStream deletes podgauge's socket and returns how long it took until the kubelet had the whole list on a new stream.
func newStream(ctx context.Context, t *testing.T, n *node.Node, d *daemon) time.Duration {
	t.Helper()
	before := registrations(ctx, t, d)
	begin := time.Now()
	deleteSocket(t, d)
	var at time.Time
	await(ctx, t, "a new list has come", func(context.Context) (err error) {
		at, err = listArrived(n, begin)
		return err
	})
	allocatable(ctx, t, n, uuids(gpus)...)
	// The scrape may be of a collection from before, for as long as that is shared.
	await(ctx, t, "one more registration is counted", func(ctx context.Context) error {
		if now, err := registered(ctx, d); err != nil || now != before+1 {
			return fmt.Errorf("count registrations: got %v and then %v, %w", before, now, err)
		}
		return nil
	})
	return at.Sub(begin)
}

// gone says which readings of the GPU are shown, none of which can be current.
func gone(s scrape, id string) error {
	for _, family := range []string{"nvidia_gpu_power_watts", "nvidia_gpu_energy_joules_total", "nvidia_gpu_temperature_celsius"} {
		if found := find(s.series[family], labels{"uuid": id}); len(found) > 0 {
			return fmt.Errorf("%s is %v", family, found)
		}
	}
	return nil
}

// recovers waits until all is as before, and checks that no call was ever made beside one that hung.
func recovers(ctx context.Context, t *testing.T, n *node.Node, m *machine, d *daemon, what string) {
	t.Helper()
	begin := time.Now()
	d.scrapeUntil(ctx, t, "all GPUs are shown as before", func(s scrape) error {
		wrong := []error{s.tells(uuids(gpus), nil)}
		for _, id := range uuids(gpus) {
			of := labels{"uuid": id}
			wrong = append(wrong, s.is(1, "nvidia_gpu_up", of), s.is(0, "nvidia_gpu_stalled", of), s.is(1, "nvidia_gpu_healthy", of))
		}
		return errors.Join(wrong...)
	})
	allocatable(ctx, t, n, uuids(gpus)...)
	figureOf(t, "all is as before after the end of a hang of "+what, 10*time.Second, time.Since(begin))
	await(ctx, t, "no call is under way", func(context.Context) error {
		calls := m.asked(t)
		for gpu := range nvmltest.MaxGPUs {
			if calls.InFlight(gpu) > 0 {
				return fmt.Errorf("one is, about GPU %d", gpu)
			}
		}
		return nil
	})
}
