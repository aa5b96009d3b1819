package device

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// stalledAfter is how long a call may run before its GPU counts as stalled: then
// a reader no longer waits for the GPU but leaves it out at once. It is clearly less
// than a scrape takes for all, so that the scrape which first meets a hang says so.
const stalledAfter = 900 * time.Millisecond

// Readers ask GPUs, each through one slot of its own. A driver's call may hang
// for ever, and a thread inside one cannot be got back; so no GPU ever has more
// than one, and nothing waits behind it for longer than its own deadline.
type Readers struct {
	backend Backend

	// calls counts the goroutines that are inside a call or wait for their slot.
	calls sync.WaitGroup

	mu sync.Mutex
	// All below are guarded by mu.
	slots  map[GPU]*slot // a slot stays for good
	paused bool          // no call may begin
	begun  int           // calls, and those that wait for their slot
}

// slot is the right to call the driver about one GPU.
type slot struct {
	gpu GPU
	// token holds one token, which whoever calls has taken out.
	token chan struct{}
	made  time.Time // times are counted from it, since it has the clock that nobody sets
	// since is how long after made the running call began, and never 0 then; 0: none
	// runs. Written by the holder of the token.
	since atomic.Int64
	// failed tells whether the last read got an error. Written by the holder of
	// the token.
	failed atomic.Bool
	// samples is reused from read to read. It belongs to the holder of the
	// token, and then to the reader that was given the result until it asks again.
	samples []Sample
	uses    []Use // likewise
}

// Reading is what one read of a GPU gave.
type Reading struct {
	GPU     GPU
	Samples []Sample // valid until the GPU is read again
	// Uses are what processes use of the GPU's devices, as long valid. They are known
	// where Peopled: an empty list is then nobody.
	Uses    []Use
	Peopled bool
	Err     error // ErrStalled where the GPU did not answer in time, ErrNoDriver while paused
}

// NewReaders has no GPU yet: a slot is made when a GPU is first asked.
func NewReaders(b Backend) *Readers {
	return &Readers{backend: b, slots: map[GPU]*slot{}}
}

// Read asks all GPUs at the same time and returns when each has answered or ctx
// is done, in the order of gpus. GPUs that are late come with ErrStalled; what
// they answer later is dropped. Only one Read may run at a time.
func (r *Readers) Read(ctx context.Context, gpus []GPU) []Reading {
	readings := make([]Reading, len(gpus))
	type answer struct {
		at      int
		reading Reading
	}
	answers := make(chan answer, len(gpus))
	waiting := 0
	for i, gpu := range gpus {
		readings[i] = Reading{GPU: gpu, Err: ErrStalled}
		s := r.slot(gpu)
		if s.stalled() {
			continue
		}
		if !r.begin(func() { answers <- answer{i, r.readAll(ctx, s)} }) {
			readings[i].Err = ErrNoDriver
			continue
		}
		waiting++
	}
	for ; waiting > 0; waiting-- {
		select {
		case a := <-answers:
			readings[a.at] = a.reading
		case <-ctx.Done():
			return readings
		}
	}
	return readings
}

// ReadOne reads one GPU, also beside a Read, and returns when the GPU has answered or ctx is
// done. It reads no processes, and its samples stay valid.
func (r *Readers) ReadOne(ctx context.Context, gpu GPU) Reading {
	s := r.slot(gpu)
	if s.stalled() {
		return Reading{GPU: gpu, Err: ErrStalled}
	}
	answer := make(chan Reading, 1)
	if !r.begin(func() {
		if !s.take(ctx) {
			answer <- Reading{GPU: gpu, Err: ErrStalled}
			return
		}
		defer s.leave()
		answer <- r.read(s, nil)
	}) {
		return Reading{GPU: gpu, Err: ErrNoDriver}
	}
	select {
	case reading := <-answer:
		return reading
	case <-ctx.Done():
		return Reading{GPU: gpu, Err: ErrStalled}
	}
}

