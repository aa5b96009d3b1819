package e2e

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/podgauge/podgauge/test/e2e/node"
)

// TestWithdrawnGoes has a GPU be shared while a pod holds the whole of it. When that pod ends, the whole is not to be given to anybody else: its
// replicas are.
func TestWithdrawnGoes(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	n := node.ForTest(ctx, t, node.Options{})
	startKubelet(ctx, t, n)
	ageKubelet(t, n)
	config := newConfig(t, n, "version: v1\n")
	d := newMachine(t, n, "gpus 1").start(t, n, "--config-file="+config.path())
	offers(ctx, t, n, resources{gpu: uuids(1)})
	old := asks("old", gpu, 1)
	run(ctx, t, n, old)
	gets(ctx, t, n, old)
	d.next(ctx, t) // podgauge knows the holder

	config.write(t, slicing(2))
	offers(ctx, t, n, resources{gpu: slices.Concat(uuids(1), replicas(uuid(0), 2))})
	for i := range 2 {
		run(ctx, t, n, asks(fmt.Sprintf("new-%d", i), gpu, 1))
	}
	remove(ctx, t, n, old)
	// The kubelet has heard of nothing yet. A pod that comes at once may be refused, but it must not get the whole GPU.
	late := asks("late", gpu, 1)
	status, err := n.Run(ctx, late)
	if err != nil {
		t.Fatal(err)
	}
	if status.Phase != "Failed" {
		t.Errorf("two pods share the GPU, and a third one has %q", gets(ctx, t, n, late))
	}
	offers(ctx, t, n, resources{gpu: replicas(uuid(0), 2)})
}
