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

	"github.com/podgauge/podgauge/internal/pubsub"
	"github.com/podgauge/podgauge/internal/retry"
)

// Namespace and container name of all pods of Run.
const (
	PodNamespace  = "default"
	ContainerName = "main"
)

// NodeUnderTest is a node with a kubelet and podgauge.
type NodeUnderTest interface {
	// PodName returns the kubelet's name of a pod.
	PodName(name string) string
	// CreatePod creates a pod with one container and the given number of GPUs,
	// and may return before the kubelet reads the pod. An error means that the
	// pod was rejected.
	CreatePod(ctx context.Context, name string, gpus int) error
	// DeletePod deletes a pod. The pod may still run when the call returns.
	DeletePod(name string) error
	// RestartKubelet stops the kubelet, waits, starts a new kubelet and waits
	// until its sockets respond. Restarts may differ by n.
	RestartKubelet(ctx context.Context, n int, wait time.Duration) error
	// ListAllocations returns the kubelet's list, or an incomplete list if the
	// kubelet does not respond.
	ListAllocations(ctx context.Context) (KubeletListing, error)
	// Scrape returns podgauge's metrics.
	Scrape(ctx context.Context) (MetricsSnapshot, error)
}

// Plan is the amount of churn.
type Plan struct {
	// Transitions is the minimum number of starts and ends of pods.
	Transitions int
	// KubeletRestarts are spread over the transitions.
	KubeletRestarts int
	// ListInterval is the pause between lists of the kubelet, ScrapeInterval
	// between scrapes of podgauge.
	ListInterval, ScrapeInterval time.Duration
	// GPUsPerPod has the number of GPUs of each concurrent pod.
	GPUsPerPod []int
	Seed       uint64
}

const (
	// waitTimeout limits waits for a state that a correct node reaches within
	// milliseconds.
	waitTimeout = 30 * time.Second
	// admissionTimeout is the time after which a pod without devices counts as
	// rejected: a restarted kubelet may lack the plugin.
	admissionTimeout = 10 * time.Second
	// maxPause is the longest pause between a pod and its successor.
	maxPause = 300 * time.Millisecond
	// noTimeout is longer than any Run.
	noTimeout = 24 * time.Hour
)

// Run creates and deletes pods and returns the lists of the kubelet and the
// snapshots of podgauge. All devices must be idle before, and are idle
// afterwards.
func Run(ctx context.Context, node NodeUnderTest, plan Plan) (*AllocationLog, []MetricsSnapshot, error) {
	r := &churnRun{
		node: node, plan: plan, allocations: NewAllocationLog(time.Now()),
		kubelet: semaphore.NewWeighted(int64(len(plan.GPUsPerPod))),
	}
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

// churnRun is the state of Run.
type churnRun struct {
	node NodeUnderTest
	plan Plan

	// kubelet has one unit for each deletion of a pod; a restart acquires all
	// units. A pod that is deleted during a restart is listed until the new
	// kubelet has stopped the containers. Pods may be created during a restart.
	kubelet *semaphore.Weighted
	// updated changes with each list.
	updated pubsub.Value[struct{}]

	mu          sync.Mutex // guards the fields below
	allocations *AllocationLog
	snapshots   []MetricsSnapshot
	podsCreated int
	transitions int
}

// runEvery calls do at once and at each tick until ctx is done.
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
	l, err := r.node.ListAllocations(ctx)
	if err != nil {
		return fmt.Errorf("list allocations: %w", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.allocations.Add(l)
	r.updated.Set(struct{}{})
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
	if n := len(r.snapshots); n == 0 || !s.From.Equal(r.snapshots[n-1].From) { // a new collection
		r.snapshots = append(r.snapshots, s)
	}
	newest := &r.snapshots[len(r.snapshots)-1]
	newest.Scrapes = append(newest.Scrapes, scrape)
	return nil
}

// waitUntil evaluates cond with mu locked, initially and after each list of the
// kubelet, until cond returns true.
func (r *churnRun) waitUntil(ctx context.Context, timeout time.Duration, description string, cond func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for {
		_, updated := r.updated.Get()
		r.mu.Lock()
		ok := cond()
		r.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-updated:
		case <-ctx.Done():
			return fmt.Errorf("wait until %s: %w", description, ctx.Err())
		}
	}
}

// churn creates and deletes pods until the planned number of transitions.
func (r *churnRun) churn(ctx context.Context) error {
	pods, ctx := errgroup.WithContext(ctx)
	for i, gpus := range r.plan.GPUsPerPod {
		random := rand.New(rand.NewPCG(r.plan.Seed, uint64(i)))
		pods.Go(func() error {
			for r.wantsMorePods() {
				err := r.runPod(ctx, random, gpus)
				if err == nil {
					err = retry.Sleep(ctx, time.Duration(random.Int64N(int64(maxPause))))
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

// wantsMorePods reports whether transitions are missing.
func (r *churnRun) wantsMorePods() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.transitions < r.plan.Transitions
}

// restartKubelets restarts the kubelet at equal distances over the transitions.
func (r *churnRun) restartKubelets(ctx context.Context) error {
	random := rand.New(rand.NewPCG(r.plan.Seed, 1<<32))
	for n := range r.plan.KubeletRestarts {
		due := (2*n + 1) * r.plan.Transitions / (2 * r.plan.KubeletRestarts)
		err := r.waitUntil(ctx, noTimeout, fmt.Sprintf("%d transitions are done", due), func() bool {
			return r.transitions >= due
		})
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
	restarted := time.Now()
	return r.waitUntil(ctx, waitTimeout, "the restarted kubelet lists all allocations", func() bool {
		return r.allocations.LastComplete().After(restarted)
	})
}

// runPod creates a pod, waits for a random lifetime and deletes the pod.
func (r *churnRun) runPod(ctx context.Context, random *rand.Rand, gpus int) error {
	r.mu.Lock()
	r.podsCreated++
	name := fmt.Sprintf("churn-%d", r.podsCreated)
	full := r.node.PodName(name)
	r.allocations.PodCreated(PodNamespace, full, time.Now())
	r.mu.Unlock()
	hasDevices := func(n int) func() bool {
		return func() bool { return r.allocations.DeviceCount(PodNamespace, full) == n }
	}

	if r.node.CreatePod(ctx, name, gpus) == nil &&
		r.waitUntil(ctx, admissionTimeout, name+" is listed", hasDevices(gpus)) == nil {
		r.countTransition()
		defer r.countTransition()
		if err := retry.Sleep(ctx, podLifetime(random)); err != nil {
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
	return r.waitUntil(ctx, waitTimeout, "the kubelet no longer lists "+name, hasDevices(0))
}

func (r *churnRun) countTransition() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.transitions++
}

// podLifetime returns a random lifetime; every fifth pod ends within a second.
func podLifetime(random *rand.Rand) time.Duration {
	if random.IntN(5) == 0 {
		return 50*time.Millisecond + time.Duration(random.Int64N(int64(900*time.Millisecond)))
	}
	return time.Second + time.Duration(random.Int64N(int64(2*time.Second)))
}

// waitUntilIdle waits for a snapshot with all devices idle, which completes the
// energy of all owners. The last owner before a restart may be exported for
// maxStaleOwner.
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
