package conformance

import (
	"context"
	"errors"
	"net/rpc"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/sim/kubelet"
)

// subject is a kubelet under test, with a node. Pods are static, so that no API server is needed.
type subject interface {
	// Dir returns the kubelet's folder in the mount namespace of this process.
	Dir() string
	// Version returns the expected minor version.
	Version() kubelet.Version
	// RunPod runs a static pod and returns the status after the start of all containers, or after the pod has failed, without an error.
	// Regular init containers exit 0. Containers run until EndPod, and ignore SIGTERM if the pod has a GracePeriod.
	RunPod(ctx context.Context, pod kubelet.PodSpec) (kubelet.PodStatus, error)
	// Pod returns the status of a pod, with the pod's full name.
	Pod(ctx context.Context, pod kubelet.PodSpec) (kubelet.PodStatus, error)
	// EndPod makes the containers of a pod with restartPolicy Never exit, and returns at once.
	EndPod(ctx context.Context, pod kubelet.PodSpec) error
	// RemovePod removes a pod's manifest and returns at once.
	RemovePod(ctx context.Context, pod kubelet.PodSpec) error
	// RestartContainer kills a container and returns when the kubelet has started the container again.
	RestartContainer(ctx context.Context, pod kubelet.PodSpec, container string) error
	// Restart ends the kubelet with a signal, calls whileDown, and returns when the new kubelet serves.
	Restart(ctx context.Context, signal syscall.Signal, whileDown func()) error
}

// claimSupport is a subject that supports claims in RunPod. Claims need an API server and a DRA driver: Kubernetes rejects claims of
// static pods (pkg/apis/core/validation).
type claimSupport interface{ SupportsClaims() }

// simulatedKubelet is a kubelet of internal/sim/kubelet as a subject.
type simulatedKubelet struct{ *kubelet.Kubelet }

// startSimulatedKubelet runs a kubelet until the test ends.
func startSimulatedKubelet(t *testing.T, version kubelet.Version) subject {
	t.Helper()
	dir, err := os.MkdirTemp("", "kubelet") // short enough for sockets, unlike t.TempDir
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	k := kubelet.New(kubelet.Options{Dir: dir, Version: version})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- k.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	if err := k.Wait(t.Context(), func(s kubelet.KubeletState) bool { return s.Serving }); err != nil {
		t.Fatal(err)
	}
	return simulatedKubelet{k}
}

// SupportsClaims implements claimSupport.
func (k simulatedKubelet) SupportsClaims() {}

func (k simulatedKubelet) RunPod(ctx context.Context, p kubelet.PodSpec) (kubelet.PodStatus, error) {
	var rejected *kubelet.AdmissionError
	if err := k.Kubelet.RunPod(ctx, p); err != nil && !errors.As(err, &rejected) {
		return kubelet.PodStatus{}, err
	}
	return k.Kubelet.Pod(p)
}

func (k simulatedKubelet) Pod(_ context.Context, p kubelet.PodSpec) (kubelet.PodStatus, error) {
	return k.Kubelet.Pod(p)
}

func (k simulatedKubelet) EndPod(_ context.Context, p kubelet.PodSpec) error {
	return k.Kubelet.EndPod(p)
}

func (k simulatedKubelet) RemovePod(_ context.Context, p kubelet.PodSpec) error {
	return k.DeletePod(p)
}

func (k simulatedKubelet) Restart(ctx context.Context, _ syscall.Signal, whileDown func()) error {
	return k.Kubelet.Restart(ctx, whileDown)
}

// realKubelet is a subject of test/e2e, called over a socket: test/e2e is a separate module and cannot import the table of this package.
// conformance_test.go in test/e2e has the same request type.
type realKubelet struct {
	client  *rpc.Client
	dir     string
	version kubelet.Version
}

type realKubeletRequest struct {
	Pod       kubelet.PodSpec
	Container string
	Signal    syscall.Signal
	Deadline  time.Time
}

// connectRealKubelet connects to the socket of the environment's PODGAUGE_KUBELET.
func connectRealKubelet(t *testing.T) subject {
	t.Helper()
	socket := os.Getenv("PODGAUGE_KUBELET")
	if socket == "" {
		t.Skip("make e2e runs it")
	}
	client, err := rpc.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	k := realKubelet{client: client}
	if err := errors.Join(k.call(t.Context(), "Dir", realKubeletRequest{}, &k.dir), k.call(t.Context(), "Version", realKubeletRequest{}, &k.version)); err != nil {
		t.Fatal(err)
	}
	return k
}

func (k realKubelet) call(ctx context.Context, method string, request realKubeletRequest, reply any) error {
	request.Deadline, _ = ctx.Deadline()
	select {
	case call := <-k.client.Go("Kubelet."+method, request, reply, nil).Done:
		return call.Error
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (k realKubelet) status(ctx context.Context, method string, p kubelet.PodSpec) (kubelet.PodStatus, error) {
	status := new(kubelet.PodStatus)
	if err := k.call(ctx, method, realKubeletRequest{Pod: p}, status); err != nil {
		return kubelet.PodStatus{}, err
	}
	return *status, nil
}

func (k realKubelet) Dir() string { return k.dir }

func (k realKubelet) Version() kubelet.Version { return k.version }

func (k realKubelet) RunPod(ctx context.Context, p kubelet.PodSpec) (kubelet.PodStatus, error) {
	return k.status(ctx, "RunPod", p)
}

func (k realKubelet) Pod(ctx context.Context, p kubelet.PodSpec) (kubelet.PodStatus, error) {
	return k.status(ctx, "Pod", p)
}

func (k realKubelet) EndPod(ctx context.Context, p kubelet.PodSpec) error {
	return k.call(ctx, "EndPod", realKubeletRequest{Pod: p}, new(bool))
}

func (k realKubelet) RemovePod(ctx context.Context, p kubelet.PodSpec) error {
	return k.call(ctx, "RemovePod", realKubeletRequest{Pod: p}, new(bool))
}

func (k realKubelet) RestartContainer(ctx context.Context, p kubelet.PodSpec, container string) error {
	return k.call(ctx, "RestartContainer", realKubeletRequest{Pod: p, Container: container}, new(bool))
}

func (k realKubelet) Restart(ctx context.Context, signal syscall.Signal, whileDown func()) error {
	if err := k.call(ctx, "Stop", realKubeletRequest{Signal: signal}, new(bool)); err != nil {
		return err
	}
	whileDown()
	return k.call(ctx, "Start", realKubeletRequest{}, new(bool))
}
