package device

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// stallTimeout is how long a call may run before its GPU counts as stalled: then
// a reader no longer waits for the GPU but leaves it out at once. It is clearly less
// than a scrape takes for all, so that the scrape which first meets a hang says so.
const stallTimeout = 900 * time.Millisecond

// Readers ask GPUs, each through one slot of its own. A driver's call may hang
// for ever, and a thread inside one cannot be got back; so no GPU ever has more
// than one, and nothing waits behind it for longer than its own deadline.
type Readers struct {
	backend Backend

	// calls counts the goroutines that are inside a call or wait for their slot.
	calls sync.WaitGroup

	mu sync.Mutex
	// All below are guarded by mu.
	locks         map[GPU]*gpuLock // a slot stays for good
	paused        bool             // no call may begin
	callsInFlight int              // calls, and those that wait for their slot
}

// gpuLock is the right to call the driver about one GPU.
type gpuLock struct {
	gpu GPU
	// token holds one token, which whoever calls has taken out.
	token     chan struct{}
	createdAt time.Time // times are counted from it, since it has the clock that nobody sets
	// callStart is how long after made the running call began, and never 0 then; 0: none
	// runs. Written by the holder of the token.
	callStart atomic.Int64
	// lastReadFailed tells whether the last read got an error. Written by the holder of
	// the token.
	lastReadFailed atomic.Bool
	// samples is reused from read to read. It belongs to the holder of the
	// token, and then to the reader that was given the result until it asks again.
	samples      []Sample
	processUsage []ProcessUsage // likewise
}

// Reading is what one read of a GPU gave.
type Reading struct {
	GPU     GPU
	Samples []Sample // valid until the GPU is read again
	// ProcessUsage are what processes use of the GPU's devices, as long valid. They are known
	// where Peopled: an empty list is then nobody.
	ProcessUsage      []ProcessUsage
	ProcessUsageKnown bool
	Err               error // ErrStalled where the GPU did not answer in time, ErrNoDriver while paused
}

// NewReaders has no GPU yet: a slot is made when a GPU is first asked.
func NewReaders(b Backend) *Readers {
	return &Readers{backend: b, locks: map[GPU]*gpuLock{}}
}

