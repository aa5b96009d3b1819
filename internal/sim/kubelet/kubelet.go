// Package kubelet simulates the parts of a kubelet that a device plugin and a
// PodResources client see, on real unix sockets.
//
// A Kubelet lives in a folder with the layout of /var/lib/kubelet:
//
//	device-plugins/kubelet.sock                 v1beta1.Registration
//	device-plugins/kubelet_internal_checkpoint  allocations, for the next process
//	pod-resources/kubelet.sock                  v1.PodResourcesLister
//	pods-api/pods-api.sock                      v1alpha1.Pods, since 1.37
//
// Pods have no containers: RunPod admits a pod, with real gRPC calls to the
// device plugin, and reports the pod as running. There is no Topology Manager,
// CPU manager, memory manager, rate limit or DRA driver: specs carry the rows
// that List returns for CPUs, memory and claims. plugins_registry and v1alpha1
// of PodResources are missing.
//
// Comments name the source of a behavior: "manager.go:245" is a line below
// https://github.com/kubernetes/kubernetes/tree/v1.37.1/pkg/kubelet/cm/devicemanager,
// and a path with pkg/ is relative to the root of the same tree. Package
// conformance compares this kubelet with real kubelets.
package kubelet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
	podsapi "k8s.io/kubelet/pkg/apis/pods/v1alpha1"

	"github.com/podgauge/podgauge/internal/retry"
)

// Kubelet is a simulated kubelet with the pods of the node, which outlive
// kubelet processes. All methods are safe for concurrent use, before, during
// and after Run.
type Kubelet struct {
	node     nodeState
	restarts chan func() // from Restart to the running process: called while no process runs

	// node.mu guards all below.
	process *kubeletProcess // nil if not running
	starts  int
}

// New returns a Kubelet that Run starts.
func New(o Options) *Kubelet {
	if o.Dir == "" {
		panic("kubelet: Options.Dir is empty")
	}
	o.Version = cmp.Or(o.Version, V137)
	if o.Now == nil {
		o.Now = time.Now
	}
	return &Kubelet{node: nodeState{
		options: o, lists: map[string]listCounter{}, calls: map[string]int{},
		watchers: podWatchers{},
	}, restarts: make(chan func())}
}

// Dir returns the kubelet's folder.
func (k *Kubelet) Dir() string { return k.node.options.Dir }

// Version returns the simulated version.
func (k *Kubelet) Version() Version { return k.node.options.Version }

// RegistrationSocket returns the path of the socket for device plugins.
func (k *Kubelet) RegistrationSocket() string {
	return filepath.Join(k.Dir(), "device-plugins", "kubelet.sock")
}

// PodResourcesSocket returns the path of the PodResources socket.
func (k *Kubelet) PodResourcesSocket() string {
	return filepath.Join(k.Dir(), "pod-resources", "kubelet.sock")
}

// PodsSocket returns the path of the Pods API's socket (since 1.37).
func (k *Kubelet) PodsSocket() string { return filepath.Join(k.Dir(), "pods-api", "pods-api.sock") }

// Run runs a kubelet process, and a new process for each Restart. When ctx is
// done the process ends as by SIGTERM, and Run returns nil; the sockets stay on
// disk and refuse connections. Run may be called again: the node keeps the
// pods.
func (k *Kubelet) Run(ctx context.Context) error {
	for {
		while, err := k.runProcess(ctx)
		if while == nil || err != nil {
			return err
		}
		while()
	}
}

// Restart ends the process as by SIGTERM, calls while, which must not wait for
// the kubelet and may be nil, and returns when the successor serves.
func (k *Kubelet) Restart(ctx context.Context, while func()) error {
	if while == nil {
		while = func() {}
	}
	var starts int
	k.node.locked(func() { starts = k.starts })
	select {
	case k.restarts <- while:
	case <-ctx.Done():
		return fmt.Errorf("wait for a kubelet to restart: %w", context.Cause(ctx))
	}
	return k.node.waitUntil(ctx, func() (done bool) {
		k.node.locked(func() { done = k.starts > starts && k.process != nil && k.process.serving })
		return done
	})
}

// errSignaled ends a process through the errgroup.
var errSignaled = errors.New("ended by a signal")

// runProcess runs a process until ctx is done, an error, or a restart. The
// result is the function of the restart.
func (k *Kubelet) runProcess(ctx context.Context) (while func(), err error) {
	kp, restarted, err := k.startProcess(ctx)
	if err != nil {
		return nil, err
	}
	kp.tasks.Go(func() error { return k.serve(kp) })
	kp.tasks.Go(func() error { return kp.syncPods(restarted) })
	kp.tasks.Go(func() error {
		select {
		case while = <-k.restarts:
			return errSignaled
		case <-kp.ctx.Done():
			return nil
		}
	})
	if err = kp.tasks.Wait(); errors.Is(err, errSignaled) {
		err = nil
	}
	kp.update(func() {
		for _, c := range kp.conns { // the real kubelet, too, keeps failed connections (plugin/v1beta1/handler.go:77)
			_ = c.conn.Close()
		}
		for _, p := range kp.pods {
			p.known = false
		}
		k.process = nil
	})
	return while, err
}

// startProcess publishes a new process. The checkpoint is read first: List may
// lack a pod, and never lists a pod without devices.
func (k *Kubelet) startProcess(ctx context.Context) (kp *kubeletProcess, restarted bool, err error) {
	kp = &kubeletProcess{nodeState: &k.node, dir: filepath.Dir(k.RegistrationSocket())}
	kp.deviceManager = newDeviceManager(kp.options.Version, kp.options.Now)
	if err := os.MkdirAll(kp.dir, 0o755); err != nil {
		return nil, false, fmt.Errorf("create socket folder: %w", err)
	}
	kp.tasks, kp.ctx = errgroup.WithContext(ctx)
	kp.readCheckpoint()
	kp.update(func() {
		if k.process != nil {
			panic("kubelet: Run is running already")
		}
		k.process = kp
		k.starts++
		restarted = len(kp.pods) > 0
	})
	return kp, restarted, nil
}

// serve serves all sockets. Registration comes last, after up to 40 ms, as in a
// real start: a new PodResources socket does not prove that plugins can
// register.
func (k *Kubelet) serve(kp *kubeletProcess) error {
	if err := kp.serve(k.PodResourcesSocket(),
		func(s *grpc.Server) { podresources.RegisterPodResourcesListerServer(s, kp) }); err != nil {
		return err
	}
	var isFirst bool
	k.node.locked(func() { isFirst = k.starts == 1 })
	if since := kp.options.RunningSince; isFirst && !since.IsZero() {
		if err := os.Chtimes(k.PodResourcesSocket(), since, since); err != nil {
			return fmt.Errorf("back-date the PodResources socket: %w", err)
		}
	}
	if kp.options.Version != V136 {
		if err := kp.serve(k.PodsSocket(), func(s *grpc.Server) { podsapi.RegisterPodsServer(s, kp) }); err != nil {
			return err
		}
	}
	if !isFirst && retry.Sleep(kp.ctx, rand.N(40*time.Millisecond)) != nil {
		return nil
	}
	err := removeSockets(kp.dir)
	if err == nil {
		err = kp.serve(k.RegistrationSocket(), func(s *grpc.Server) { pluginapi.RegisterRegistrationServer(s, kp) })
	}
	kp.update(func() { kp.serving = err == nil })
	return err
}
