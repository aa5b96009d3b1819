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
	backdateKubelet(t, n)
	d := newMachine(t, n).start(t, n, "--web.enable-pprof")
	waitForAllocatable(ctx, t, n, uuids(defaultGPUs)...)
	holding, containers := map[string]node.OwnerKey{}, map[string]string{}
	pods := []node.StaticPod{podWithGPUs("one", 1), podWithGPUs("two", 1)}
	for _, pod := range pods {
		status, _ := runPod(ctx, t, n, pod)
		holding[allocatedGPU(ctx, t, n, pod)] = mainContainer(pod)
		containers[pod.Name] = status.Containers[0].ID
	}
	d.scrapeUntil(ctx, t, "the holders are shown", func(s metricsScrape) error { return s.checkOwners(uuids(defaultGPUs), holding) })
	var flights, silences []timeSpan
	watch := watchScrapes(ctx, t, d, 200*time.Millisecond, func(s metricsScrape) error {
		flights = append(flights, s.collection)
		return s.checkOwners(uuids(defaultGPUs), holding)
	})

	took := map[syscall.Signal][]time.Duration{}
	var before resourceUse
	for i := range warmUps + 2*restarts {
		signal := []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL}[i%2]
		after := measureRegistration(ctx, t, n, func() {
			if err := n.StopKubelet(ctx, signal); err != nil {
				t.Fatal(err)
			}
			// A flight begins every second. This has one meet the kubelet's first answers now and then, which name nobody.
			await(ctx, t, "it is time", waitSince(d.nextScrape(ctx, t).collection.begin, 500*time.Millisecond+time.Duration(i)*20*time.Millisecond))
			silence := emptyListTime(ctx, n)
			startKubelet(ctx, t, n)
			silences = append(silences, <-silence)
		}, uuids(defaultGPUs)...)
		if i >= warmUps {
			took[signal] = append(took[signal], after)
		}
		d.nextScrape(ctx, t) // the answers to several flights are to be right, not one that is shared
		d.nextScrape(ctx, t)
		if i == warmUps-1 {
			before = minResourceUse(ctx, t, n, d)
		}
	}
	after := minResourceUse(ctx, t, n, d)
	measureDurations(t, "re-registered after the new socket of a kubelet that was ended by SIGTERM", time.Second, took[syscall.SIGTERM]...)
	measureDurations(t, "re-registered after the new socket of a kubelet that was ended by SIGKILL", time.Second, took[syscall.SIGKILL]...)
	printMeasurement(t, fmt.Sprintf("over %d kubelet restarts", 2*restarts), fmt.Sprintf("file descriptors %d to %d, goroutines %d to %d, threads %d to %d",
		before.fds, after.fds, before.goroutines, after.goroutines, before.threads, after.threads))
	if after.fds > before.fds || after.goroutines > before.goroutines || after.threads > before.threads+maxRuntimeThreads {
		t.Errorf("podgauge grows: %+v, then %+v", before, after)
	}
	count := watch.stop(t)
	printMeasurement(t, "scrapes meanwhile, each right about every holder",
		fmt.Sprintf("%d; %d flights asked a kubelet that listed nobody yet", count, countWithin(slices.Compact(flights), silences)))
	for _, pod := range pods {
		if status, err := n.Pod(ctx, pod); err != nil || status.Containers[0].ID != containers[pod.Name] {
			t.Errorf("pod %s did not outlive the kubelets: %+v, %v", pod.Name, status, err)
		}
	}
}

// timeSpan is a time.
type timeSpan struct{ begin, end time.Time }

// emptyListTime is the time in which a kubelet that is about to start answers and lists nobody: from its first such answer to the last such question.
// It ends with the first pod that is listed.
func emptyListTime(ctx context.Context, n *node.RealNode) <-chan timeSpan {
	ctx, cancel := context.WithTimeout(ctx, waitTimeout)
	silence := make(chan timeSpan, 1)
	go func() {
		defer cancel()
		var s timeSpan
		_ = node.Until(ctx, "somebody is listed", func(ctx context.Context) error { // registers says so where it fails
			asked := time.Now()
			pods, err := n.ListPodResources(ctx)
			switch {
			case err != nil:
				return err
			case len(pods) > 0:
				return nil
			case s.begin.IsZero():
				s = timeSpan{time.Now(), time.Now()}
			default:
				s.end = asked
			}
			return errors.New("nobody is")
		})
		silence <- s
	}()
	return silence
}