// Read asks all GPUs at the same time and returns when each has answered or ctx
// is done, in the order of gpus. GPUs that are late come with ErrStalled; what
// they answer later is dropped. Only one Read may run at a time.
func (r *Readers) Read(ctx context.Context, gpus []GPU) []Reading {
	readings := make([]Reading, len(gpus))
	type indexedReading struct {
		at      int
		reading Reading
	}
	results := make(chan indexedReading, len(gpus))
	pending := 0
	for i, gpu := range gpus {
		readings[i] = Reading{GPU: gpu, Err: ErrStalled}
		s := r.lock(gpu)
		if s.stalled() {
			continue
		}
		if !r.startCall(func() { results <- indexedReading{i, r.readAll(ctx, s)} }) {
			readings[i].Err = ErrNoDriver
			continue
		}
		pending++
	}
	for ; pending > 0; pending-- {
		select {
		case a := <-results:
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
	s := r.lock(gpu)
	if s.stalled() {
		return Reading{GPU: gpu, Err: ErrStalled}
	}
	result := make(chan Reading, 1)
	if !r.startCall(func() {
		if !s.acquire(ctx) {
			result <- Reading{GPU: gpu, Err: ErrStalled}
			return
		}
		defer s.release()
		result <- r.read(s, nil)
	}) {
		return Reading{GPU: gpu, Err: ErrNoDriver}
	}
	select {
	case reading := <-result:
		return reading
	case <-ctx.Done():
		return Reading{GPU: gpu, Err: ErrStalled}
	}
}

// readAll reads the GPU and its processes into the slot's buffers.
func (r *Readers) readAll(ctx context.Context, s *gpuLock) Reading {
	if !s.acquire(ctx) {
		return Reading{GPU: s.gpu, Err: ErrStalled}
	}
	defer s.release()
	reading := r.read(s, s.samples[:0])
	s.samples = reading.Samples
	if p, ok := r.backend.(ProcessUsageReader); ok && reading.Err == nil {
		s.processUsage, reading.ProcessUsageKnown = p.ReadProcessUsage(s.gpu, s.processUsage[:0])
		reading.ProcessUsage = s.processUsage
	}
	return reading
}

// read reads the GPU into a buffer. The caller holds the token.
func (r *Readers) read(s *gpuLock, buffer []Sample) Reading {
	samples, err := r.backend.Read(s.gpu, buffer)
	s.lastReadFailed.Store(err != nil)
	if err != nil {
		return Reading{GPU: s.gpu, Samples: samples[:0], Err: fmt.Errorf("read GPU %s: %w", s.gpu, err)}
	}
	return Reading{GPU: s.gpu, Samples: samples}
}

// Check asks whether the GPU can be used and has answer called with the outcome,
// on a goroutine of its own. It asks nothing and returns false while another call
// to the GPU runs.
func (r *Readers) Check(gpu GPU, done func(ResetEvidence, error)) bool {
	s := r.lock(gpu)
	select {
	case <-s.token:
	default:
		return false
	}
	s.markStarted()
	started := r.startCall(func() {
		vitals, err := r.backend.Check(gpu)
		s.release()
		done(vitals, err)
	})
	if !started {
		s.release()
	}
	return started
}

// startCall runs something that calls the driver, unless that is paused.
func (r *Readers) startCall(call func()) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.paused {
		return false
	}
	r.callsInFlight++
	r.calls.Go(func() {
		defer func() {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.callsInFlight--
		}()
		call()
	})
	return true
}

// Pause has no call begin until Resume: readings are ErrNoDriver. Calls that are under
// way go on, and Idle tells when they have ended.
func (r *Readers) Pause() { r.setPaused(true) }

// Resume ends a Pause.
func (r *Readers) Resume() { r.setPaused(false) }

func (r *Readers) setPaused(paused bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.paused = paused
}

// Idle reports whether no call runs or waits for its lock.
func (r *Readers) Idle() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.callsInFlight == 0
}

// Busy tells for how long the call that now runs about a GPU has been running; 0
// when none runs.
func (r *Readers) Busy(gpu GPU) time.Duration { return r.lock(gpu).runningFor() }

// Stalled tells whether the GPU has stopped answering.
func (r *Readers) Stalled(gpu GPU) bool { return r.lock(gpu).stalled() }

// Failed tells whether the GPU's last reading was an error.
func (r *Readers) Failed(gpu GPU) bool { return r.lock(gpu).lastReadFailed.Load() }

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

func (r *Readers) lock(gpu GPU) *gpuLock {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.locks[gpu]
	if s == nil {
		s = &gpuLock{gpu: gpu, token: make(chan struct{}, 1), createdAt: time.Now()}
		s.token <- struct{}{}
		r.locks[gpu] = s
	}
	return s
}

// acquire waits for the slot as long as ctx allows.
func (l *gpuLock) acquire(ctx context.Context) bool {
	select {
	case <-l.token:
	case <-ctx.Done():
		return false
	}
	if ctx.Err() != nil { // of two that are ready select takes either, and nobody waits for the answer
		l.token <- struct{}{}
		return false
	}
	l.markStarted()
	return true
}

// markStarted notes that a call begins.
func (l *gpuLock) markStarted() { l.callStart.Store(int64(max(time.Since(l.createdAt), 1))) }

func (l *gpuLock) release() {
	l.callStart.Store(0)
	l.token <- struct{}{}
}

func (l *gpuLock) runningFor() time.Duration {
	since := l.callStart.Load()
	if since == 0 {
		return 0
	}
	return time.Since(l.createdAt) - time.Duration(since)
}

func (l *gpuLock) stalled() bool { return l.runningFor() > stallTimeout }