// readAll reads the GPU and its processes into the slot's buffers.
func (r *Readers) readAll(ctx context.Context, s *slot) Reading {
	if !s.take(ctx) {
		return Reading{GPU: s.gpu, Err: ErrStalled}
	}
	defer s.leave()
	reading := r.read(s, s.samples[:0])
	s.samples = reading.Samples
	if p, ok := r.backend.(Peopled); ok && reading.Err == nil {
		s.uses, reading.Peopled = p.Uses(s.gpu, s.uses[:0])
		reading.Uses = s.uses
	}
	return reading
}

// read reads the GPU into a buffer. The caller holds the token.
func (r *Readers) read(s *slot, buffer []Sample) Reading {
	samples, err := r.backend.Read(s.gpu, buffer)
	s.failed.Store(err != nil)
	if err != nil {
		return Reading{GPU: s.gpu, Samples: samples[:0], Err: fmt.Errorf("read GPU %s: %w", s.gpu, err)}
	}
	return Reading{GPU: s.gpu, Samples: samples}
}

// Check asks whether the GPU can be used and has answer called with the outcome,
// on a goroutine of its own. It asks nothing and returns false while another call
// to the GPU runs.
func (r *Readers) Check(gpu GPU, answer func(Vitals, error)) bool {
	s := r.slot(gpu)
	select {
	case <-s.token:
	default:
		return false
	}
	s.begin()
	begun := r.begin(func() {
		vitals, err := r.backend.Check(gpu)
		s.leave()
		answer(vitals, err)
	})
	if !begun {
		s.leave()
	}
	return begun
}

// begin runs something that calls the driver, unless that is paused.
func (r *Readers) begin(call func()) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.paused {
		return false
	}
	r.begun++
	r.calls.Go(func() {
		defer func() {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.begun--
		}()
		call()
	})
	return true
}

// Pause has no call begin until Resume: readings are ErrNoDriver. Calls that are under
// way go on, and Idle tells when they have ended.
func (r *Readers) Pause() { r.pause(true) }

// Resume ends a Pause.
func (r *Readers) Resume() { r.pause(false) }

func (r *Readers) pause(paused bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.paused = paused
}

// Idle tells whether no call is under way, nor waits for its slot.
func (r *Readers) Idle() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.begun == 0
}

// Busy tells for how long the call that now runs about a GPU has been running; 0
// when none runs.
func (r *Readers) Busy(gpu GPU) time.Duration { return r.slot(gpu).busy() }

// Stalled tells whether the GPU has stopped answering.
func (r *Readers) Stalled(gpu GPU) bool { return r.slot(gpu).stalled() }

// Failed tells whether the GPU's last reading was an error.
func (r *Readers) Failed(gpu GPU) bool { return r.slot(gpu).failed.Load() }

// Drain waits until no call runs, or ctx is done, and tells which.
func (r *Readers) Drain(ctx context.Context) bool { return drain(ctx, &r.calls) }

func drain(ctx context.Context, calls *sync.WaitGroup) bool {
	idle := make(chan struct{})
	go func() { // ends with the last call; one that hangs for ever keeps it, as it keeps its thread
		calls.Wait()
		close(idle)
	}()
	select {
	case <-idle:
		return true
	case <-ctx.Done():
		return false
	}
}

func (r *Readers) slot(gpu GPU) *slot {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.slots[gpu]
	if s == nil {
		s = &slot{gpu: gpu, token: make(chan struct{}, 1), made: time.Now()}
		s.token <- struct{}{}
		r.slots[gpu] = s
	}
	return s
}

// take waits for the slot as long as ctx allows.
func (s *slot) take(ctx context.Context) bool {
	select {
	case <-s.token:
	case <-ctx.Done():
		return false
	}
	if ctx.Err() != nil { // of two that are ready select takes either, and nobody waits for the answer
		s.token <- struct{}{}
		return false
	}
	s.begin()
	return true
}

// begin notes that a call begins.
func (s *slot) begin() { s.since.Store(int64(max(time.Since(s.made), 1))) }

func (s *slot) leave() {
	s.since.Store(0)
	s.token <- struct{}{}
}

func (s *slot) busy() time.Duration {
	since := s.since.Load()
	if since == 0 {
		return 0
	}
	return time.Since(s.made) - time.Duration(since)
}

func (s *slot) stalled() bool { return s.busy() > stalledAfter }
