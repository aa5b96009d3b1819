package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/podgauge/podgauge/test/e2e/node"
)

// TestKubeletRestarts ends the kubelet over and over, both ways, while podgauge is scraped five times a second. Not one of these scrapes may
// be wrong about a holder, and podgauge must not grow.
func TestKubeletRestarts(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	const warmUps, restarts = 2, 10 // of the latter for each signal
	n := node.ForTest(ctx, t, node.Options{})
	startKubelet(ctx, t, n)
	ageKubelet(t, n)
	d := newMachine(t, n).start(t, n, "--web.enable-pprof")
	allocatable(ctx, t, n, uuids(gpus)...)
	holding, containers := map[string]node.Holder{}, map[string]string{}
	pods := []node.Pod{holds("one", 1), holds("two", 1)}
	for _, pod := range pods {
		status, _ := run(ctx, t, n, pod)
		holding[one(ctx, t, n, pod)] = holder(pod)
		containers[pod.Name] = status.Containers[0].ID
	}
	d.scrapeUntil(ctx, t, "the holders are shown", func(s scrape) error { return s.tells(uuids(gpus), holding) })
	var flights, silences []span
	watch := watchScrapes(ctx, t, d, 200*time.Millisecond, func(s scrape) error {
		flights = append(flights, s.flight)
		return s.tells(uuids(gpus), holding)
	})

	took := map[syscall.Signal][]time.Duration{}
	var before footprint
	for i := range warmUps + 2*restarts {
		signal := []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL}[i%2]
		after := registers(ctx, t, n, func() {
			if err := n.StopKubelet(ctx, signal); err != nil {
				t.Fatal(err)
			}
			// A flight begins every second. This has one meet the kubelet's first answers now and then, which name nobody.
			await(ctx, t, "it is time", since(d.next(ctx, t).flight.begin, 500*time.Millisecond+time.Duration(i)*20*time.Millisecond))
			silence := silent(ctx, n)
			startKubelet(ctx, t, n)
			silences = append(silences, <-silence)
		}, uuids(gpus)...)
		if i >= warmUps {
			took[signal] = append(took[signal], after)
		}
		d.next(ctx, t) // the answers to several flights are to be right, not one that is shared
		d.next(ctx, t)
		if i == warmUps-1 {
			before = atRest(ctx, t, n, d)
		}
	}
	after := atRest(ctx, t, n, d)
	figureOf(t, "re-registered after the new socket of a kubelet that was ended by SIGTERM", time.Second, took[syscall.SIGTERM]...)
	figureOf(t, "re-registered after the new socket of a kubelet that was ended by SIGKILL", time.Second, took[syscall.SIGKILL]...)
	figure(t, fmt.Sprintf("over %d kubelet restarts", 2*restarts), fmt.Sprintf("file descriptors %d to %d, goroutines %d to %d, threads %d to %d",
		before.fds, after.fds, before.goroutines, after.goroutines, before.threads, after.threads))
	if after.fds != before.fds || after.goroutines != before.goroutines || after.threads > before.threads+gosThreads {
		t.Errorf("podgauge grows: %+v, then %+v", before, after)
	}
	count := watch.stop(t)
	figure(t, "scrapes meanwhile, each right about every holder",
		fmt.Sprintf("%d; %d flights asked a kubelet that listed nobody yet", count, inside(slices.Compact(flights), silences)))
	for _, pod := range pods {
		if status, err := n.Pod(ctx, pod); err != nil || status.Containers[0].ID != containers[pod.Name] {
			t.Errorf("pod %s did not outlive the kubelets: %+v, %v", pod.Name, status, err)
		}
	}
}

// span is a time.
type span struct{ begin, end time.Time }

// silent is the time in which a kubelet that is about to start answers and lists nobody: from its first such answer to the last such question.
// It ends with the first pod that is listed.
func silent(ctx context.Context, n *node.Node) <-chan span {
	ctx, cancel := context.WithTimeout(ctx, patience)
	silence := make(chan span, 1)
	go func() {
		defer cancel()
		var s span
		_ = node.Until(ctx, "somebody is listed", func(ctx context.Context) error { // registers says so where it fails
			asked := time.Now()
			pods, err := n.List(ctx)
			switch {
			case err != nil:
				return err
			case len(pods) > 0:
				return nil
			case s.begin.IsZero():
				s = span{time.Now(), time.Now()}
			default:
				s.end = asked
			}
			return errors.New("nobody is")
		})
		silence <- s
	}()
	return silence
}

// inside counts the times that lie within one of the others.
func inside(times, others []span) (count int) {
	for _, t := range times {
		if slices.ContainsFunc(others, func(o span) bool { return t.begin.After(o.begin) && t.end.Before(o.end) }) {
			count++
		}
	}
	return count
}

