package device

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// handoverTimeout is how long the thread of a Read may spend on one GPU.
	// Then another thread reads the rest.
	handoverTimeout = 200 * time.Millisecond
	// stallTimeout is how long a call runs before the GPU counts as stalled, and
	// later calls fail at once: less than the deadline of a scrape, so the first
	// scrape that meets a hang exports the stall; more than handoverTimeout,
	// because a stall rejects an Allocate.
	stallTimeout = 900 * time.Millisecond
	// processInterval is the minimum time between two readings of the processes
	// of a GPU. The driver holds a lock that programs need.
	processInterval = 5 * time.Second
)

// Reading is the result of reading a GPU.
type Reading struct {
	GPU     GPU
	Samples []Sample
	// If ProcessUsageKnown, an empty ProcessUsage means that no process uses the
	// GPU. ProcessUsage may be five seconds older than Samples.
	ProcessUsage      []ProcessUsage
	ProcessUsageKnown bool
	Err               error // ErrStalled after a missed deadline, ErrNoDriver while paused
}

// Readers call the driver about GPUs, in the background. A call may hang
// forever, and the thread cannot be recovered: a stalled GPU gets no call. The
// Backend serializes the calls about a GPU.
type Readers struct {
	backend  Backend
	calls    sync.WaitGroup // goroutines with calls
	inFlight atomic.Int64   // their number; raised under mu

	mu sync.Mutex
	// The fields below are guarded by mu.
	running   map[*runningCall]bool
	failed    map[GPU]bool // the newest read returned an error
	processes map[GPU]processReading
	paused    bool // no call may begin
}

// runningCall is a call about a GPU; it may wait for another one.
type runningCall struct {
	gpu     GPU
	startAt time.Time
}

// processReading is the newest usage of a GPU by processes.
type processReading struct {
	readAt time.Time
	usage  []ProcessUsage
	known  bool
}

// NewReaders returns Readers of the Backend's GPUs.
func NewReaders(b Backend) *Readers {
	return &Readers{
		backend: b, running: map[*runningCall]bool{}, failed: map[GPU]bool{}, processes: map[GPU]processReading{},
	}
}

// Read reads all GPUs, with their processes if set, and returns the readings in
// the order of gpus when all have answered or ctx is done. One thread reads all
// GPUs, because the driver serializes calls. A late GPU has ErrStalled, and the
// answer is dropped.
func (r *Readers) Read(ctx context.Context, gpus []GPU, processes bool) []Reading {
	readings := make([]Reading, len(gpus))
	queue := make(chan int, len(gpus))
	for i, gpu := range gpus {
		readings[i] = Reading{GPU: gpu, Err: ErrStalled}
		if !r.Stalled(gpu) {
			queue <- i
		}
	}
	close(queue)
	type result struct {
		index int
		Reading
	}
	late := len(queue)
	results := make(chan result, late)
	read := func() {
		for i := range queue {
			startAt := time.Now()
			results <- result{i, r.readAll(ctx, gpus[i], processes)}
			if time.Since(startAt) >= handoverTimeout {
				return
			}
		}
	}
	if !r.start(read) {
		for i := range queue {
			readings[i].Err = ErrNoDriver
		}
		return readings
	}
	for late > 0 {
		select {
		case result := <-results:
			readings[result.index] = result.Reading
			late--
		case <-time.After(handoverTimeout):
			r.start(read)
		case <-ctx.Done():
			return readings
		}
	}
	return readings
}

// readAll reads the GPU, and its processes if set, unless ctx is done.
func (r *Readers) readAll(ctx context.Context, gpu GPU, processes bool) Reading {
	if ctx.Err() != nil {
		return Reading{GPU: gpu, Err: ErrStalled}
	}
	defer r.begin(gpu)()
	reading := r.readSamples(gpu)
	if p, ok := r.backend.(ProcessUsageReader); ok && processes && reading.Err == nil {
		reading.ProcessUsage, reading.ProcessUsageKnown = r.readProcesses(p, gpu)
	}
	return reading
}

