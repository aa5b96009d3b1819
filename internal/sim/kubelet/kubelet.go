// Package kubelet is a kubelet small enough to hold in your head, on real unix sockets: the
// part of it that a device plugin and a PodResources client see, with the habits of the real
// one, the awkward ones too.
//
// A Kubelet lives in a folder that is laid out like /var/lib/kubelet:
//
//	device-plugins/kubelet.sock                 takes registrations (v1beta1.Registration)
//	device-plugins/kubelet_internal_checkpoint  what outlives a restart
//	pod-resources/kubelet.sock                  says who holds what (v1.PodResourcesLister)
//	pods-api/pods-api.sock                      says which pods there are (v1alpha1.Pods); 1.37
//
// It has no containers: RunPod takes a pod through admission and says that it runs. Everything
// up to there is real, the gRPC calls to the device plugin included. It aligns nothing to NUMA
// nodes (Topology Manager policy "none"), gives CPUs and memory away by number alone, and has
// no DRA drivers: what a claim has been given is said by the pod. Of the kubelet's other
// sockets it has none: no plugins_registry, no v1alpha1 of PodResources. What the Pods API says
// of a pod is a part of what a real one says: names, labels, phase and the containers' states,
// and nothing of its spec.
//
// What forces a line of code is named beside it: "manager.go:245" is a line below
// https://github.com/kubernetes/kubernetes/tree/v1.37.1/pkg/kubelet/cm/devicemanager, and what
// begins with pkg/ is one elsewhere in that tree. The package habits holds this kubelet and a
// real one against each other.
package kubelet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

// Version is the Kubernetes minor version whose habits a Kubelet has.
type Version string

// The versions that differ in what is simulated here.
const (
	V136 Version = "1.36" // and older: plugins are told apart by resource alone
	V137 Version = "1.37" // plugins are told apart by resource and socket
)

// Options of a Kubelet. Only Dir is required.
type Options struct {
	// Dir is the kubelet's folder; it is made if need be. The path of a unix socket ends at 107
	// bytes, so it must be short.
	Dir string
	// Version is V137 when empty.
	Version Version
	// Log takes a line for what the kubelet does. Nil is silence.
	Log *slog.Logger
	// Node is the ending of static pods' names; "node-a" when empty.
	Node string
	// Now is the clock of the five minutes for which a resource outlives its last plugin;
	// time.Now when nil.
	Now func() time.Time
	// RunningSince back-dates the pod-resources socket of the first start, so that this kubelet can
	// pose as one that has been up for long.
	RunningSince time.Time
	// EmptyListFor is how long List is empty after a start on a node that has pods: 60 to 120 ms
	// when zero, as measured; not at all when negative.
	EmptyListFor time.Duration
	// ExclusiveCPUs and Memory are the allocatable ones of GetAllocatableResources. The containers'
	// own are in their specs: no CPU or memory manager is simulated.
	ExclusiveCPUs []int64
	Memory        []MemoryBlock
	// APIPodsDelay is how much later than the static pods the API server's pods come: 20 ms when
	// zero, at once when negative.
	APIPodsDelay time.Duration
}

