package device

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// stallTimeout is how long a call runs before its GPU counts as stalled, and later readings leave the GPU out at once. It is
// shorter than the deadline of a scrape, so the first scrape that meets a hang exports the stall.
const stallTimeout = 900 * time.Millisecond

// gpuLock serializes the driver calls about one GPU. A driver call may hang forever, and its thread cannot be recovered, so each
// GPU has at most one call.
type gpuLock struct {
	gpu       GPU
	sem       chan struct{} // holds one element while locked
	createdAt time.Time     // callStart counts from here, on the monotonic clock
	// callStart is the duration from createdAt to the start of the running call, at least 1; 0: no call runs. Written under sem.
	callStart atomic.Int64
	// lastReadFailed is set if the newest read returned an error. Written under sem.
	lastReadFailed atomic.Bool
	// samples and processUsage are reused by each read. After a read they belong to the caller until the next read.
	samples      []Sample
	processUsage []ProcessUsage
}

// acquire locks l, unless ctx is done first.
func (l *gpuLock) acquire(ctx context.Context) bool {
	select {
	case l.sem <- struct{}{}:
	case <-ctx.Done():
		return false
	}
	if ctx.Err() != nil { // select chooses at random if both are ready; without a waiting caller the call would be wasted
		<-l.sem
		return false
	}
	l.markStarted()
	return true
}

func (l *gpuLock) markStarted() { l.callStart.Store(int64(max(time.Since(l.createdAt), 1))) }

func (l *gpuLock) release() {
	l.callStart.Store(0)
	<-l.sem
}

// Reading is the result of reading a GPU.
type Reading struct {
	GPU     GPU
	Samples []Sample // valid until the next read of the GPU
	// ProcessUsage is valid as long as Samples. If ProcessUsageKnown, an empty list means that no process uses the GPU.
	ProcessUsage      []ProcessUsage
	ProcessUsageKnown bool
	Err               error // ErrStalled after a missed deadline, ErrNoDriver while paused
}

// Readers call the driver about each GPU, one call at a time per GPU. A hanging call delays no other GPU.
type Readers struct {
	backend  Backend
	calls    sync.WaitGroup // goroutines inside a call or waiting for a lock
	inFlight atomic.Int64   // their number; raised under mu

	mu     sync.Mutex
	locks  map[GPU]*gpuLock // guarded by mu; entries stay forever
	paused bool             // guarded by mu; no call may begin
}

// NewReaders returns Readers of the Backend's GPUs.
func NewReaders(b Backend) *Readers {
	return &Readers{backend: b, locks: map[GPU]*gpuLock{}}
}

// Read reads all GPUs concurrently, with their processes if set, and returns the readings in the order of gpus when all have answered or
// ctx is done. A late GPU has ErrStalled, and its answer is dropped. Only one Read may run at a time.
func (r *Readers) Read(ctx context.Context, gpus []GPU, processes bool) []Reading {
	results := make([]<-chan Reading, len(gpus))
	for i, gpu := range gpus {
		results[i] = r.start(ctx, gpu, func(l *gpuLock) Reading { return r.readAll(l, processes) })
	}
	readings := make([]Reading, len(gpus))
	for i, gpu := range gpus {
		readings[i] = await(ctx, gpu, results[i])
	}
	return readings
}

// readAll reads the GPU, and its processes if set, into the reused buffers.
func (r *Readers) readAll(l *gpuLock, processes bool) Reading {
	reading := r.read(l, l.samples[:0])
	l.samples = reading.Samples
	if p, ok := r.backend.(ProcessUsageReader); ok && processes && reading.Err == nil {
		l.processUsage, reading.ProcessUsageKnown = p.ReadProcessUsage(l.gpu, l.processUsage[:0])
		reading.ProcessUsage = l.processUsage
	}
	return reading
}

// ReadOne reads one GPU without processes, concurrently with a Read. The samples stay valid.
func (r *Readers) ReadOne(ctx context.Context, gpu GPU) Reading {
	return await(ctx, gpu, r.start(ctx, gpu, func(l *gpuLock) Reading { return r.read(l, nil) }))
}

// read reads the GPU into buffer. The caller holds the lock.
func (r *Readers) read(l *gpuLock, buffer []Sample) Reading {
	samples, err := r.backend.Read(l.gpu, buffer)
	l.lastReadFailed.Store(err != nil)
	if err != nil {
		return Reading{GPU: l.gpu, Samples: samples[:0], Err: fmt.Errorf("read GPU %s: %w", l.gpu, err)}
	}
	return Reading{GPU: l.gpu, Samples: samples}
}

