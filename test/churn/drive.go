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
	Namespace = "default"
	Container = "main"
)

// Node is where pods come and go.
type Node interface {
	// PodName is how the kubelet calls a pod of that name.
	PodName(name string) string
	// Put gives the node a pod whose only container wants so many GPUs. It may return before
	// the kubelet has seen the pod. An error says that the pod was turned away.
	Put(ctx context.Context, name string, gpus int) error
	// Delete takes a pod away again; it may return before it is gone.
	Delete(name string) error
	// Restart ends the kubelet, waits, and returns when another answers. It is called
	// with a number that rises, so that restarts can differ.
	Restart(ctx context.Context, n int, wait time.Duration) error
	// Ask asks the kubelet who holds what. A kubelet that does not answer is no error, but
	// gives an answer that is not whole.
	Ask(ctx context.Context) (Answer, error)
	// Scrape asks podgauge.
	Scrape(ctx context.Context) (Snapshot, error)
}

// Plan is how much churn there is.
type Plan struct {
	// Transitions are how many beginnings and ends of pods there are at least.
	Transitions int
	// Restarts are the kubelet's, spread over the time.
	Restarts int
	// AskEvery is how often the kubelet is asked, ScrapeEvery how often podgauge is.
	AskEvery, ScrapeEvery time.Duration
	// Pods are how many GPUs each of the pods wants that are there at the same time.
	Pods []int
	Seed uint64
}

const (
	// patience is for what takes a moment where nothing is wrong.
	patience = 30 * time.Second
	// admittedWithin is how long a pod may go without its devices before it counts as
	// turned away: by a kubelet that has just come back, and has no plugin yet.
	admittedWithin = 10 * time.Second
	// mostPause is how long a pod's successor is waited for.
	mostPause = 300 * time.Millisecond
	// forever is longer than any churn.
	forever = 24 * time.Hour
)

// Run has pods come and go, and returns what the kubelet and what podgauge said meanwhile.
// All devices have to be idle before, and are so again at its end.
func Run(ctx context.Context, node Node, plan Plan) (*Record, []Snapshot, error) {
	r := &run{node: node, plan: plan, record: NewRecord(time.Now()), heard: make(chan struct{}), kubelet: semaphore.NewWeighted(int64(len(plan.Pods)))}
	watching, cancel := context.WithCancel(ctx)
	defer cancel()
	watch, watching := errgroup.WithContext(watching)
	watch.Go(func() error { return every(watching, plan.AskEvery, r.ask) })
	watch.Go(func() error { return every(watching, plan.ScrapeEvery, r.scrape) })
	err := r.churn(watching)
	if err == nil {
		err = r.settle(watching)
	}
	cancel()
	return r.record, r.snapshots, errors.Join(err, watch.Wait())
}

// run is a churn under way.
type run struct {
	node Node
	plan Plan

	// kubelet has a place for each pod that is deleted, and a restart takes them all: a pod
	// whose owner takes it away meanwhile is listed until a kubelet has ended it. That one
	// comes meanwhile is nothing special.
	kubelet *semaphore.Weighted

	mu sync.Mutex
	// All below are guarded by mu.
	record      *Record
	heard       chan struct{} // closed with each answer
	snapshots   []Snapshot
	made        int
	transitions int
}