func (o Options) withDefaults() Options {
	if o.Dir == "" {
		panic("kubelet: Options.Dir is empty")
	}
	if o.Version == "" {
		o.Version = V137
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Node == "" {
		o.Node = "node-a"
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return o
}

// Kubelet is a simulated kubelet together with the pods of its node, which outlive its process.
// Its methods may be called from any goroutine, before, during and after Run.
type Kubelet struct {
	options  Options       // not written after New
	restarts chan *restart // from Restart to the life that it ends

	mu            sync.Mutex              // guards all below, and the life's own state
	changed       chan struct{}           // closed, and replaced, when any of it changes
	process       *kubeletProcess         // the kubelet's process; nil while there is none
	starts        int                     // how many there have been
	pods          []*pod                  // the node's, in the order of their arrival
	faults        Faults                  //
	registrations []Registration          // the latest, over all lives
	registering   int                     // how many are being answered
	lists         map[string]*listCounter // by resource, over all lives
	calls         map[string]int          // of PodResources and the Pods API, by method, over all lives
}

// New returns a Kubelet that does nothing until Run.
func New(o Options) *Kubelet {
	return &Kubelet{
		options:  o.withDefaults(),
		restarts: make(chan *restart),
		changed:  make(chan struct{}),
		lists:    map[string]*listCounter{},
		calls:    map[string]int{},
	}
}

// Dir is the kubelet's folder.
func (k *Kubelet) Dir() string { return k.options.Dir }

// Version is the version whose habits it has.
func (k *Kubelet) Version() Version { return k.options.Version }

// RegistrationSocket is where device plugins register.
func (k *Kubelet) RegistrationSocket() string {
	return filepath.Join(k.options.Dir, "device-plugins", "kubelet.sock")
}

// PodResourcesSocket is where PodResources answers.
func (k *Kubelet) PodResourcesSocket() string {
	return filepath.Join(k.options.Dir, "pod-resources", "kubelet.sock")
}

// Run is the kubelet's process, and those that follow it where Restart asks for one. When ctx
// is done it ends as by SIGTERM and returns nil: its sockets stay on disk and refuse, like a
// real one's. It may be called again then; the node still has its pods.
func (k *Kubelet) Run(ctx context.Context) error {
	var request *restart
	for {
		next, err := k.runProcess(ctx, request)
		if next == nil {
			return err
		}
		if next.options.While != nil {
			next.options.While()
		}
		request = next
	}
}

// runProcess is one process. It returns the restart that has ended it, or nil.
func (k *Kubelet) runProcess(ctx context.Context, request *restart) (*restart, error) {
	l, err := k.startProcess(ctx, request)
	if err != nil {
		request.finish(err)
		return nil, err
	}
	next, err := l.serveAll()
	k.update(func() { k.process = nil })
	request.finish(errors.Join(errors.New("the kubelet ended before it served"), err)) // heard only where it is so
	if err != nil {
		next.finish(err)
		return nil, err
	}
	return next, nil
}

// RestartOptions say how a kubelet ends and comes back. The zero value is a quick one by
// SIGTERM.
type RestartOptions struct {
	// Signal is SIGTERM when zero. SIGKILL cuts the connections instead of closing them.
	Signal syscall.Signal
	// While is called while no kubelet runs. It must not wait for the kubelet.
	While func()
}

// Restart ends the kubelet and returns when its successor serves both sockets.
func (k *Kubelet) Restart(ctx context.Context, o RestartOptions) error {
	r := &restart{options: o, done: make(chan error, 1)}
	select {
	case k.restarts <- r:
	case <-ctx.Done():
		return fmt.Errorf("wait for a kubelet to restart: %w", context.Cause(ctx))
	}
	select {
	case err := <-r.done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("wait for the restarted kubelet: %w", context.Cause(ctx))
	}
}

// restart is a call of Restart.
type restart struct {
	options RestartOptions
	done    chan error // takes one answer
}

// finish tells Restart's caller how it went. Only the first answer is heard, and nil means that
// nobody asked.
func (r *restart) finish(err error) {
	if r == nil {
		return
	}
	select {
	case r.done <- err:
	default:
	}
}

// update changes what mu guards and says so.
func (k *Kubelet) update(change func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	change()
	k.notify()
}

// notify wakes all who wait for a change; mu is held.
func (k *Kubelet) notify() {
	if k.process != nil {
		k.process.announcePods()
	}
	close(k.changed)
	k.changed = make(chan struct{})
}

// waitUntil calls done, with mu held, now and after each change, until it returns true.
func (k *Kubelet) waitUntil(ctx context.Context, done func() bool) error {
	for {
		k.mu.Lock()
		ok, changed := done(), k.changed
		k.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