// CheckUsable returns an error if a container should not start on the device: the GPU does not respond or has a fault or, if exclusive
// is set, the device is in use.
func (r *Readers) CheckUsable(ctx context.Context, d Device, exclusive bool) error {
	reading := await(ctx, d.GPU, r.start(ctx, d.GPU, func(*gpuLock) Reading { return Reading{Err: r.checkUsable(d, exclusive)} }))
	if reading.Err != nil {
		return fmt.Errorf("%s: %w", d.ID, reading.Err)
	}
	return nil
}

func (r *Readers) checkUsable(d Device, exclusive bool) error {
	const maxShown = 5
	if _, err := r.backend.Check(d.GPU); err != nil {
		return err
	}
	lister, ok := r.backend.(ProcessLister)
	if !ok || !exclusive {
		return nil
	}
	pids, err := lister.Processes(d)
	if err == nil && len(pids) > 0 {
		err = fmt.Errorf("in use by process %s", strings.Trim(fmt.Sprint(pids[:min(len(pids), maxShown)]), "[]"))
	}
	return err
}

// start runs f under the GPU's lock in the background. The result is ErrStalled if an earlier call hangs, and ErrNoDriver while paused.
func (r *Readers) start(ctx context.Context, gpu GPU, f func(*gpuLock) Reading) <-chan Reading {
	result := make(chan Reading, 1)
	l := r.lock(gpu)
	if r.Stalled(gpu) {
		result <- Reading{GPU: gpu, Err: ErrStalled}
		return result
	}
	started := r.startCall(func() {
		reading := Reading{GPU: gpu, Err: ErrStalled}
		if l.acquire(ctx) {
			reading = f(l)
			l.release()
		}
		result <- reading
	})
	if !started {
		result <- Reading{GPU: gpu, Err: ErrNoDriver}
	}
	return result
}

// await returns a reading with ErrStalled if ctx is done before the result.
func await(ctx context.Context, gpu GPU, result <-chan Reading) Reading {
	select {
	case reading := <-result:
		return reading
	case <-ctx.Done():
	}
	select {
	case reading := <-result:
		return reading
	default:
		return Reading{GPU: gpu, Err: ErrStalled}
	}
}

// Check checks the GPU in the background and calls done with the result. If another call about the GPU runs, Check returns false.
func (r *Readers) Check(gpu GPU, done func(ResetEvidence, error)) bool {
	l := r.lock(gpu)
	select {
	case l.sem <- struct{}{}:
	default:
		return false
	}
	l.markStarted()
	started := r.startCall(func() {
		evidence, err := r.backend.Check(gpu)
		l.release()
		done(evidence, err)
	})
	if !started {
		l.release()
	}
	return started
}

// startCall runs call in the background; false while paused.
func (r *Readers) startCall(call func()) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.paused {
		return false
	}
	r.inFlight.Add(1)
	r.calls.Go(func() {
		defer r.inFlight.Add(-1)
		call()
	})
	return true
}

// SetPaused prevents new calls until the end of the pause: readings have ErrNoDriver. Running calls continue, see Idle.
func (r *Readers) SetPaused(paused bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.paused = paused
}

// Idle reports whether no call runs or waits for its lock.
func (r *Readers) Idle() bool { return r.inFlight.Load() == 0 }

// Busy returns the duration of the running call about a GPU, at least 1; 0 without a call.
func (r *Readers) Busy(gpu GPU) time.Duration {
	l := r.lock(gpu)
	start := l.callStart.Load()
	if start == 0 {
		return 0
	}
	return max(time.Since(l.createdAt)-time.Duration(start), 1)
}

// Stalled reports whether a call about the GPU hangs.
func (r *Readers) Stalled(gpu GPU) bool { return r.Busy(gpu) > stallTimeout }

// Failed reports whether the newest read of the GPU returned an error.
func (r *Readers) Failed(gpu GPU) bool { return r.lock(gpu).lastReadFailed.Load() }

// Drain waits for all calls to end, and reports false if ctx is done first.
func (r *Readers) Drain(ctx context.Context) bool { return drain(ctx, &r.calls) }

func drain(ctx context.Context, calls *sync.WaitGroup) bool {
	idle := make(chan struct{})
	go func() { // ends with the last call; a call that hangs forever keeps this goroutine as well
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
	l := r.locks[gpu]
	if l == nil {
		l = &gpuLock{gpu: gpu, sem: make(chan struct{}, 1), createdAt: time.Now()}
		r.locks[gpu] = l
	}
	return l
}
