package plugin

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// bubble is a plugin that runs in a test's bubble, without a kubelet.
type bubble struct {
	*testing.T
	plugin *Plugin
	board  device.Board
	turns  int // of Plugin.Run so far; written by it

	mu      sync.Mutex // guards all below
	holders device.Holders
	named   chan struct{} // closed when the holders change
}

func newBubble(t *testing.T, rules Rules, words string) *bubble {
	b := &bubble{T: t, named: make(chan struct{})}
	b.board.Post(board(words))
	rules.Selected = func(d device.Device) bool {
		if d.Index == 0 { // each turn asks once for the first device
			b.turns++
		}
		return true
	}
	b.plugin = New(Options{
		Dir: "none", Log: slog.New(slog.DiscardHandler), Look: b.board.Look,
		Rules: func() (Rules, <-chan struct{}) { return rules, nil },
		Holders: func() (device.Holders, <-chan struct{}) {
			b.mu.Lock()
			defer b.mu.Unlock()
			return b.holders, b.named
		},
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- b.plugin.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return b
}

// allocate has containers hold these ids of a resource, and no other.
func (b *bubble) allocate(resource string, held ...device.OfferedID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.holders, _ = as(resource, held...)()
	close(b.named)
	b.named = make(chan struct{})
}

// wants checks what is offered once all goroutines wait, which takes no time in the bubble.
func (b *bubble) wants(want string) {
	b.Helper()
	began := time.Now()
	synctest.Wait()
	o, _ := b.plugin.endpoints[wholeGPU].look()
	if got := strings.TrimPrefix(words(map[string]*offer{"": o}), ": "); got != want || !time.Now().Equal(began) {
		b.Errorf("after %s offered is %q, want %q", time.Since(began), got, want)
	}
}

// TestAnAllocationWakesThePlugin: a device that a container gets by another resource is
// unhealthy to the kubelet at once, and not when the plugin next looks by itself.
func TestAnAllocationWakesThePlugin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBubble(t, Rules{}, "0 1")
		b.wants("GPU-0 GPU-1")
		b.allocate("nvidia.com/a100", "GPU-1")
		b.wants("GPU-0 GPU-1!")
		b.allocate("nvidia.com/a100")
		b.wants("GPU-0 GPU-1")
		b.allocate(wholeGPU, "GPU-1")
		b.wants("GPU-0 GPU-1")
		b.board.Post(board("0")) // its container has it, and the device is gone
		b.wants("GPU-0 GPU-1!")
		time.Sleep(time.Minute)
		b.wants("GPU-0 GPU-1!")
		b.allocate(wholeGPU)
		b.wants("GPU-0")
	})
}

// TestAPodOnAReplicaTakesNoTurn: pods come and go, and a turn with many replicas is long.
func TestAPodOnAReplicaTakesNoTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBubble(t, shareAll(2), "0")
		b.wants("GPU-0::0 GPU-0::1")
		before := b.turns
		b.allocate(wholeGPU, "GPU-0::1")
		b.wants("GPU-0::0 GPU-0::1")
		b.allocate("example.com/foreign", "GPU-77")
		time.Sleep(time.Minute)
		b.wants("GPU-0::0 GPU-0::1")
		if b.turns != before {
			t.Errorf("it took %d turns", b.turns-before)
		}
	})
}

// allocates is one call for one container.
func (l *life) allocates(t *testing.T, ids string) error {
	t.Helper()
	_, err := l.Allocate(t.Context(), &api.AllocateRequest{ContainerRequests: []*api.ContainerAllocateRequest{{DevicesIds: strings.Fields(ids)}}})
	return err
}

// TestAllocateRejectsWhatAnotherContainerHas: the list that the kubelet chose from may be older
// than the allocation.
func TestAllocateRejectsWhatAnotherContainerHas(t *testing.T) {
	for _, c := range []struct {
		name     string
		rules    Rules
		resource string // as which
		held     device.OfferedID
		ids      string
		want     string // in the error; empty: it is given away
	}{
		{"as another resource", Rules{}, "nvidia.com/a100", "GPU-1", "GPU-1", "GPU-1 is allocated to another container, as GPU-1 of nvidia.com/a100"},
		{"by a replica from before", Rules{}, wholeGPU, "GPU-1::3", "GPU-0 GPU-1", "GPU-1 is allocated to another container, as GPU-1::3 of nvidia.com/gpu"},
		{"another device", Rules{}, "nvidia.com/a100", "GPU-1", "GPU-0", ""},
		{"by the id itself, whose end the kubelet knows first", Rules{}, wholeGPU, "GPU-1", "GPU-1", ""},
		{"another replica of a shared GPU", shareAll(2), wholeGPU, "GPU-1::0", "GPU-1::1", ""},
		{"by a claim", Rules{}, "gpu.nvidia.com", "GPU-1", "GPU-1", ""},
		{"by a claim, which reserves it", Rules{ReserveClaimed: true}, "gpu.nvidia.com", "GPU-1", "GPU-1", "GPU-1 is allocated to another container, as GPU-1 of gpu.nvidia.com"},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := holding(c.rules, board("0 1"))
			l.Holders = as(c.resource, c.held) // since the list
			var why Why
			l.Trace.Refused = func(_ string, _ []device.OfferedID, w Why, _ error) { why = w }
			err := l.allocates(t, c.ids)
			if (err == nil) != (c.want == "") || !strings.Contains(fmt.Sprint(err), c.want) {
				t.Errorf("Allocate answers %v", err)
			}
			if err != nil && why != WhyAllocated {
				t.Errorf("the reason is %q", why)
			}
		})
	}
	l := holding(Rules{}, board("0 1"), "GPU-1::3")
	l.Holders = as(wholeGPU) // it has ended since the list
	if err := l.allocates(t, "GPU-1"); err != nil {
		t.Errorf("a device that was allocated is rejected: %v", err)
	}
}