// every does something at each tick until ctx is done.
func every(ctx context.Context, tick time.Duration, do func(context.Context) error) error {
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

func (r *run) ask(ctx context.Context) error {
	answer, err := r.node.Ask(ctx)
	if err != nil {
		return fmt.Errorf("ask the kubelet: %w", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.record.Heard(answer)
	close(r.heard)
	r.heard = make(chan struct{})
	return nil
}

func (r *run) scrape(ctx context.Context) error {
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

// until waits until the kubelet's answers, or the snapshots, are as they should be. is is
// called with mu held.
func (r *run) until(ctx context.Context, most time.Duration, what string, is func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	for {
		r.mu.Lock()
		ok, heard := is(), r.heard
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
func (r *run) churn(ctx context.Context) error {
	pods, ctx := errgroup.WithContext(ctx)
	for i, gpus := range r.plan.Pods {
		random := rand.New(rand.NewPCG(r.plan.Seed, uint64(i)))
		pods.Go(func() error {
			for r.more() {
				err := r.pod(ctx, random, gpus)
				if err == nil {
					err = pause(ctx, time.Duration(random.Int64N(int64(mostPause))))
				}
				if err != nil {
					return err
				}
			}
			return nil
		})
	}
	pods.Go(func() error { return r.restarts(ctx) })
	return pods.Wait()
}

// more tells whether there is to be another pod.
func (r *run) more() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.transitions < r.plan.Transitions
}

// restarts restarts the kubelet each time that so much of the churn is over.
func (r *run) restarts(ctx context.Context) error {
	random := rand.New(rand.NewPCG(r.plan.Seed, 1<<32))
	for n := range r.plan.Restarts {
		due := (2*n + 1) * r.plan.Transitions / (2 * r.plan.Restarts)
		err := r.until(ctx, forever, fmt.Sprintf("there were %d transitions", due), func() bool { return r.transitions >= due })
		if err == nil {
			err = r.restart(ctx, n, time.Duration(random.Int64N(int64(time.Second))))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (r *run) restart(ctx context.Context, n int, wait time.Duration) error {
	all := int64(len(r.plan.Pods))
	if err := r.kubelet.Acquire(ctx, all); err != nil {
		return err
	}
	defer r.kubelet.Release(all)
	if err := r.node.Restart(ctx, n, wait); err != nil {
		return fmt.Errorf("restart the kubelet: %w", err)
	}
	back := time.Now()
	return r.until(ctx, patience, "the restarted kubelet names all", func() bool { return r.record.Whole().After(back) })
}

// pod is the life of one pod.
func (r *run) pod(ctx context.Context, random *rand.Rand, gpus int) error {
	r.mu.Lock()
	r.made++
	name := fmt.Sprintf("churn-%d", r.made)
	full := r.node.PodName(name)
	r.record.Place(Namespace, full, time.Now())
	r.mu.Unlock()
	holds := func(n int) func() bool { return func() bool { return r.record.Devices(Namespace, full) == n } }

	if r.node.Put(ctx, name, gpus) == nil && r.until(ctx, admittedWithin, "it is listed", holds(gpus)) == nil {
		r.count()
		defer r.count()
		if err := pause(ctx, life(random)); err != nil {
			return err
		}
	}
	if err := r.kubelet.Acquire(ctx, 1); err != nil {
		return err
	}
	defer r.kubelet.Release(1)
	if err := r.node.Delete(name); err != nil {
		return fmt.Errorf("delete %s: %w", name, err)
	}
	return r.until(ctx, patience, "the kubelet lists "+name+" no more", holds(0))
}

// count counts a pod's beginning, or its end.
func (r *run) count() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.transitions++
}

// life is how long a pod lives: one in five is gone before anybody would look.
func life(random *rand.Rand) time.Duration {
	if random.IntN(5) == 0 {
		return 50*time.Millisecond + time.Duration(random.Int64N(int64(900*time.Millisecond)))
	}
	return time.Second + time.Duration(random.Int64N(int64(2*time.Second)))
}

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// settle waits for a snapshot that has all devices idle: all accounts are complete then. The
// last holder before a restart may stand for as long.
func (r *run) settle(ctx context.Context) error {
	var busy []string
	err := r.until(ctx, standsFor+patience, "all devices are idle", func() bool {
		if len(r.snapshots) == 0 {
			return false
		}
		busy = busy[:0]
		for device, d := range r.snapshots[len(r.snapshots)-1].Devices {
			if d.Hold != Idle {
				busy = append(busy, fmt.Sprintf("%s is %s %v", device, d.Hold, d.Holder))
			}
		}
		return len(busy) == 0
	})
	if err != nil {
		return fmt.Errorf("%w: %s", err, strings.Join(busy, ", "))
	}
	return nil
}