// TestPodgaugeRestarts kills podgauge under a pod that goes on, and looks at it from its first answer on.
func TestPodgaugeRestarts(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	n := node.ForTest(ctx, t, node.Options{})
	startKubelet(ctx, t, n)
	m := newMachine(t, n)
	d := m.start(t, n)
	allocatable(ctx, t, n, uuids(gpus)...)
	pod := holds("train", 1)
	before, _ := run(ctx, t, n, pod)
	held := one(ctx, t, n, pod)
	holding := map[string]node.Holder{held: holder(pod)}
	d.scrapeUntil(ctx, t, "the holder is shown", func(s scrape) error { return s.tells([]string{held}, holding) })

	var shown, back []time.Duration
	for range 5 {
		if _, err := d.Stop(ctx, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		allocatable(ctx, t, n) // none: the kubelet has noticed
		begin := time.Now()
		d = m.start(t, n)
		s := first(ctx, t, d, held)
		shown = append(shown, time.Since(begin))
		if err := s.tells([]string{held}, holding); err != nil {
			t.Errorf("the first scrape that shows the GPU: %v", err)
		}
		allocatable(ctx, t, n, uuids(gpus)...)
		back = append(back, time.Since(begin))
	}
	figureOf(t, "a held GPU is shown, with its holder, after the start of a podgauge whose predecessor was killed", 2*time.Second, shown...)
	figureOf(t, "its GPUs are allocatable again after that start", 2*time.Second, back...)
	after, err := n.Pod(ctx, pod)
	if err != nil || after.Containers[0].ID != before.Containers[0].ID || after.Containers[0].Restarts != 0 {
		t.Errorf("the pod was %+v, and is %+v, %v", before, after, err)
	}
	if sockets := d.sockets(t); len(sockets) != 1 {
		t.Errorf("podgauge's sockets are %q", sockets)
	}
}

// first is the first scrape that shows anything of the GPU.
func first(ctx context.Context, t *testing.T, d *daemon, id string) scrape {
	t.Helper()
	return d.scrapeUntil(ctx, t, "the GPU is shown", func(s scrape) error {
		for _, samples := range s.series {
			if len(find(samples, labels{"uuid": id})) > 0 {
				return nil
			}
		}
		return fmt.Errorf("no series of %s", id)
	})
}

// footprint is what podgauge takes of the machine.
type footprint struct{ fds, goroutines, threads int }

// atRest is the least of a dozen looks within a second: a look may meet the list that the Monitor makes every ten seconds. Goroutines are
// those of a profile, since a scrape has some of its own, which differ from one to the next. Threads do not go away, so that of these it
// is the most.
func atRest(ctx context.Context, t *testing.T, n *node.Node, d *daemon) footprint {
	t.Helper()
	d.scrapeUntil(ctx, t, "one stream stands, and the kubelet answers", func(s scrape) error {
		if err := s.is(1, "podgauge_plugin_streams", nil); err != nil {
			return err
		}
		return s.is(1, "podgauge_kubelet_up", nil)
	})
	// A kubelet that starts rejects the stream of its Pods API for a second or two. The stream takes a connection and seven goroutines.
	if _, err := os.Stat(filepath.Join(n.KubeletDir(), "pods-api", "pods-api.sock")); err == nil {
		await(ctx, t, "the Pods API's stream stands", func(context.Context) error {
			begun, ended := len(d.logged(t, "the kubelet says which pods it has")), len(d.logged(t, "does not say any more which pods it has"))
			if begun != ended+1 {
				return fmt.Errorf("count streams of the Pods API: %d have begun, %d have ended", begun, ended)
			}
			return nil
		})
	}
	var rest footprint
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for i := range 12 {
		goroutines := d.goroutines(ctx, t)
		fds, err := d.FDs()
		if err != nil {
			t.Fatal(err)
		}
		now := footprint{fds, goroutines, threads(t, d)}
		if i == 0 {
			rest = now
		}
		rest = footprint{min(rest.fds, now.fds), min(rest.goroutines, now.goroutines), max(rest.threads, now.threads)}
		<-tick.C
	}
	return rest
}

// goroutines counts them all, this question's two included. The daemon needs --web.enable-pprof.
func (d *daemon) goroutines(ctx context.Context, t *testing.T) (n int) {
	t.Helper()
	profile, err := d.get(ctx, "/debug/pprof/goroutine?debug=1")
	if err != nil {
		t.Fatal(err)
	}
	defer profile.Close()
	if _, err := fmt.Fscanf(profile, "goroutine profile: total %d", &n); err != nil {
		t.Fatal(err)
	}
	return n
}

// gosThreads is how many threads Go may start beside those that a program's calls keep: when it does not know whether one of its threads
// has only been slow to come back, on a machine with much else to do.
const gosThreads = 4

func threads(t *testing.T, d *daemon) int {
	t.Helper()
	n, err := d.Threads()
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// scrapes goes on in the background.
type scrapes struct {
	cancel context.CancelFunc
	done   sync.WaitGroup
	// What was seen; not read before done.
	count   int
	longest time.Duration
	wrong   []string
}

// watchScrapes scrapes at every tick until stop, and has each answer looked at.
func watchScrapes(ctx context.Context, t *testing.T, d *daemon, every time.Duration, look func(scrape) error) *scrapes {
	t.Helper()
	ctx, cancel := context.WithCancel(ctx)
	w := &scrapes{cancel: cancel}
	w.done.Go(func() {
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			s, err := d.scrape(ctx)
			if ctx.Err() != nil {
				return
			}
			if err == nil {
				err = look(s)
			}
			w.count++
			w.longest = max(w.longest, s.took)
			if err != nil {
				w.wrong = append(w.wrong, fmt.Sprintf("%s: %v", time.Now().Format(time.StampMilli), err))
			}
		}
	})
	t.Cleanup(func() { w.cancel(); w.done.Wait() })
	return w
}

// stop returns how many scrapes there were. It fails the test with what was wrong.
func (w *scrapes) stop(t *testing.T) int {
	t.Helper()
	w.cancel()
	w.done.Wait()
	if len(w.wrong) > 0 {
		t.Errorf("%d of %d scrapes were wrong, the first ones:\n%s", len(w.wrong), w.count, strings.Join(slices.Clip(w.wrong[:min(3, len(w.wrong))]), "\n"))
	}
	return w.count
}
