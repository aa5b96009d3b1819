package device

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Occupied is a Backend that knows which processes use a device.
type Occupied interface {
	// Processes are the ids, on the host, of those that have memory on a device. It
	// is a call about the device's GPU, as Read is.
	Processes(d Device) ([]uint32, error)
}

// Fit says why a container should not start on a device: it does not answer, has
// failed, or, where the container is to have it alone, is in use. It asks through
// the GPU's slot, and waits for as long as ctx allows.
func (r *Readers) Fit(ctx context.Context, d Device, alone bool) error {
	var pids []uint32
	err := r.ask(ctx, d.GPU, func() error {
		if _, err := r.backend.Check(d.GPU); err != nil {
			return err
		}
		o, ok := r.backend.(Occupied)
		if !ok || !alone {
			return nil
		}
		var err error
		pids, err = o.Processes(d)
		return err
	})
	switch {
	case err != nil:
		return fmt.Errorf("%s: %w", d.ID, err)
	case len(pids) > 0:
		return fmt.Errorf("%s is in use by %s", d.ID, processes(pids))
	}
	return nil
}

// processes names a few.
func processes(pids []uint32) string {
	const most = 5
	slices.Sort(pids)
	pids = slices.Compact(pids)
	names := make([]string, 0, most)
	for _, pid := range pids[:min(len(pids), most)] {
		names = append(names, strconv.FormatUint(uint64(pid), 10))
	}
	text := "process " + strings.Join(names, ", ")
	if more := len(pids) - most; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// ask makes a call about a GPU. The call may outlive ctx, and then what it answers
// is dropped.
func (r *Readers) ask(ctx context.Context, gpu GPU, call func() error) error {
	s := r.slot(gpu)
	if s.stalled() {
		return ErrStalled
	}
	answered := make(chan error, 1)
	begun := r.begin(func() {
		if !s.take(ctx) {
			answered <- ErrStalled
			return
		}
		defer s.leave()
		answered <- call()
	})
	if !begun {
		return ErrNoDriver
	}
	select {
	case err := <-answered:
		return err
	case <-ctx.Done():
		return ErrStalled
	}
}
