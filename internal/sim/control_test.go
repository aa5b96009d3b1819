package sim

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
)

// TestControl runs actions on a machine without simulated kubelet, and rejects actions on pods.
func TestControl(t *testing.T) {
	machine := NewMachine(nil, 2, time.Now)
	c := NewControl(machine, slog.New(slog.DiscardHandler))
	c.address = fmt.Sprintf("@podgauge-sim-test-%d", os.Getpid())
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	send := func(line string) error { return sendAction(ctx, c.address, strings.Fields(line)) }
	for end := time.Now().Add(time.Minute); send("xid 1 79") != nil; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the socket does not answer")
		}
	}
	if _, err := machine.Check(machine.GPUs()[1]); err != device.ErrLost {
		t.Errorf("GPU 1 after Xid 79: %v", err)
	}
	if err := send("reset 1"); err != nil {
		t.Error(err)
	}
	if evidence, err := machine.Check(machine.GPUs()[1]); err != nil || evidence.Resets != 1 {
		t.Errorf("GPU 1 after a reset: %+v, %v", evidence, err)
	}
	for line, want := range map[string]string{
		"":                 "want an action",
		"explode":          `unknown action "explode": want delete, fail,`,
		"xid 0":            "xid: want DEVICE CODE [TIMES]",
		"reset 2":          `"2" is not a device`,
		"reset team/train": errRealKubelet.Error(),
		"pod team/a x=1":   errRealKubelet.Error(),
		"fail team/train":  errRealKubelet.Error(),
		"kubelet restarts": errRealKubelet.Error(),
	} {
		if err := send(line); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q: %v, want %s", line, err, want)
		}
	}
	second := NewControl(machine, slog.New(slog.DiscardHandler))
	second.address = c.address
	secondEnded := make(chan error, 1)
	go func() { secondEnded <- second.Run(ctx) }()
	cancel()
	for _, ended := range []chan error{ended, secondEnded} {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	if err := sendAction(t.Context(), c.address, []string{"release"}); err == nil {
		t.Error("the socket answers after the end")
	}
}
