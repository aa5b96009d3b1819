package churn

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"
)

// Namespace and Container are those of all pods that Run makes.
const (
	PodNamespace  = "default"
	ContainerName = "main"
)

// NodeUnderTest is where pods come and go.
type NodeUnderTest interface {
	// PodName is how the kubelet calls a pod of that name.
	PodName(name string) string
	// CreatePod gives the node a pod whose only container wants so many GPUs. It may return before
	// the kubelet has seen the pod. An error says that the pod was turned away.
	CreatePod(ctx context.Context, name string, gpus int) error
	// DeletePod takes a pod away again; it may return before it is gone.
	DeletePod(name string) error
	// RestartKubelet ends the kubelet, waits, and returns when another answers. It is called
	// with a number that rises, so that restarts can differ.
	RestartKubelet(ctx context.Context, n int, wait time.Duration) error
	// ListAllocations asks the kubelet who holds what. A kubelet that does not answer is no error, but
	// gives an answer that is not whole.
	ListAllocations(ctx context.Context) (KubeletListing, error)
	// Scrape asks podgauge.
	Scrape(ctx context.Context) (MetricsSnapshot, error)
}

// Plan is how much churn there is.
type Plan struct {
	// Transitions are how many beginnings and ends of pods there are at least.
	Transitions int
	// KubeletRestarts are the kubelet's, spread over the time.
	KubeletRestarts int
	// ListInterval is how often the kubelet is asked, ScrapeEvery how often podgauge is.
	ListInterval, ScrapeInterval time.Duration
	// GPUsPerPod are how many GPUs each of the pods wants that are there at the same time.
	GPUsPerPod []int
	Seed       uint64
}

const (
	// waitTimeout is for what takes a moment where nothing is wrong.
	waitTimeout = 30 * time.Second
	// admissionTimeout is how long a pod may go without its devices before it counts as
	// turned away: by a kubelet that has just come back, and has no plugin yet.
	admissionTimeout = 10 * time.Second
	// maxPause is how long a pod's successor is waited for.
	maxPause = 300 * time.Millisecond
	// noTimeout is longer than any churn.
	noTimeout = 24 * time.Hour
)

// Run has pods come and go, and returns what the kubelet and what podgauge said meanwhile.
// All devices have to be idle before, and are so again at its end.
func Run(ctx context.Context, node NodeUnderTest, plan Plan) (*AllocationLog, []MetricsSnapshot, error) {
	r := &churnRun{node: node, plan: plan, allocations: NewAllocationLog(time.Now()), updated: make(chan struct{}), kubelet: semaphore.NewWeighted(int64(len(plan.GPUsPerPod)))}
	watching, cancel := context.WithCancel(ctx)
	defer cancel()
	watch, watching := errgroup.WithContext(watching)
	watch.Go(func() error { return runEvery(watching, plan.ListInterval, r.list) })
	watch.Go(func() error { return runEvery(watching, plan.ScrapeInterval, r.scrape) })
	err := r.churn(watching)
	if err == nil {
		err = r.waitUntilIdle(watching)
	}
	cancel()
	return r.allocations, r.snapshots, errors.Join(err, watch.Wait())
}

// churnRun is a churn under way.
type churnRun struct {
	node NodeUnderTest
	plan Plan

	// kubelet has a place for each pod that is deleted, and a restart takes them all: a pod
	// whose owner takes it away meanwhile is listed until a kubelet has ended it. That one
	// comes meanwhile is nothing special.
	kubelet *semaphore.Weighted

	mu sync.Mutex
	// All below are guarded by mu.
	allocations *AllocationLog
	updated     chan struct{} // closed with each answer
	snapshots   []MetricsSnapshot
	podsCreated int
	transitions int
}

