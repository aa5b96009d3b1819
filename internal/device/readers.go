package device

import (
	"context"
	"fmt"
	"slices"
	"strconv"
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

func (l *gpuLock) tryAcquire() bool {
	select {
	case l.sem <- struct{}{}:
		l.markStarted()
		return true
	default:
		return false
	}
}

func (l *gpuLock) markStarted() { l.callStart.Store(int64(max(time.Since(l.createdAt), 1))) }

func (l *gpuLock) release() {
	l.callStart.Store(0)
	<-l.sem
}

func (l *gpuLock) runningFor() time.Duration {
	start := l.callStart.Load()
	if start == 0 {
		return 0
	}
	return time.Since(l.createdAt) - time.Duration(start)
}

func (l *gpuLock) stalled() bool { return l.runningFor() > stallTimeout }

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

// Read reads all GPUs concurrently, and returns the readings in the order of gpus when all have answered or ctx is done. A late GPU
// has ErrStalled, and its answer is dropped. Only one Read may run at a time.
func (r *Readers) Read(ctx context.Context, gpus []GPU) []Reading {
	readings := make([]Reading, len(gpus))
	type indexedReading struct {
		index   int
		reading Reading
	}
	results := make(chan indexedReading, len(gpus))
	pending := 0
	for i, gpu := range gpus {
		readings[i] = Reading{GPU: gpu, Err: ErrStalled}
		l := r.lock(gpu)
		if l.stalled() {
			continue
		}
		if !r.startCall(func() { results <- indexedReading{i, r.readAll(ctx, l)} }) {
			readings[i].Err = ErrNoDriver
			continue
		}
		pending++
	}
	for ; pending > 0; pending-- {
		select {
		case result := <-results:
			readings[result.index] = result.reading
		case <-ctx.Done():
			return readings
		}
	}
	return readings
}

// readAll reads the GPU and its processes into the reused buffers.
func (r *Readers) readAll(ctx context.Context, l *gpuLock) Reading {
	if !l.acquire(ctx) {
		return Reading{GPU: l.gpu, Err: ErrStalled}
	}
	defer l.release()
	reading := r.read(l, l.samples[:0])
	l.samples = reading.Samples
	if p, ok := r.backend.(ProcessUsageReader); ok && reading.Err == nil {
		l.processUsage, reading.ProcessUsageKnown = p.ReadProcessUsage(l.gpu, l.processUsage[:0])
		reading.ProcessUsage = l.processUsage
	}
	return reading
}

// ReadOne reads one GPU without processes, concurrently with a Read. The samples stay valid.
func (r *Readers) ReadOne(ctx context.Context, gpu GPU) Reading {
	var reading Reading
	if err := r.call(ctx, gpu, func(l *gpuLock) { reading = r.read(l, nil) }); err != nil {
		return Reading{GPU: gpu, Err: err}
	}
	return reading
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

// CheckUsable returns an error if a container should not start on the device: the GPU does not answer or has a fault or, if exclusive
// is set, the device is in use.
func (r *Readers) CheckUsable(ctx context.Context, d Device, exclusive bool) error {
	var pids []uint32
	var checkErr error
	err := r.call(ctx, d.GPU, func(*gpuLock) {
		if _, checkErr = r.backend.Check(d.GPU); checkErr != nil {
			return
		}
		if lister, ok := r.backend.(ProcessLister); ok && exclusive {
			pids, checkErr = lister.Processes(d)
		}
	})
	if err == nil {
		err = checkErr
	}
	switch {
	case err != nil:
		return fmt.Errorf("%s: %w", d.ID, err)
	case len(pids) > 0:
		return fmt.Errorf("%s is in use by %s", d.ID, formatPIDs(pids))
	}
	return nil
}

// formatPIDs lists at most five PIDs.
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

// call runs f under the GPU's lock. If ctx is done first, call returns ErrStalled while f may still run: then the caller must not
// read what f writes.
func (r *Readers) call(ctx context.Context, gpu GPU, f func(*gpuLock)) error {
	l := r.lock(gpu)
	if l.stalled() {
		return ErrStalled
	}
	done := make(chan error, 1)
	started := r.startCall(func() {
		if !l.acquire(ctx) {
			done <- ErrStalled
			return
		}
		defer l.release()
		f(l)
		done <- nil
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

// Check checks the GPU in the background and calls done with the result. If another call about the GPU runs, Check returns false.
func (r *Readers) Check(gpu GPU, done func(ResetEvidence, error)) bool {
	l := r.lock(gpu)
	if !l.tryAcquire() {
		return false
	}
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

// Pause prevents new calls until Resume: readings have ErrNoDriver. Running calls continue, see Idle.
func (r *Readers) Pause() { r.setPaused(true) }

// Resume ends a Pause.
func (r *Readers) Resume() { r.setPaused(false) }

func (r *Readers) setPaused(paused bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.paused = paused
}

// Idle reports whether no call runs or waits for its lock.
func (r *Readers) Idle() bool { return r.inFlight.Load() == 0 }

// Busy returns the duration of the running call about a GPU; 0 without a call.
func (r *Readers) Busy(gpu GPU) time.Duration { return r.lock(gpu).runningFor() }

// Stalled reports whether a call about the GPU hangs.
func (r *Readers) Stalled(gpu GPU) bool { return r.lock(gpu).stalled() }

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
