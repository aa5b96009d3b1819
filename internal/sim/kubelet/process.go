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

// kubeletProcess is one process of the kubelet. What it knows goes with it, apart from the checkpoint on
// disk and the node's pods.
type kubeletProcess struct {
	k       *Kubelet
	request *restart        // nil where nobody waits for it to serve
	tasks   *errgroup.Group // owns every goroutine of this life
	ctx     context.Context // done when it ends; a Register call starts what outlives the call

	// All below are guarded by k.mu.
	deviceManager
	podWatchers
	bound     bool            // its registration socket exists
	serving   bool            // and answers
	knownPods map[*pod]bool   // the pods that it has learnt of from their source
	conns     []*pluginClient // every plugin that it has dialled
}

// startProcess makes the new process known. It reads the checkpoint before anybody can ask: an answer
// of List may lack a pod, but must not have it without the devices that it holds.
func (k *Kubelet) startProcess(ctx context.Context, request *restart) (*kubeletProcess, error) {
	if err := os.MkdirAll(filepath.Dir(k.RegistrationSocket()), 0o755); err != nil {
		return nil, fmt.Errorf("make the socket folder: %w", err)
	}
	l := &kubeletProcess{k: k, request: request, knownPods: map[*pod]bool{}, deviceManager: newManager(k.options.Version, k.options.Now)}
	l.tasks, l.ctx = errgroup.WithContext(ctx)
	l.readCheckpoint()

	k.mu.Lock()
	defer k.mu.Unlock()
	if k.process != nil {
		panic("kubelet: Run is called while it runs")
	}
	k.process = l
	k.starts++
	k.notify()
	return l, nil
}

// errSignaled ends a life by way of its errgroup.
var errSignaled = errors.New("ended by a signal")

// serveAll starts the goroutines of the life as siblings: any of them that fails ends them all. It
// returns when every goroutine of the life has ended, with the restart that has ended it, if
// one has.
func (kp *kubeletProcess) serveAll() (next *restart, err error) {
	hadPods := kp.k.hasPods()
	listening, pods := make(chan struct{}), make(chan struct{})
	kp.tasks.Go(func() error { return kp.servePodResources(listening) })
	kp.tasks.Go(func() error { return kp.servePodsAPI(pods) })
	kp.tasks.Go(func() error { return kp.serveRegistration(listening, pods) })
	kp.tasks.Go(func() error { return kp.syncPods(hadPods) })
	kp.tasks.Go(func() error {
		select {
		case next = <-kp.k.restarts:
			kp.simulateSignal(next.options.Signal)
			return errSignaled
		case <-kp.ctx.Done():
			return nil
		}
	})
	if err = kp.tasks.Wait(); errors.Is(err, errSignaled) {
		err = nil
	}
	kp.closeConns()
	kp.k.options.Log.Info("kubelet ended", "error", err)
	return next, err
}

// simulateSignal is what distinguishes SIGKILL: plugins see their connection break before anybody says
// goodbye.
func (kp *kubeletProcess) simulateSignal(signal syscall.Signal) {
	if signal != syscall.SIGKILL {
		return
	}
	kp.k.mu.Lock()
	defer kp.k.mu.Unlock()
	for _, c := range kp.conns {
		c.cutConnections()
	}
}

// closeConns closes the connections to plugins. The kubelet has left some of them open until its
// end: one whose registration failed after the dial is never closed
// (plugin/v1beta1/handler.go:77).
func (kp *kubeletProcess) closeConns() {
	kp.k.mu.Lock()
	conns := kp.conns
	kp.k.mu.Unlock()
	for _, c := range conns {
		_ = c.conn.Close()
	}
}

// servePodResources closes listening when the socket answers.
func (kp *kubeletProcess) servePodResources(listening chan<- struct{}) error {
	listener, err := listenPodResources(kp.k.PodResourcesSocket())
	if err != nil {
		return fmt.Errorf("serve PodResources: %w", err)
	}
	kp.k.mu.Lock()
	first := kp.k.starts == 1
	kp.k.mu.Unlock()
	if since := kp.k.options.RunningSince; first && !since.IsZero() {
		if err := os.Chtimes(kp.k.PodResourcesSocket(), since, since); err != nil {
			_ = listener.Close()
			return fmt.Errorf("back-date the PodResources socket: %w", err)
		}
	}
	close(listening)
	server := grpc.NewServer(grpc.WaitForHandlers(true), grpc.UnaryInterceptor(kp.countCall))
	podresources.RegisterPodResourcesListerServer(server, &lister{process: kp})
	return kp.serve(server, listener)
}

// serveRegistration begins when PodResources answers, as in a real start, where up to 40 ms lie
// between the two: one that sees PodResources come back cannot conclude that it can register.
func (kp *kubeletProcess) serveRegistration(listening, pods <-chan struct{}) error {
	if errors.Join(waitRelease(kp.ctx, listening), waitRelease(kp.ctx, pods)) != nil {
		return nil
	}
	if kp.request != nil && sleep(kp.ctx, rand.N(40*time.Millisecond)) != nil {
		return nil
	}
	socket, err := kp.bindRegistration()
	if err != nil {
		return fmt.Errorf("serve registrations: %w", err)
	}
	defer socket.close()
	kp.k.update(func() { kp.bound = true })
	if waitRelease(kp.ctx, kp.k.currentFaults().HoldListen) != nil {
		return nil
	}
	listener, err := socket.listen()
	if err != nil {
		return fmt.Errorf("serve registrations: %w", err)
	}
	kp.k.update(func() { kp.serving = true })
	kp.k.options.Log.Info("kubelet serves", "socket", kp.k.RegistrationSocket())
	kp.request.finish(nil)
	server := grpc.NewServer(grpc.WaitForHandlers(true))
	pluginapi.RegisterRegistrationServer(server, &registrar{process: kp})
	return kp.serve(server, listener)
}

// serve stops hard and not gracefully, since a kubelet that ends does not wait for its callers.
// It returns when the life has ended and every handler with it.
func (kp *kubeletProcess) serve(server *grpc.Server, listener net.Listener) error {
	defer context.AfterFunc(kp.ctx, server.Stop)()
	if err := server.Serve(listener); err != nil && kp.ctx.Err() == nil {
		return fmt.Errorf("serve %s: %w", listener.Addr(), err)
	}
	return nil
}

// sleep is a sleep that the end of ctx cuts short, with an error.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
