package conformance_test

import (
	"context"
	"errors"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"github.com/podgauge/podgauge/internal/sim/kubelet"
	"github.com/podgauge/podgauge/test/helpers/background"
	"github.com/podgauge/podgauge/test/kubelet/conformance"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestKubelet runs the table against simulated kubelets: a kubelet for each
// case, and a kubelet for all cases.
func TestKubelet(t *testing.T) {
	for _, version := range []kubelet.Version{kubelet.V136, kubelet.V137} {
		start := func(t *testing.T) conformance.Kubelet {
			return simulatedKubelet{background.Kubelet(t, kubelet.Options{Version: version})}
		}
		t.Run(string(version)+"/new", func(t *testing.T) { conformance.RunEach(t, start) })
		t.Run(string(version), func(t *testing.T) {
			t.Parallel()
			conformance.Run(t, start(t))
		})
	}
}

// simulatedKubelet implements conformance.Kubelet.
type simulatedKubelet struct{ *kubelet.Kubelet }

// SupportsClaims implements conformance.ClaimSupport.
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
