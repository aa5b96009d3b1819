package device

import (
	"context"
	"slices"
	"time"
)

// linkRetryInterval is how long after a reading of the links that was not whole, or that
// failed, they are read again.
const linkRetryInterval = time.Minute

// topologyState is what the Monitor remembers of the links' readings.
type topologyState struct {
	gpus          []GPU     // that were listed when they were last wanted
	nextReadAt    time.Time // when they are due; zero: not before the GPUs change
	readStartedAt time.Time // when the running reading began; zero: none runs
	err           string    // of the newest: the same one is said once
}

// linkReadResult is what a reading gave.
type linkReadResult struct {
	links []Link
	err   error
}

// Links are how the GPUs are connected, as read once for each set of GPUs: nil before
// the first reading, and where the Backend is no Linker. They must not be changed.
func (m *Monitor) Links() []Link {
	if links := m.links.Load(); links != nil {
		return *links
	}
	return nil
}

// scheduleRead makes the links due when a listing has other GPUs than the one before.
func (t *topologyState) scheduleRead(devices []Device, now time.Time) {
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

// startLinkRead has the links read where they are due. It takes the listing's turn: who
// knows for how long the driver keeps a thread, and one is enough for both.
func (m *Monitor) startLinkRead(ctx context.Context, now time.Time) {
	linker, can := m.backend.(LinkReader)
	if !can || m.topology.nextReadAt.IsZero() || now.Before(m.topology.nextReadAt) {
		return
	}
	m.topology.readStartedAt, m.topology.nextReadAt = now, time.Time{}
	m.calls.Go(func() {
		links, err := linker.Links(ctx)
		m.linkResults <- linkReadResult{links, err}
	})
}

// handleLinkResult takes what a reading gave. What it could not tell is asked for again.
func (m *Monitor) handleLinkResult(l linkReadResult, now time.Time) {
	m.topology.readStartedAt = time.Time{}
	if errorText(l.err) != m.topology.err {
		m.topology.err = errorText(l.err)
		m.log.Warn("read the links between GPUs", "links", len(l.links), "err", l.err)
	}
	if l.err != nil && m.topology.nextReadAt.IsZero() {
		m.topology.nextReadAt = now.Add(linkRetryInterval)
	}
	if l.links != nil {
		m.links.Store(&l.links)
	}
}
