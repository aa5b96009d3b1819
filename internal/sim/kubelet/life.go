package kubelet

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// life is one process of the kubelet. What it knows goes with it, apart from the checkpoint on
// disk and the node's pods.
type life struct {
	k     *Kubelet
	why   *restart        // nil where nobody waits for it to serve
	tasks *errgroup.Group // owns every goroutine of this life
	ctx   context.Context // done when it ends; a Register call starts what outlives the call
	limit bucket
	old   os.FileInfo // the registration socket of the life before; nil when there was none

	// All below are guarded by k.mu.
	manager
	podsAPI
	bound   bool          // its registration socket exists
	serving bool          // and answers
	read    map[*pod]bool // the pods that it has learnt of from their source
	conns   []*client     // every plugin that it has dialled
}

// begin makes the new process known. It reads the checkpoint before anybody can ask: an answer
// of List may lack a pod, but must not have it without the devices that it holds.
func (k *Kubelet) begin(ctx context.Context, why *restart) (*life, error) {
	if err := os.MkdirAll(filepath.Dir(k.RegistrationSocket()), 0o755); err != nil {
		return nil, fmt.Errorf("make the socket folder: %w", err)
	}
	l := &life{k: k, why: why, read: map[*pod]bool{}, manager: newManager(k.options.Version, k.options.Now)}
	l.tasks, l.ctx = errgroup.WithContext(ctx)
	l.limit.fill()
	l.old, _ = os.Lstat(k.RegistrationSocket())
	l.readCheckpoint()

	k.mu.Lock()
	defer k.mu.Unlock()
	if k.life != nil {
		panic("kubelet: Run is called while it runs")
	}
	k.life = l
	k.lives++
	if why != nil && why.options.Reboot {
		k.endContainers()
	}
	k.tell()
	return l, nil
}

// errSignal ends a life by way of its errgroup.
var errSignal = errors.New("ended by a signal")

// run starts the goroutines of the life as siblings: any of them that fails ends them all. It
// returns when every goroutine of the life has ended, with the restart that has ended it, if
// one has.
func (l *life) run() (next *restart, err error) {
	hadPods := l.k.hasPods()
	listening, pods := make(chan struct{}), make(chan struct{})
	l.tasks.Go(func() error { return l.servePodResources(listening) })
	l.tasks.Go(func() error { return l.servePods(pods) })
	l.tasks.Go(func() error { return l.serveRegistration(listening, pods) })
	l.tasks.Go(func() error { return l.syncPods(hadPods) })
	l.tasks.Go(func() error {
		select {
		case next = <-l.k.restarts:
			l.die(next.options.Signal)
			return errSignal
		case <-l.ctx.Done():
			return nil
		}
	})
	if err = l.tasks.Wait(); errors.Is(err, errSignal) {
		err = nil
	}
	l.hangUp()
	l.k.options.Log.Info("kubelet ended", "error", err)
	return next, err
}

// die is what distinguishes SIGKILL: plugins see their connection break before anybody says
// goodbye.
func (l *life) die(signal syscall.Signal) {
	if signal != syscall.SIGKILL {
		return
	}
	l.k.mu.Lock()
	defer l.k.mu.Unlock()
	for _, c := range l.conns {
		c.cut()
	}
}

// hangUp closes the connections to plugins. The kubelet has left some of them open until its
// end: one whose registration failed after the dial is never closed
// (plugin/v1beta1/handler.go:77).
func (l *life) hangUp() {
	l.k.mu.Lock()
	conns := l.conns
	l.k.mu.Unlock()
	for _, c := range conns {
		_ = c.conn.Close()
	}
}

// servePodResources closes listening when the socket answers.
func (l *life) servePodResources(listening chan<- struct{}) error {
	listener, err := listenPodResources(l.k.PodResourcesSocket())
	if err != nil {
		return fmt.Errorf("serve PodResources: %w", err)
	}
	l.k.mu.Lock()
	first := l.k.lives == 1
	l.k.mu.Unlock()
	if since := l.k.options.Since; first && !since.IsZero() {
		if err := os.Chtimes(l.k.PodResourcesSocket(), since, since); err != nil {
			_ = listener.Close()
			return fmt.Errorf("back-date the PodResources socket: %w", err)
		}
	}
	close(listening)
	server := grpc.NewServer(grpc.WaitForHandlers(true), grpc.UnaryInterceptor(l.rateLimit))
	podresources.RegisterPodResourcesListerServer(server, &lister{l: l})
	return l.serve(server, listener)
}

// serveRegistration begins when PodResources answers, as in a real start, where up to 40 ms lie
// between the two: one that sees PodResources come back cannot conclude that it can register.
func (l *life) serveRegistration(listening, pods <-chan struct{}) error {
	if errors.Join(pass(l.ctx, listening), pass(l.ctx, pods)) != nil {
		return nil
	}
	if l.why != nil && pause(l.ctx, rand.N(40*time.Millisecond)) != nil {
		return nil
	}
	socket, err := l.bindRegistration()
	if err != nil {
		return fmt.Errorf("serve registrations: %w", err)
	}
	defer socket.close()
	l.k.update(func() { l.bound = true })
	if pass(l.ctx, l.k.troubles().HoldListen) != nil {
		return nil
	}
	listener, err := socket.listen()
	if err != nil {
		return fmt.Errorf("serve registrations: %w", err)
	}
	l.k.update(func() { l.serving = true })
	l.k.options.Log.Info("kubelet serves", "socket", l.k.RegistrationSocket())
	if l.wantsSameInode() && !sameInode(l.old, l.k.RegistrationSocket()) {
		l.why.answer(ErrNewInode)
	}
	l.why.answer(nil)
	server := grpc.NewServer(grpc.WaitForHandlers(true))
	pluginapi.RegisterRegistrationServer(server, &registrar{l: l})
	return l.serve(server, listener)
}

// serve stops hard and not gracefully, since a kubelet that ends does not wait for its callers.
// It returns when the life has ended and every handler with it.
func (l *life) serve(server *grpc.Server, listener net.Listener) error {
	defer context.AfterFunc(l.ctx, server.Stop)()
	if err := server.Serve(listener); err != nil && l.ctx.Err() == nil {
		return fmt.Errorf("serve %s: %w", listener.Addr(), err)
	}
	return nil
}

// pause is a sleep that the end of ctx cuts short, with an error.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
