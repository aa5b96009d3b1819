package device

import (
	"context"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"
)

// linkRetryInterval is between a failed or incomplete reading of the links and the next.
const linkRetryInterval = time.Minute

// topology reads the links between GPUs once for each set of GPUs. All fields but links belong to the goroutine of Monitor.Run.
type topology struct {
	links         atomic.Pointer[[]Link] // nil: not read yet
	results       chan linkReadResult
	gpus          []GPU     // of the newest scheduled reading
	nextReadAt    time.Time // zero: none is due before the GPUs change
	readStartedAt time.Time // zero: no reading runs
	err           string    // of the newest reading; logged once
}

type linkReadResult struct {
	links []Link
	err   error
}

// scheduleRead makes a reading due if the set of GPUs has changed.
func (t *topology) scheduleRead(devices []Device, now time.Time) {
	var gpus []GPU
	for _, d := range devices {
		if d.WholeGPU() {
			gpus = append(gpus, d.GPU)
		}
	}
	slices.Sort(gpus)
	if !slices.Equal(gpus, t.gpus) {
		t.gpus, t.nextReadAt = gpus, now
	}
}

// begin returns a function that reads the links; nil if no reading is due. The function may hang.
func (t *topology) begin(ctx context.Context, b Backend, now time.Time) func() {
	reader, ok := b.(LinkReader)
	if !ok || t.nextReadAt.IsZero() || now.Before(t.nextReadAt) {
		return nil
	}
	t.readStartedAt, t.nextReadAt = now, time.Time{}
	return func() {
		links, err := reader.Links(ctx)
		t.results <- linkReadResult{links, err}
	}
}

// handleResult publishes the links, and schedules another reading after an error.
func (t *topology) handleResult(r linkReadResult, log *slog.Logger, now time.Time) {
	t.readStartedAt = time.Time{}
	if errorText(r.err) != t.err {
		t.err = errorText(r.err)
		log.Warn("read the links between GPUs", "links", len(r.links), "err", r.err)
	}
	if r.err != nil && t.nextReadAt.IsZero() {
		t.nextReadAt = now.Add(linkRetryInterval)
	}
	if r.links != nil {
		t.links.Store(&r.links)
	}
}
