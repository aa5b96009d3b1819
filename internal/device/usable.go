package device

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// ProcessLister is a Backend that knows which processes use a device.
type ProcessLister interface {
	// Processes are the ids, on the host, of those that have memory on a device. It
	// is a call about the device's GPU, as Read is.
	Processes(d Device) ([]uint32, error)
}

// CheckUsable says why a container should not start on a device: it does not answer, has
// failed, or, where the container is to have it alone, is in use. It asks through
// the GPU's slot, and waits for as long as ctx allows.
func (r *Readers) CheckUsable(ctx context.Context, d Device, exclusive bool) error {
	var pids []uint32
	err := r.callGPU(ctx, d.GPU, func() error {
		if _, err := r.backend.Check(d.GPU); err != nil {
			return err
		}
		lister, ok := r.backend.(ProcessLister)
		if !ok || !exclusive {
			return nil
		}
		var err error
		pids, err = lister.Processes(d)
		return err
	})
	switch {
	case err != nil:
		return fmt.Errorf("%s: %w", d.ID, err)
	case len(pids) > 0:
		return fmt.Errorf("%s is in use by %s", d.ID, formatPIDs(pids))
	}
	return nil
}

// formatPIDs names a few.
func formatPIDs(pids []uint32) string {
	const maxListed = 5
	slices.Sort(pids)
	pids = slices.Compact(pids)
	names := make([]string, 0, maxListed)
	for _, pid := range pids[:min(len(pids), maxListed)] {
		names = append(names, strconv.FormatUint(uint64(pid), 10))
	}
	text := "process " + strings.Join(names, ", ")
	if more := len(pids) - maxListed; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// callGPU makes a call about a GPU. The call may outlive ctx, and then what it answers
// is dropped.
func (r *Readers) callGPU(ctx context.Context, gpu GPU, call func() error) error {
	s := r.lock(gpu)
	if s.stalled() {
		return ErrStalled
	}
	done := make(chan error, 1)
	started := r.startCall(func() {
		if !s.acquire(ctx) {
			done <- ErrStalled
			return
		}
		defer s.release()
		done <- call()
	})
	if !started {
		return ErrNoDriver
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ErrStalled
	}
}
