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

// TestKubeletRestarts restarts the kubelet repeatedly, by SIGTERM and by SIGKILL, and scrapes podgauge five times a second. All scrapes
// must have the right owners, and podgauge must not leak file descriptors, goroutines or threads.
func TestKubeletRestarts(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	const warmUps, restarts = 2, 10 // restarts for each signal
	n := node.ForTest(ctx, t, node.Options{})
	startKubelet(ctx, t, n)
	backdateKubelet(t, n)
	d := newMachine(t, n).start(t, n, "--web.enable-pprof")
	waitForAllocatable(ctx, t, n, uuids(defaultGPUs)...)
	owners, containers := map[string]node.OwnerKey{}, map[string]string{}
	pods := []node.StaticPod{podWithGPUs("one", 1), podWithGPUs("two", 1)}
	for _, pod := range pods {
		status, _ := runPod(ctx, t, n, pod)
		owners[allocatedGPU(ctx, t, n, pod)] = mainContainer(pod)
		containers[pod.Name] = status.Containers[0].ID
	}
	d.scrapeUntil(ctx, t, "the owners are exported", func(s metricsScrape) error { return s.checkOwners(uuids(defaultGPUs), owners) })
	var collections, emptyLists []timeSpan
	watch := watchScrapes(ctx, t, d, 200*time.Millisecond, func(s metricsScrape) error {
		collections = append(collections, s.collection)
		return s.checkOwners(uuids(defaultGPUs), owners)
	})

	took := map[syscall.Signal][]time.Duration{}
	var before resourceUse
	for i := range warmUps + 2*restarts {
		signal := []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL}[i%2]
		after := measureRegistration(ctx, t, n, func() {
			if err := n.StopKubelet(ctx, signal); err != nil {
				t.Fatal(err)
			}
			// A collection begins every second. With these delays, some collections get the kubelet's first responses, without pods.
			delay := 500*time.Millisecond + time.Duration(i)*20*time.Millisecond
			await(ctx, t, "the delay of this restart is over", waitSince(d.nextScrape(ctx, t).collection.begin, delay))
			emptyList := emptyListTime(ctx, n)
			startKubelet(ctx, t, n)
			emptyLists = append(emptyLists, <-emptyList)
		}, uuids(defaultGPUs)...)
		if i >= warmUps {
			took[signal] = append(took[signal], after)
		}
		d.nextScrape(ctx, t) // the watch must see several collections, not a shared one
		d.nextScrape(ctx, t)
		if i == warmUps-1 {
			before = minResourceUse(ctx, t, n, d)
		}
	}
	after := minResourceUse(ctx, t, n, d)
	measureDurations(t, "kubelet restart by SIGTERM → registered", time.Second, took[syscall.SIGTERM]...)
	measureDurations(t, "kubelet restart by SIGKILL → registered", time.Second, took[syscall.SIGKILL]...)
	printMeasurement(t, fmt.Sprintf("%d kubelet restarts", 2*restarts), fmt.Sprintf("file descriptors %d to %d, goroutines %d to %d, threads %d to %d",
		before.fds, after.fds, before.goroutines, after.goroutines, before.threads, after.threads))
	if after.fds > before.fds || after.goroutines > before.goroutines || after.threads > before.threads+maxRuntimeThreads {
		t.Errorf("podgauge's resources after %d restarts: got %+v, want at most %+v", 2*restarts, after, before)
	}
	count := watch.stop(t)
	printMeasurement(t, "number of scrapes during the restarts, all with the right owners",
		fmt.Sprintf("%d; %d collections from a kubelet without pods in List", count, countWithin(slices.Compact(collections), emptyLists)))
	for _, pod := range pods {
		if status, err := n.Pod(ctx, pod); err != nil || status.Containers[0].ID != containers[pod.Name] {
			t.Errorf("pod %s after the kubelet restarts: got %+v, %v, want container %s", pod.Name, status, err, containers[pod.Name])
		}
	}
}

type timeSpan struct{ begin, end time.Time }

// emptyListTime sends the time during which a starting kubelet's List has no pods: from the first such response to the last such request.
func emptyListTime(ctx context.Context, n *node.RealNode) <-chan timeSpan {
	ctx, cancel := context.WithTimeout(ctx, waitTimeout)
	result := make(chan timeSpan, 1)
	go func() {
		defer cancel()
		var s timeSpan
		_ = node.Until(ctx, "List has a pod", func(ctx context.Context) error { // measureRegistration reports a timeout
			begin := time.Now()
			pods, err := n.ListPodResources(ctx)
			switch {
			case err != nil:
				return err
			case len(pods) > 0:
				return nil
			case s.begin.IsZero():
				s = timeSpan{time.Now(), time.Now()}
			default:
				s.end = begin
			}
			return errors.New("List has no pods")
		})
		result <- s
	}()
	return result
}

// countWithin returns the number of times that are within one of the others.
func countWithin(times, others []timeSpan) (count int) {
	for _, t := range times {
		if slices.ContainsFunc(others, func(o timeSpan) bool { return t.begin.After(o.begin) && t.end.Before(o.end) }) {
			count++
		}
	}
	return count
}

