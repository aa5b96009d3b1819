package health

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/retry"
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
	// drainPollInterval is between two looks at the running calls.
	drainPollInterval = 10 * time.Millisecond
)

// Reading is the result of reading a GPU.
type Reading struct {
	GPU     device.GPU
	Samples []device.Sample
	// If ProcessUsageKnown, an empty ProcessUsage means that no process uses the
	// GPU. ProcessUsage may be five seconds older than Samples.
	ProcessUsage      []device.ProcessUsage
	ProcessUsageKnown bool
	Err               error // ErrStalled after a missed deadline, ErrNoDriver while paused
}

// Readers call the driver about GPUs, in the background. A call may hang
// forever, and the thread cannot be recovered: a stalled GPU gets no call. The
// Backend serializes the calls about a GPU.
type Readers struct {
	backend device.Backend

	mu sync.Mutex
	// The fields below are guarded by mu.
	running   map[*runningCall]bool
	failed    map[device.GPU]bool // the newest read returned an error
	processes map[device.GPU]processReading
	paused    bool // no call may begin
}

// runningCall is a call about a GPU; it may wait for another one.
type runningCall struct {
	gpu     device.GPU
	startAt time.Time
}

// processReading is the newest usage of a GPU by processes.
type processReading struct {
	readAt time.Time
	usage  []device.ProcessUsage
	known  bool
}

// NewReaders returns Readers of the Backend's GPUs.
func NewReaders(b device.Backend) *Readers {
	return &Readers{
		backend: b, running: map[*runningCall]bool{},
		failed: map[device.GPU]bool{}, processes: map[device.GPU]processReading{},
	}
}