func (r *Readers) readSamples(gpu GPU) Reading {
	samples, err := r.backend.Read(gpu)
	r.mu.Lock()
	r.failed[gpu] = err != nil
	r.mu.Unlock()
	if err != nil {
		return Reading{GPU: gpu, Err: fmt.Errorf("read GPU %s: %w", gpu, err)}
	}
	return Reading{GPU: gpu, Samples: samples}
}

func (r *Readers) readProcesses(reader ProcessUsageReader, gpu GPU) (usage []ProcessUsage, known bool) {
	r.mu.Lock()
	newest := r.processes[gpu]
	r.mu.Unlock()
	if time.Since(newest.readAt) < processInterval {
		return newest.usage, newest.known
	}
	newest.readAt = time.Now()
	newest.usage, newest.known = reader.ReadProcessUsage(gpu)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.processes[gpu] = newest
	return newest.usage, newest.known
}

// ReadOne reads one GPU without processes, also during a Read.
func (r *Readers) ReadOne(ctx context.Context, gpu GPU) Reading {
	return r.call(ctx, gpu, func() Reading { return r.readSamples(gpu) })
}

// CheckUsable returns an error if a container should not start on the device:
// the GPU does not respond or has a fault or, if exclusive is set, the device is
// in use.
func (r *Readers) CheckUsable(ctx context.Context, d Device, exclusive bool) error {
	reading := r.call(ctx, d.GPU, func() Reading { return Reading{Err: r.checkUsable(d, exclusive)} })
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

// call makes a call in the background and waits until ctx is done. The result
// is ErrStalled if a call hangs or is late, and ErrNoDriver while paused.
func (r *Readers) call(ctx context.Context, gpu GPU, f func() Reading) Reading {
	if r.Stalled(gpu) {
		return Reading{GPU: gpu, Err: ErrStalled}
	}
	end := r.begin(gpu)
	result := make(chan Reading, 1)
	started := r.start(func() {
		reading := f()
		end()
		result <- reading
	})
	if !started {
		end()
		return Reading{GPU: gpu, Err: ErrNoDriver}
	}
	select {
	case reading := <-result:
		return reading
	case <-ctx.Done():
		return Reading{GPU: gpu, Err: ErrStalled}
	}
}

// Check checks the GPU in the background and calls done with the result. If
// another call about the GPU runs, Check returns false.
func (r *Readers) Check(gpu GPU, done func(ResetEvidence, error)) bool {
	if r.Busy(gpu) > 0 {
		return false
	}
	end := r.begin(gpu)
	started := r.start(func() {
		evidence, err := r.backend.Check(gpu)
		end()
		done(evidence, err)
	})
	if !started {
		end()
	}
	return started
}

// start runs f in the background; false while paused.
func (r *Readers) start(f func()) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.paused {
		return false
	}
	r.inFlight.Add(1)
	r.calls.Go(func() {
		defer r.inFlight.Add(-1)
		f()
	})
	return true
}

// begin registers a call about a GPU, and returns the function for its end.
func (r *Readers) begin(gpu GPU) (end func()) {
	c := &runningCall{gpu, time.Now()}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.running[c] = true
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.running, c)
	}
}

// SetPaused prevents new calls until the end of the pause: readings have
// ErrNoDriver. Running calls continue, see Idle.
func (r *Readers) SetPaused(paused bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.paused = paused
}

// Idle reports whether no call runs.
func (r *Readers) Idle() bool { return r.inFlight.Load() == 0 }

// Busy returns the duration of the oldest running call about a GPU, at least 1;
// 0 without a call.
func (r *Readers) Busy(gpu GPU) (busy time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for c := range r.running {
		if c.gpu == gpu {
			busy = max(busy, time.Since(c.startAt), 1)
		}
	}
	return busy
}

// Stalled reports whether a call about the GPU hangs.
func (r *Readers) Stalled(gpu GPU) bool { return r.Busy(gpu) > stallTimeout }

// Failed reports whether the newest read of the GPU returned an error.
func (r *Readers) Failed(gpu GPU) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failed[gpu]
}

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
