package conformance

import (
	"context"
	"syscall"

	"github.com/podgauge/podgauge/internal/sim/kubelet"
)

// Kubelet is a kubelet under test, with a node. Pods are static, so that no API
// server is needed.
type Kubelet interface {
	// Dir returns the kubelet's folder in the mount namespace of this process.
	Dir() string
	// Version returns the expected minor version.
	Version() kubelet.Version
	// RunPod runs a static pod and returns the status after the start of all
	// containers, or after the pod has failed, without an error. Regular init
	// containers exit 0. Containers run until EndPod, and ignore SIGTERM if the
	// pod has a GracePeriod.
	RunPod(ctx context.Context, pod kubelet.PodSpec) (kubelet.PodStatus, error)
	// Pod returns the status of a pod, with the pod's full name.
	Pod(ctx context.Context, pod kubelet.PodSpec) (kubelet.PodStatus, error)
	// EndPod makes the containers of a pod with restartPolicy Never exit, and
	// returns at once.
	EndPod(ctx context.Context, pod kubelet.PodSpec) error
	// RemovePod removes a pod's manifest and returns at once.
	RemovePod(ctx context.Context, pod kubelet.PodSpec) error
	// RestartContainer kills a container and returns when the kubelet has
	// started the container again.
	RestartContainer(ctx context.Context, pod kubelet.PodSpec, container string) error
	// Restart ends the kubelet with a signal, calls whileDown, and returns when
	// the new kubelet serves.
	Restart(ctx context.Context, signal syscall.Signal, whileDown func()) error
}

// ClaimSupport is implemented by kubelets that support claims in RunPod. Claims
// need an API server and a DRA driver: Kubernetes rejects claims of static pods
// (pkg/apis/core/validation).
type ClaimSupport interface{ SupportsClaims() }