// Read reads all GPUs, with their processes if set, and returns the readings in
// the order of gpus when all have answered or ctx is done. One thread reads all
// GPUs, because the driver serializes calls. A late GPU has ErrStalled, and the
// answer is dropped.
func (r *Readers) Read(ctx context.Context, gpus []device.GPU, processes bool) []Reading {
	readings := make([]Reading, len(gpus))
	queue := make(chan int, len(gpus))
	for i, gpu := range gpus {
		readings[i] = Reading{GPU: gpu, Err: device.ErrStalled}
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
	go read() // ends with the calls
	for late > 0 {
		select {
		case result := <-results:
			readings[result.index] = result.Reading
			late--
		case <-time.After(handoverTimeout):
			go read()
		case <-ctx.Done():
			return readings
		}
	}
	return readings
}

// readAll reads the GPU, and its processes if set, unless ctx is done.
func (r *Readers) readAll(ctx context.Context, gpu device.GPU, processes bool) Reading {
	if ctx.Err() != nil {
		return Reading{GPU: gpu, Err: device.ErrStalled}
	}
	end, err := r.begin(gpu)
	if err != nil {
		return Reading{GPU: gpu, Err: err}
	}
	defer end()
	reading := r.readSamples(gpu)
	if processes && reading.Err == nil {
		reading.ProcessUsage, reading.ProcessUsageKnown = r.readProcesses(gpu)
	}
	return reading
}

func (r *Readers) readSamples(gpu device.GPU) Reading {
	samples, err := r.backend.Read(gpu)
	r.mu.Lock()
	r.failed[gpu] = err != nil
	r.mu.Unlock()
	if err != nil {
		return Reading{GPU: gpu, Err: fmt.Errorf("read GPU %s: %w", gpu, err)}
	}
	return Reading{GPU: gpu, Samples: samples}
}

func (r *Readers) readProcesses(gpu device.GPU) (usage []device.ProcessUsage, known bool) {
	r.mu.Lock()
	newest := r.processes[gpu]
	r.mu.Unlock()
	if time.Since(newest.readAt) < processInterval {
		return newest.usage, newest.known
	}
	newest.readAt = time.Now()
	newest.usage, newest.known = r.backend.ReadProcessUsage(gpu)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.processes[gpu] = newest
	return newest.usage, newest.known
}

// ReadOne reads one GPU without processes, also during a Read.
func (r *Readers) ReadOne(ctx context.Context, gpu device.GPU) Reading {
	return r.call(ctx, gpu, func() Reading { return r.readSamples(gpu) })
}

// CheckUsable returns an error if a container should not start on the device:
// the GPU does not respond or has a fault or, if exclusive is set, the device is
// in use.
func (r *Readers) CheckUsable(ctx context.Context, d device.Device, exclusive bool) error {
	reading := r.call(ctx, d.GPU, func() Reading { return Reading{Err: r.checkUsable(d, exclusive)} })
	if reading.Err != nil {
		return fmt.Errorf("%s: %w", d.ID, reading.Err)
	}
	return nil
}

func (r *Readers) checkUsable(d device.Device, exclusive bool) error {
	const maxShown = 5
	if _, err := r.backend.Check(d.GPU); err != nil {
		return err
	}
	if !exclusive {
		return nil
	}
	pids, err := r.backend.Processes(d)
	if err == nil && len(pids) > 0 {
		err = fmt.Errorf("in use by process %s", strings.Trim(fmt.Sprint(pids[:min(len(pids), maxShown)]), "[]"))
	}
	return err
}

// call makes a call in the background and waits until ctx is done. The result
// is ErrStalled if a call hangs or is late, and ErrNoDriver while paused.
func (r *Readers) call(ctx context.Context, gpu device.GPU, f func() Reading) Reading {
	if r.Stalled(gpu) {
		return Reading{GPU: gpu, Err: device.ErrStalled}
	}
	reading, inTime := retry.Await(ctx, func(context.Context) Reading {
		end, err := r.begin(gpu)
		if err != nil {
			return Reading{GPU: gpu, Err: err}
		}
		defer end()
		return f()
	})
	if !inTime {
		return Reading{GPU: gpu, Err: device.ErrStalled}
	}
	return reading
}

// check checks the GPU in the background and calls done with the result; not
// while paused. The call ends after done: while a result is not delivered, the
// Readers are not idle.
func (r *Readers) check(gpu device.GPU, done func(device.ResetEvidence, error)) {
	go func() { // ends with the call
		end, err := r.begin(gpu)
		if err != nil {
			return
		}
		defer end()
		done(r.backend.Check(gpu))
	}()
}

// begin registers a call about a GPU, and returns the function for its end;
// ErrNoDriver while paused.
func (r *Readers) begin(gpu device.GPU) (end func(), err error) {
	c := &runningCall{gpu, time.Now()}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.paused {
		return nil, device.ErrNoDriver
	}
	r.running[c] = true
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.running, c)
	}, nil
}

// SetPaused prevents new calls until the end of the pause: readings have
// ErrNoDriver. Running calls continue, see Idle.
func (r *Readers) SetPaused(paused bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.paused = paused
}

// Idle reports whether no call runs.
func (r *Readers) Idle() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.running) == 0
}

// busy returns the duration of the oldest running call about a GPU, at least 1;
// 0 without a call.
func (r *Readers) busy(gpu device.GPU) (longest time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for c := range r.running {
		if c.gpu == gpu {
			longest = max(longest, time.Since(c.startAt), 1)
		}
	}
	return longest
}

// Stalled reports whether a call about the GPU hangs.
func (r *Readers) Stalled(gpu device.GPU) bool { return r.busy(gpu) > stallTimeout }

// hasFailed reports whether the newest read of the GPU returned an error.
func (r *Readers) hasFailed(gpu device.GPU) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failed[gpu]
}

// Drain waits until no call runs, and reports false if ctx is done first.
func (r *Readers) Drain(ctx context.Context) bool {
	for !r.Idle() {
		if retry.Sleep(ctx, drainPollInterval) != nil {
			return false
		}
	}
	return true
}