// runEvery does something at each tick until ctx is done.
func runEvery(ctx context.Context, tick time.Duration, do func(context.Context) error) error {
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	for {
		if err := do(ctx); err != nil && ctx.Err() == nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

func (r *churnRun) list(ctx context.Context) error {
	answer, err := r.node.ListAllocations(ctx)
	if err != nil {
		return fmt.Errorf("ask the kubelet: %w", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.allocations.Add(answer)
	close(r.updated)
	r.updated = make(chan struct{})
	return nil
}

func (r *churnRun) scrape(ctx context.Context) error {
	scrape := Span{From: time.Now()}
	s, err := r.node.Scrape(ctx)
	if err != nil {
		return fmt.Errorf("scrape: %w", err)
	}
	scrape.To = time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := len(r.snapshots); n == 0 || !s.From.Equal(r.snapshots[n-1].From) { // else the flight is one that was seen
		r.snapshots = append(r.snapshots, s)
	}
	newest := &r.snapshots[len(r.snapshots)-1]
	newest.Scrapes = append(newest.Scrapes, scrape)
	return nil
}

// waitUntil waits until the kubelet's answers, or the snapshots, are as they should be. is is
// called with mu held.
func (r *churnRun) waitUntil(ctx context.Context, timeout time.Duration, what string, cond func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for {
		r.mu.Lock()
		ok, heard := cond(), r.updated
		r.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-heard:
		case <-ctx.Done():
			return fmt.Errorf("wait until %s: %w", what, ctx.Err())
		}
	}
}

// churn has pods come and go until there were enough of them.
func (r *churnRun) churn(ctx context.Context) error {
	pods, ctx := errgroup.WithContext(ctx)
	for i, gpus := range r.plan.GPUsPerPod {
		random := rand.New(rand.NewPCG(r.plan.Seed, uint64(i)))
		pods.Go(func() error {
			for r.wantsMorePods() {
				err := r.runPod(ctx, random, gpus)
				if err == nil {
					err = sleep(ctx, time.Duration(random.Int64N(int64(maxPause))))
				}
				if err != nil {
					return err
				}
			}
			return nil
		})
	}
	pods.Go(func() error { return r.restartKubelets(ctx) })
	return pods.Wait()
}

// wantsMorePods tells whether there is to be another pod.
func (r *churnRun) wantsMorePods() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.transitions < r.plan.Transitions
}

// restartKubelets restarts the kubelet each time that so much of the churn is over.
func (r *churnRun) restartKubelets(ctx context.Context) error {
	random := rand.New(rand.NewPCG(r.plan.Seed, 1<<32))
	for n := range r.plan.KubeletRestarts {
		due := (2*n + 1) * r.plan.Transitions / (2 * r.plan.KubeletRestarts)
		err := r.waitUntil(ctx, noTimeout, fmt.Sprintf("there were %d transitions", due), func() bool { return r.transitions >= due })
		if err == nil {
			err = r.restartKubelet(ctx, n, time.Duration(random.Int64N(int64(time.Second))))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (r *churnRun) restartKubelet(ctx context.Context, n int, wait time.Duration) error {
	all := int64(len(r.plan.GPUsPerPod))
	if err := r.kubelet.Acquire(ctx, all); err != nil {
		return err
	}
	defer r.kubelet.Release(all)
	if err := r.node.RestartKubelet(ctx, n, wait); err != nil {
		return fmt.Errorf("restart the kubelet: %w", err)
	}
	back := time.Now()
	return r.waitUntil(ctx, waitTimeout, "the restarted kubelet names all", func() bool { return r.allocations.LastComplete().After(back) })
}

// runPod is the life of one pod.
func (r *churnRun) runPod(ctx context.Context, random *rand.Rand, gpus int) error {
	r.mu.Lock()
	r.podsCreated++
	name := fmt.Sprintf("churn-%d", r.podsCreated)
	full := r.node.PodName(name)
	r.allocations.PodCreated(PodNamespace, full, time.Now())
	r.mu.Unlock()
	holds := func(n int) func() bool {
		return func() bool { return r.allocations.DeviceCount(PodNamespace, full) == n }
	}

	if r.node.CreatePod(ctx, name, gpus) == nil && r.waitUntil(ctx, admissionTimeout, "it is listed", holds(gpus)) == nil {
		r.countTransition()
		defer r.countTransition()
		if err := sleep(ctx, podLifetime(random)); err != nil {
			return err
		}
	}
	if err := r.kubelet.Acquire(ctx, 1); err != nil {
		return err
	}
	defer r.kubelet.Release(1)
	if err := r.node.DeletePod(name); err != nil {
		return fmt.Errorf("delete %s: %w", name, err)
	}
	return r.waitUntil(ctx, waitTimeout, "the kubelet lists "+name+" no more", holds(0))
}

// countTransition counts a pod's beginning, or its end.
func (r *churnRun) countTransition() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.transitions++
}

// podLifetime is how long a pod lives: one in five is gone before anybody would look.
func podLifetime(random *rand.Rand) time.Duration {
	if random.IntN(5) == 0 {
		return 50*time.Millisecond + time.Duration(random.Int64N(int64(900*time.Millisecond)))
	}
	return time.Second + time.Duration(random.Int64N(int64(2*time.Second)))
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// waitUntilIdle waits for a snapshot that has all devices idle: all accounts are complete then. The
// last holder before a restart may stand for as long.
func (r *churnRun) waitUntilIdle(ctx context.Context) error {
	var busy []string
	err := r.waitUntil(ctx, maxStaleOwner+waitTimeout, "all devices are idle", func() bool {
		if len(r.snapshots) == 0 {
			return false
		}
		busy = busy[:0]
		for device, d := range r.snapshots[len(r.snapshots)-1].Devices {
			if d.State != StateIdle {
				busy = append(busy, fmt.Sprintf("%s is %s %v", device, d.State, d.Owner))
			}
		}
		return len(busy) == 0
	})
	if err != nil {
		return fmt.Errorf("%w: %s", err, strings.Join(busy, ", "))
	}
	return nil
}
