package device

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/retry"
	"github.com/podgauge/podgauge/test/bubble"
)

// idleNode drives an engine. Its calls end at once, but a Wait takes two seconds.
type idleNode struct {
	*engine
	tick     tick
	waitEnds time.Time
	effects  map[string]int    // number of effects, by type
	checks   map[time.Time]int // by second
}

func newIdleNode(gpus int) *idleNode {
	n := &idleNode{engine: newEngine(MonitorOptions{Log: slog.New(slog.DiscardHandler)}, false)}
	n.tick.calls = map[GPU]gpuCalls{}
	for i := range gpus {
		n.tick.calls[GPU(fmt.Sprint("GPU-", i))] = gpuCalls{}
	}
	return n
}

func (n *idleNode) apply(ev event) {
	now := time.Now()
	for _, f := range n.engine.apply(ev, now) {
		n.effects[fmt.Sprintf("%T", f)]++
		switch f := f.(type) {
		case list:
			var devices []Device
			for gpu := range n.tick.calls {
				devices = append(devices, Device{ID: ID(gpu), GPU: gpu, MIGDeviceIndex: -1})
			}
			n.apply(listed{devices: devices})
		case wait:
			n.waitEnds = now.Add(retry.Aligned(2 * time.Second))
		case checkGPU:
			if n.tick.calls[f.gpu].busy == 0 {
				n.checks[now.Truncate(time.Second)]++
				n.apply(checkBegun(f))
				n.apply(checked{gpu: f.gpu, seq: f.seq, startedAt: now, evidence: ResetEvidence{EnergyCounter: 1}})
			}
		}
	}
}

// run runs the node, and returns the times of the ticks.
func (n *idleNode) run(d time.Duration) map[time.Time]bool {
	n.effects, n.checks = map[string]int{}, map[time.Time]int{}
	ticks := map[time.Time]bool{}
	for end := time.Now().Add(d); time.Now().Before(end); {
		ticks[time.Now()] = true
		n.apply(n.tick)
		due := n.due(time.Now())
		if !n.waitEnds.IsZero() && n.waitEnds.Before(due) {
			due = n.waitEnds
		}
		time.Sleep(time.Until(due))
		if n.waitEnds.Equal(time.Now()) {
			n.apply(waited{})
		}
	}
	return ticks
}

// TestIdleMinute checks that an idle engine ticks at most once a second, on whole
// seconds, and checks the GPUs in groups.
func TestIdleMinute(t *testing.T) {
	for gpus, want := range map[int]struct{ checks, atOnce int }{
		1: {60, 1}, 2: {60, 1}, 3: {60, 1}, 8: {96, 2},
		16: {192, 4},
	} {
		bubble.Test(t, func(t *testing.T) {
			n := newIdleNode(gpus)
			n.run(20 * time.Second)
			ticks := n.run(time.Minute)
			for at := range ticks {
				if at.Nanosecond() != 0 || n.checks[at] > want.atOnce {
					t.Errorf("%d GPUs: got a tick at %s with %d checks, want a whole second and %d", gpus, at,
						n.checks[at], want.atOnce)
				}
			}
			lists, waits, checks := n.effects["device.list"], n.effects["device.wait"], n.effects["device.checkGPU"]
			if len(ticks) > 61 || checks != want.checks || lists != 6 || waits != 30 {
				t.Errorf("%d GPUs: got %d ticks, %d checks, %d listings and %d waits; want at most 61, %d, 6 and 30",
					gpus, len(ticks), checks, lists, waits, want.checks)
			}
		})
	}
}

// TestTicksDuringHang checks that a due check that cannot begin makes the engine
// tick only every callPollInterval while the GPU hangs.
func TestTicksDuringHang(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		n := newIdleNode(1)
		n.tick.calls["GPU-0"] = gpuCalls{busy: time.Minute}
		n.run(time.Minute)
		if got, most := len(n.run(10*time.Second)), 2*int(10*time.Second/callPollInterval); got > most {
			t.Errorf("got %d ticks in ten seconds, want at most %d", got, most)
		}
	})
}