// countWithin counts the times that lie within one of the others.
func countWithin(times, others []timeSpan) (count int) {
	for _, t := range times {
		if slices.ContainsFunc(others, func(o timeSpan) bool { return t.begin.After(o.begin) && t.end.Before(o.end) }) {
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
	waitForAllocatable(ctx, t, n, uuids(defaultGPUs)...)
	pod := podWithGPUs("train", 1)
	before, _ := runPod(ctx, t, n, pod)
	held := allocatedGPU(ctx, t, n, pod)
	holding := map[string]node.OwnerKey{held: mainContainer(pod)}
	d.scrapeUntil(ctx, t, "the holder is shown", func(s metricsScrape) error { return s.checkOwners([]string{held}, holding) })

	var shown, back []time.Duration
	for range 5 {
		if _, err := d.Stop(ctx, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		waitForAllocatable(ctx, t, n) // none: the kubelet has noticed
		begin := time.Now()
		d = m.start(t, n)
		s := firstScrapeOf(ctx, t, d, held)
		shown = append(shown, time.Since(begin))
		if err := s.checkOwners([]string{held}, holding); err != nil {
			t.Errorf("the first scrape that shows the GPU: %v", err)
		}
		waitForAllocatable(ctx, t, n, uuids(defaultGPUs)...)
		back = append(back, time.Since(begin))
	}
	measureDurations(t, "a held GPU is shown, with its holder, after the start of a podgauge whose predecessor was killed", 2*time.Second, shown...)
	measureDurations(t, "its GPUs are allocatable again after that start", 2*time.Second, back...)
	after, err := n.Pod(ctx, pod)
	if err != nil || after.Containers[0].ID != before.Containers[0].ID || after.Containers[0].Restarts != 0 {
		t.Errorf("the pod was %+v, and is %+v, %v", before, after, err)
	}
	if sockets := d.sockets(t); len(sockets) != 1 {
		t.Errorf("podgauge's sockets are %q", sockets)
	}
}

// firstScrapeOf is the first scrape that shows anything of the GPU.
func firstScrapeOf(ctx context.Context, t *testing.T, d *podgaugeProcess, id string) metricsScrape {
	t.Helper()
	return d.scrapeUntil(ctx, t, "the GPU is shown", func(s metricsScrape) error {
		for _, samples := range s.series {
			if len(findSamples(samples, seriesLabels{"uuid": id})) > 0 {
				return nil
			}
		}
		return fmt.Errorf("no series of %s", id)
	})
}

// resourceUse is what podgauge takes of the machine.
type resourceUse struct{ fds, goroutines, threads int }

// minResourceUse is the least of a dozen looks within a second: a look may meet the list that the Monitor makes every ten seconds. Goroutines are
// those of a profile, since a scrape has some of its own, which differ from one to the next. Threads do not go away, so that of these it
// is the most.
func minResourceUse(ctx context.Context, t *testing.T, n *node.RealNode, d *podgaugeProcess) resourceUse {
	t.Helper()
	d.scrapeUntil(ctx, t, "one stream stands, and the kubelet answers", func(s metricsScrape) error {
		if err := s.wantValue(1, "podgauge_plugin_streams", nil); err != nil {
			return err
		}
		return s.wantValue(1, "podgauge_kubelet_up", nil)
	})
	// A kubelet that starts rejects the stream of its Pods API for a second or two. The stream takes a connection and seven goroutines.
	if _, err := os.Stat(filepath.Join(n.KubeletDir(), "pods-api", "pods-api.sock")); err == nil {
		await(ctx, t, "the Pods API's stream stands", func(context.Context) error {
			begun, ended := len(d.logLines(t, "pods synced")), len(d.logLines(t, "pods no longer synced"))
			if begun != ended+1 {
				return fmt.Errorf("count streams of the Pods API: %d have begun, %d have ended", begun, ended)
			}
			return nil
		})
	}
	var rest resourceUse
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for i := range 12 {
		goroutines := d.goroutines(ctx, t)
		fds, err := d.FDs()
		if err != nil {
			t.Fatal(err)
		}
		now := resourceUse{fds, goroutines, threadCount(t, d)}
		if i == 0 {
			rest = now
		}
		rest = resourceUse{min(rest.fds, now.fds), min(rest.goroutines, now.goroutines), max(rest.threads, now.threads)}
		<-tick.C
	}
	return rest
}

// goroutines counts them all, this question's two included. The daemon needs --web.enable-pprof.
func (d *podgaugeProcess) goroutines(ctx context.Context, t *testing.T) (n int) {
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

// maxRuntimeThreads is how many threads Go may start beside those that a program's calls keep: when it does not know whether one of its threads
// has only been slow to come back, on a machine with much else to do.
const maxRuntimeThreads = 4

func threadCount(t *testing.T, d *podgaugeProcess) int {
	t.Helper()
	n, err := d.Threads()
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// scrapeWatch goes on in the background.
type scrapeWatch struct {
	cancel context.CancelFunc
	done   sync.WaitGroup
	// What was seen; not read before done.
	count   int
	longest time.Duration
	wrong   []string
}

// watchScrapes scrapes at every tick until stop, and has each answer looked at.
func watchScrapes(ctx context.Context, t *testing.T, d *podgaugeProcess, every time.Duration, look func(metricsScrape) error) *scrapeWatch {
	t.Helper()
	ctx, cancel := context.WithCancel(ctx)
	w := &scrapeWatch{cancel: cancel}
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
			w.longest = max(w.longest, s.duration)
			if err != nil {
				w.wrong = append(w.wrong, fmt.Sprintf("%s: %v", time.Now().Format(time.StampMilli), err))
			}
		}
	})
	t.Cleanup(func() { w.cancel(); w.done.Wait() })
	return w
}

// stop returns how many scrapes there were. It fails the test with what was wrong.
func (w *scrapeWatch) stop(t *testing.T) int {
	t.Helper()
	w.cancel()
	w.done.Wait()
	if len(w.wrong) > 0 {
		t.Errorf("%d of %d scrapes were wrong, the first ones:\n%s", len(w.wrong), w.count, strings.Join(slices.Clip(w.wrong[:min(3, len(w.wrong))]), "\n"))
	}
	return w.count
}
