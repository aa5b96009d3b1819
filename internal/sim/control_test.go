package sim_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/sim"
	"github.com/podgauge/podgauge/test/helpers/program"
	"github.com/podgauge/podgauge/test/helpers/require"
)

// TestControl runs actions on a machine without a simulated kubelet, and
// rejects actions on pods.
func TestControl(t *testing.T) {
	machine := sim.NewMachine(nil, 2, time.Now)
	c := &sim.Control{
		Address: fmt.Sprintf("@podgauge-sim-test-%d", os.Getpid()), Machine: machine,
		Log: slog.New(slog.DiscardHandler),
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	send := func(line string) error { return sim.SendAction(c.Address, strings.Fields(line)) }
	program.WaitUntil(t, "the socket responds", func() bool { return send("xid 1 79") == nil })
	if _, err := machine.Check(machine.GPUs()[1]); !errors.Is(err, device.ErrLost) {
		t.Errorf("GPU 1 after Xid 79: got %v, want ErrLost", err)
	}
	require.NoError(t, send("reset 1"))
	if evidence, err := machine.Check(machine.GPUs()[1]); err != nil || evidence.Resets != 1 {
		t.Errorf("GPU 1 after a reset: got %+v, %v, want one reset", evidence, err)
	}
	const realKubelet = "the kubelet and the pods of this node are not simulated"
	for line, want := range map[string]string{
		"machine t4":       `line 1: unknown action "machine"`,
		"reset 2":          `"2" is not a device`,
		"reset team/train": realKubelet,
		"pod team/a x=1":   realKubelet,
		"pod a x=1":        `"a": expected NAMESPACE/NAME`,
		"fail team/train":  realKubelet,
		"finish train":     `"train": expected NAMESPACE/NAME`,
		"kubelet restarts": realKubelet,
	} {
		if err := send(line); err == nil || err.Error() != want {
			t.Errorf("%q: got %v, want %s", line, err, want)
		}
	}
	inUse := make(chan error, 1)
	go func() { inUse <- c.Run(ctx) }()
	select {
	case err := <-inUse:
		t.Fatalf("Run with a socket in use returned %v before the end", err)
	case <-time.After(10 * time.Millisecond): // enough to detect an early return
	}
	cancel()
	require.NoError(t, errors.Join(<-inUse, <-ended))
	if err := send("release"); err == nil {
		t.Error("send after the end: got no error")
	}
}
