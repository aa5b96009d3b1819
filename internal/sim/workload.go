package sim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/sim/kubelet"
)

// The pace of the random workload.
const (
	initialPods       = 4
	targetPods        = 5 // mean
	maxGPUsPerPod     = 2
	podInterval       = 4 * time.Second // between starts and ends of pods
	podGracePeriod    = time.Second
	firstFailureDelay = 15 * time.Second
	failureDuration   = 20 * time.Second
	failureInterval   = 45 * time.Second
)

// workload starts and ends pods, and makes the GPUs fail and recover in turn.
type workload struct {
	*VirtualNode
	pods    []kubelet.PodSpec
	created int
	failed  device.ID // empty while no GPU has failed
	fails   int
}

func (w *workload) run(ctx context.Context) {
	for range initialPods {
		w.start(ctx)
	}
	pods := time.NewTicker(podInterval)
	defer pods.Stop()
	failure := time.NewTimer(firstFailureDelay)
	defer failure.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-pods.C:
			if len(w.pods) > 0 && rand.IntN(2*targetPods) < len(w.pods) {
				w.stop()
			} else {
				w.start(ctx)
			}
		case <-failure.C:
			failure.Reset(w.toggleFailure())
		}
	}
}

// toggleFailure makes the next GPU fail, or resets the failed GPU, and returns
// the time until the next call. The GPUs take turns: repeated failures of the
// same GPU delay recovery.
func (w *workload) toggleFailure() time.Duration {
	if w.failed == "" {
		ids := w.Machine.AllocatableIDs()
		w.failed = ids[w.fails%len(ids)]
		w.fails++
		w.log.Info("simulated: a GPU fails", "device", w.failed)
		w.Machine.Fail(w.failed, "xid 95") // until a reset
		return failureDuration
	}
	w.log.Info("simulated: GPU was reset", "device", w.failed)
	w.Machine.ResetGPU(w.failed)
	w.failed = ""
	return failureInterval
}

// workloadNames are typical names of GPU workloads.
var workloadNames = []string{"train-llama", "serve-embeddings", "notebook", "finetune", "batch-inference"}

func (w *workload) start(ctx context.Context) {
	name := workloadNames[w.created%len(workloadNames)]
	w.created++
	containers := []kubelet.ContainerSpec{{
		Name:   "main",
		Limits: map[string]int{gpuResource: 1 + w.created%maxGPUsPerPod},
	}}
	if w.created%3 == 0 {
		containers = []kubelet.ContainerSpec{
			{Name: "trainer", Limits: map[string]int{gpuResource: 1}},
			{Name: "evaluator", Limits: map[string]int{gpuResource: 1}},
			{Name: "logger"},
		}
	}
	p := kubelet.PodSpec{
		Namespace: "team-" + string(rune('a'+w.created%3)), Name: fmt.Sprintf("%s-%d", name, w.created),
		Labels: map[string]string{"app.kubernetes.io/name": name}, Containers: containers, GracePeriod: podGracePeriod,
	}
	if len(containers) == 1 {
		containers[0].Claims = []kubelet.ClaimSpec{w.sysfs.claim(p, w.created%nicCount)}
	}
	if err := w.Kubelet.RunPod(ctx, p); err != nil {
		w.log.Info("simulated: pod does not run", "pod", p.Name, "err", err)
		w.sysfs.deletePod(p) //nolint:errcheck // the pod is gone already
		return
	}
	w.pods = append(w.pods, p)
}

func (w *workload) stop() {
	i := rand.IntN(len(w.pods))
	w.sysfs.deletePod(w.pods[i]) //nolint:errcheck // the pod is gone already
	w.pods = slices.Delete(w.pods, i, i+1)
}
