// Package nodes finds podgauge's pods, follows podgauge's API on each node, and
// calls Reporters with the newest state of each node.
//
// A node has a connection, a goroutine that reads it, and a goroutine for each
// Reporter, so a node that hangs, or a write that fails, delays no other.
package nodes

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/podgauge/podgauge/internal/loglimit"
	"github.com/podgauge/podgauge/internal/pubsub"
	"github.com/podgauge/podgauge/internal/retry"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/tools/cache"
)

const (
	// outageInterval is the interval of messages about the same cause.
	outageInterval = time.Minute
	// minGoneDelay and maxGoneDelay are the delays of the question whether a
	// node without a pod is gone. An update of the pod takes less.
	minGoneDelay, maxGoneDelay = time.Minute, 30 * time.Minute
	requestTimeout             = 30 * time.Second
)

// Nodes follows podgauge on all nodes.
type Nodes struct {
	o       Options
	outages *outages
	changes chan struct{} // pods changed, or a node was forgotten
	listing atomic.Bool   // Run does not know the pods yet

	mu      sync.Mutex
	entries map[string]*entry // by node; guarded by mu, written by Run's goroutine
}

// New returns Nodes.
func New(o Options) *Nodes {
	return &Nodes{
		o: o, outages: &outages{loglimit.New[string](outageInterval), o.Log},
		changes: make(chan struct{}, 1), entries: map[string]*entry{},
	}
}

// Run follows podgauge's pods until ctx is done.
func (n *Nodes) Run(ctx context.Context) error {
	n.listing.Store(true)
	var running sync.WaitGroup
	defer running.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	informer := coreinformers.NewFilteredPodInformer(n.o.Kubernetes, n.o.Namespace, 0, cache.Indexers{},
		func(o *metav1.ListOptions) { o.LabelSelector = n.o.Selector })
	if err := informer.SetTransform(trim); err != nil {
		return err
	}
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { pubsub.Notify(n.changes) },
		UpdateFunc: func(any, any) { pubsub.Notify(n.changes) },
		DeleteFunc: func(any) { pubsub.Notify(n.changes) },
	}); err != nil {
		return err
	}
	running.Go(func() { informer.RunWithContext(ctx) })
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		return nil
	}
	n.listing.Store(false)
	for ctx.Err() == nil {
		n.update(ctx, &running, n.o.targets(informer.GetStore().List()))
		select {
		case <-ctx.Done():
		case <-n.changes:
			_ = retry.Sleep(ctx, changeInterval) // collects changes
		}
	}
	return nil
}

// Ready returns an error while Run does not know the pods of podgauge.
func (n *Nodes) Ready() error {
	if n.listing.Load() {
		return errors.New("the pods of podgauge are not yet known")
	}
	return nil
}

// Count returns the numbers of nodes with a current response, and of the other
// nodes with a pod of podgauge.
func (n *Nodes) Count() (followed, unreachable int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, e := range n.entries {
		switch s, _ := e.state.Get(); {
		case s.reachable:
			followed++
		case e.target != target{}:
			unreachable++
		}
	}
	return followed, unreachable
}

// update follows the pods of targets and no other.
func (n *Nodes) update(ctx context.Context, running *sync.WaitGroup, targets map[string]target) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for name := range targets {
		if n.entries[name] == nil {
			n.entries[name] = n.add(ctx, running, name)
		}
	}
	for name, e := range n.entries {
		if pubsub.IsClosed(e.done) {
			e.stop()
			delete(n.entries, name)
			if targets[name] != (target{}) { // the node came back
				pubsub.Notify(n.changes)
			}
			continue
		}
		if s, _ := e.state.Get(); s.gone || e.target == targets[name] {
			continue
		}
		e.stop()
		if s, _ := e.state.Get(); s.gone {
			e.stop = func() {}
			continue
		}
		t := targets[name]
		followCtx, cancel := context.WithCancel(ctx)
		ended := make(chan struct{})
		e.target, e.stop = t, func() { cancel(); <-ended }
		running.Go(func() {
			defer close(ended)
			if t == (target{}) {
				n.awaitGone(followCtx, e)
			} else {
				n.o.follow(followCtx, e, t)
			}
		})
	}
}

// add starts the Reporters of a node.
func (n *Nodes) add(ctx context.Context, running *sync.WaitGroup, name string) *entry {
	e := &entry{name: name, done: make(chan struct{}), stop: func() {}}
	running.Go(func() {
		var reporting sync.WaitGroup
		for _, r := range n.o.Reporters {
			reporting.Go(func() { e.report(ctx, r, n.outages) })
		}
		reporting.Wait()
		close(e.done)
		pubsub.Notify(n.changes)
	})
	return e
}

// awaitGone asks whether a node without a pod still exists, until it is gone. A
// pod may return at any time, so the state of the Reporters is kept until then.
func (n *Nodes) awaitGone(ctx context.Context, e *entry) {
	backoff := retry.Backoff{Min: minGoneDelay, Max: maxGoneDelay}
	for retry.Sleep(ctx, retry.Spread(backoff.Next())) == nil {
		requestCtx, cancel := context.WithTimeout(ctx, requestTimeout)
		_, err := n.o.Kubernetes.CoreV1().Nodes().Get(requestCtx, e.name, metav1.GetOptions{})
		cancel()
		switch {
		case ctx.Err() != nil:
		case apierrors.IsNotFound(err):
			e.state.Set(state{gone: true})
			return
		case err != nil && n.outages.Allow("node", time.Now()):
			n.o.Log.Warn("cannot find out whether a node is gone", "node", e.name, "err", err)
		}
	}
}