// TestPodgaugeRestarts kills podgauge while a pod runs, and checks the first scrape of the next podgauge process.
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
	gpuID := allocatedGPU(ctx, t, n, pod)
	owners := map[string]node.OwnerKey{gpuID: mainContainer(pod)}
	d.scrapeUntil(ctx, t, "the owner is exported", func(s metricsScrape) error { return s.checkOwners([]string{gpuID}, owners) })

	var exported, allocatable []time.Duration
	for range 5 {
		if _, err := d.Stop(ctx, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		waitForAllocatable(ctx, t, n) // none, after the end of the stream
		begin := time.Now()
		d = m.start(t, n)
		s := firstScrapeOf(ctx, t, d, gpuID)
		exported = append(exported, time.Since(begin))
		if err := s.checkOwners([]string{gpuID}, owners); err != nil {
			t.Errorf("first scrape with the GPU: %v", err)
		}
		waitForAllocatable(ctx, t, n, uuids(defaultGPUs)...)
		allocatable = append(allocatable, time.Since(begin))
	}
	measureDurations(t, "podgauge killed and started → owner in the first scrape", 2*time.Second, exported...)
	measureDurations(t, "podgauge killed and started → GPUs allocatable", 2*time.Second, allocatable...)
	after, err := n.Pod(ctx, pod)
	if err != nil || after.Containers[0].ID != before.Containers[0].ID || after.Containers[0].Restarts != 0 {
		t.Errorf("pod: got %+v, %v, want %+v", after, err, before)
	}
	if sockets := d.sockets(t); len(sockets) != 1 {
		t.Errorf("podgauge's sockets: got %q, want one", sockets)
	}
}

// firstScrapeOf returns the first scrape with a series of the GPU.
func firstScrapeOf(ctx context.Context, t *testing.T, d *podgaugeProcess, id string) metricsScrape {
	t.Helper()
	return d.scrapeUntil(ctx, t, "the GPU is exported", func(s metricsScrape) error {
		for _, samples := range s.series {
			if len(findSamples(samples, seriesLabels{"uuid": id})) > 0 {
				return nil
			}
		}
		return fmt.Errorf("no series of %s", id)
	})
}

// resourceUse contains the numbers of podgauge's file descriptors, goroutines and threads.
type resourceUse struct{ fds, goroutines, threads int }

// minResourceUse returns the minima of a dozen samples, as the listing of every ten seconds may run during a sample. Goroutines are from
// a profile, as scrapes start varying numbers of goroutines. Of threads it returns the maximum, as threads do not end.
func minResourceUse(ctx context.Context, t *testing.T, n *node.RealNode, d *podgaugeProcess) resourceUse {
	t.Helper()
	d.scrapeUntil(ctx, t, "one stream is open and the kubelet responds", func(s metricsScrape) error {
		if err := s.wantValue(1, "podgauge_plugin_streams", nil); err != nil {
			return err
		}
		return s.wantValue(1, "podgauge_kubelet_up", nil)
	})
	// The kubelet rejects the stream of its Pods API for a second or two after its start. The stream needs a connection and seven goroutines.
	if _, err := os.Stat(filepath.Join(n.KubeletDir(), "pods-api", "pods-api.sock")); err == nil {
		await(ctx, t, "the stream of the Pods API is open", func(context.Context) error {
			opened, ended := len(d.logLines(t, "pods synced")), len(d.logLines(t, "pods no longer synced"))
			if opened != ended+1 {
				return fmt.Errorf("streams of the Pods API: got %d opened, %d ended", opened, ended)
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

// goroutines returns the number of goroutines, including two of the request. podgauge needs --web.enable-pprof.
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

// maxRuntimeThreads limits the threads of the Go runtime in addition to the threads in calls. On a busy machine, the runtime starts more
// threads because its threads return late from calls.
const maxRuntimeThreads = 4

func threadCount(t *testing.T, d *podgaugeProcess) int {
	t.Helper()
	n, err := d.Threads()
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// scrapeWatch scrapes and checks in the background.
type scrapeWatch struct {
	cancel context.CancelFunc
	done   sync.WaitGroup
	// The results; read only after done.
	count   int
	longest time.Duration
	wrong   []string
}

// watchScrapes scrapes at an interval until stop is called, and checks each scrape.
func watchScrapes(ctx context.Context, t *testing.T, d *podgaugeProcess, interval time.Duration, check func(metricsScrape) error) *scrapeWatch {
	t.Helper()
	ctx, cancel := context.WithCancel(ctx)
	w := &scrapeWatch{cancel: cancel}
	w.done.Go(func() {
		tick := time.NewTicker(interval)
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
				err = check(s)
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

// stop ends the watch and returns the number of scrapes. The test fails if a scrape was wrong.
func (w *scrapeWatch) stop(t *testing.T) int {
	t.Helper()
	w.cancel()
	w.done.Wait()
	if len(w.wrong) > 0 {
		t.Errorf("wrong scrapes: got %d of %d:\n%s", len(w.wrong), w.count, strings.Join(slices.Clip(w.wrong[:min(3, len(w.wrong))]), "\n"))
	}
	return w.count
}
