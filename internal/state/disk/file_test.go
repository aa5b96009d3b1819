package disk

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/podgauge/podgauge/internal/atomicfile"
)

// testCounter is what the tests keep: a verdict that must not be lost, and a count that must not fall.
type testCounter struct {
	Version int    `json:"version"`
	Events  uint64 `json:"verdict"`
	Count   uint64 `json:"count"`
}

func counterFormat(version int) Format[testCounter] {
	return Format[testCounter]{
		Name: "counter", Version: version, MaxBytes: 1024,
		Encode: func(c testCounter) ([]byte, error) {
			c.Version = version
			return json.Marshal(c)
		},
		Decode: func(content []byte) (c testCounter, err error) {
			return c, Unmarshal(content, version, &c)
		},
	}
}

// testProcess is one that keeps a counter.
type testProcess struct {
	*File[testCounter]
	testCounter
	scraped uint64 // what a scrape has shown last
	log     bytes.Buffer
}

func newTestProcess(files directory) (*testProcess, ReadResult[testCounter]) {
	p := &testProcess{}
	p.File = New(newFolder(files), counterFormat(1), slog.New(slog.NewTextHandler(&p.log, nil)))
	found := p.Read()
	if p.testCounter = found.Value; found.CountsStale {
		p.Count = 0
	}
	return p, found
}

// increment counts something.
func (p *testProcess) increment() {
	p.Events++
	p.Count++
	p.Save(p.testCounter, p.Count%5 == 0)
}

// scrape returns what a scrape shows now.
func (p *testProcess) scrape(t *testing.T) uint64 {
	t.Helper()
	shown := uint64(0)
	if status, _ := p.Get(); status.Exportable != nil {
		shown = status.Exportable.Count
	}
	if shown < p.scraped {
		t.Fatalf("a scrape shows %d after %d", shown, p.scraped)
	}
	p.scraped = shown
	return shown
}

// TestKilledAtAnyPoint has processes write until they are killed, or the power goes, at every
// step that a write takes and many times over, on a disk that is full or read-only now and
// then. The next process finds what was confirmed or something newer; and its count starts
// from 0 or from no less than a scrape has shown.
func TestKilledAtAnyPoint(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	continued, restarted := 0, 0
	for range 400 {
		disk := newModelDisk(random)
		verdict, scraped := uint64(0), uint64(0)
		for range 10 {
			disk.full.Store(random.IntN(6) == 0)
			disk.locked.Store(random.IntN(6) == 0)
			p, found := newTestProcess(disk)
			if found.Err != nil {
				t.Fatal(found.Err)
			}
			if p.Events < verdict {
				t.Fatalf("%d was confirmed, and %d is found", verdict, p.Events)
			}
			switch {
			case p.Count == 0:
				restarted++
			case p.Count >= scraped:
				continued++
			default:
				t.Fatalf("a scrape has shown %d, and the count continues from %d", scraped, p.Count)
			}
			verdict = p.Events
			p.scrape(t)
			disk.steps.Store(int64(random.IntN(40)))
			for range 12 {
				p.increment()
				p.scrape(t)
				wanted := p.Events
				if random.IntN(2) == 0 && p.Flush() == nil {
					verdict = wanted
				}
				p.scrape(t)
				disk.full.Store(random.IntN(4) == 0)
				disk.locked.Store(random.IntN(8) == 0)
			}
			scraped = p.scraped
			disk = disk.restart(random.IntN(2) == 0)
		}
	}
	if continued < 1000 || restarted < 100 {
		t.Errorf("%d processes have continued a count, and %d have started one", continued, restarted)
	}
}

// TestAScrapeShowsWhatIsStored while the disk works, also while a write is under way.
func TestAScrapeShowsWhatIsStored(t *testing.T) {
	p, _ := newTestProcess(newModelDisk(rand.New(rand.NewPCG(1, 2))))
	p.increment()
	if got := p.scrape(t); got != 1 {
		t.Errorf("before the first write a scrape shows %d: the next process would start from 0", got)
	}
	if err := p.Flush(); err != nil {
		t.Fatal(err)
	}
	p.increment()
	if got := p.scrape(t); got != 1 {
		t.Errorf("before it is stored a scrape shows %d", got)
	}
	if err := p.Flush(); err != nil {
		t.Fatal(err)
	}
	if got := p.scrape(t); got != 2 {
		t.Errorf("when it is stored a scrape shows %d", got)
	}
}

// TestAFullDisk costs the count of the next process and nothing else: this one counts on.
func TestAFullDisk(t *testing.T) {
	disk := newModelDisk(rand.New(rand.NewPCG(1, 2)))
	p, _ := newTestProcess(disk)
	p.increment()
	p.Flush()
	disk.full.Store(true)
	for want := uint64(2); want < 5; want++ {
		p.increment()
		if p.Flush() == nil {
			t.Error("a write to a full disk works")
		}
		if got := p.scrape(t); got != want {
			t.Errorf("of %d a scrape shows %d", want, got)
		}
	}
	if n := strings.Count(p.log.String(), "\n"); n != 1 {
		t.Errorf("it is logged %d times: %s", n, p.log.String())
	}
	next, found := newTestProcess(disk.restart(false))
	if !found.CountsStale || next.Events != 1 || next.Count != 0 {
		t.Errorf("the next process finds %+v", found)
	}
	disk.full.Store(false)
	if err := p.Flush(); err != nil {
		t.Fatal(err)
	}
	next, found = newTestProcess(disk.restart(false))
	if found.CountsStale || next.Count != 4 || len(disk.names) != 2 {
		t.Errorf("when there is room again the next process finds %+v among %v", found, disk.names)
	}
}

// TestAFullDiskAtStart leaves the count as it is until something is counted.
func TestAFullDiskAtStart(t *testing.T) {
	disk := newModelDisk(rand.New(rand.NewPCG(1, 2)))
	p, _ := newTestProcess(disk)
	p.increment()
	if err := p.Flush(); err != nil {
		t.Fatal(err)
	}
	disk.full.Store(true)
	next, _ := newTestProcess(disk)
	next.scrape(t)
	if next.Flush() == nil {
		t.Error("a write to a full disk works")
	}
	if got := next.scrape(t); got != 1 {
		t.Errorf("of 1 a scrape shows %d", got)
	}
	next.increment()
	if got := next.scrape(t); got != 2 {
		t.Errorf("of 2 a scrape shows %d", got)
	}
}

// TestAFileThatCannotBeRead is set aside, and no later write removes it.
func TestAFileThatCannotBeRead(t *testing.T) {
	for _, stale := range []string{"", staleSuffix} {
		disk := newModelDisk(rand.New(rand.NewPCG(1, 2)))
		const content = `{"version":1,"verdict":3,"count":3}`
		disk.names["counter.json"+stale] = &modelInode{content: []byte(content)}
		disk.broken = syscall.EIO
		p, found := newTestProcess(disk)
		if !errors.Is(found.Err, syscall.EIO) {
			t.Errorf("counter.json%s: the process finds %+v", stale, found)
		}
		disk.broken = nil
		p.increment()
		if err := p.Flush(); err != nil {
			t.Fatal(err)
		}
		if n := disk.names["counter.json"+invalidSuffix]; n == nil || string(n.content) != content {
			t.Errorf("counter.json%s is lost; left are %v", stale, disk.names)
		}
	}
}

// TestAReadOnlyDisk leaves the count as it is: the file cannot be moved away, and the next
// process continues from it.
func TestAReadOnlyDisk(t *testing.T) {
	disk := newModelDisk(rand.New(rand.NewPCG(1, 2)))
	p, _ := newTestProcess(disk)
	p.increment()
	p.Flush()
	disk.locked.Store(true)
	p.increment()
	if p.Flush() == nil || p.scrape(t) != 1 {
		t.Errorf("a scrape shows %d", p.scraped)
	}
	next, found := newTestProcess(disk)
	if status, _ := next.Get(); found.Err != nil || next.Count != 1 || status.Err == nil || next.scrape(t) != 1 {
		t.Errorf("the next process finds %+v", found)
	}
	disk.locked.Store(false)
	next.increment()
	if err := next.Flush(); err != nil || next.scrape(t) != 2 {
		t.Errorf("when it can be written to a scrape shows %d, %v", next.scraped, err)
	}
}

// TestTheNewestProcessOwnsTheFolder: an older one that still runs does not put its files in
// place of the newer one's, whatever it has left to write.
func TestTheNewestProcessOwnsTheFolder(t *testing.T) {
	disk := newModelDisk(rand.New(rand.NewPCG(1, 2)))
	older, _ := newTestProcess(disk)
	older.increment()
	older.Flush()
	newer, _ := newTestProcess(disk)
	for range 5 {
		newer.increment()
	}
	newer.Flush()
	older.increment()
	if err := older.Flush(); !errors.Is(err, errNotOwner) || older.scrape(t) != 1 {
		t.Errorf("the older one writes: %v, and a scrape of it shows %d", err, older.scraped)
	}
	newer.increment()
	if err := newer.Flush(); err != nil {
		t.Errorf("the newer one does not: %v", err)
	}
	if next, found := newTestProcess(disk); found.CountsStale || next.Count != 7 {
		t.Errorf("the next process finds %+v", found)
	}
}

// TestAFileOfANewerVersionIsLeftAlone, and read again after the upgrade. Meanwhile the older
// version keeps its own, from process to process.
func TestAFileOfANewerVersionIsLeftAlone(t *testing.T) {
	for _, stale := range []string{"", staleSuffix} {
		disk := newModelDisk(rand.New(rand.NewPCG(1, 2)))
		const newer = `{"version":2,"verdict":"of another type"}`
		disk.names["counter.json"+stale] = &modelInode{content: []byte(newer)}
		for n := range uint64(3) {
			p, found := newTestProcess(disk)
			if !errors.Is(found.Err, ErrNewerVersion) || p.Events != n || p.Count != 0 {
				t.Errorf("process %d finds %+v", n, found)
			}
			p.increment()
			if err := p.Flush(); err != nil || p.scrape(t) != 1 {
				t.Errorf("process %d cannot write: %v", n, err)
			}
		}
		if got := string(disk.names["counter.json"+stale].content); got != newer || len(disk.names) != 3 {
			t.Errorf("the newer version finds %s among %v", got, disk.names)
		}
		upgraded := New(newFolder(disk), Format[string]{
			Name: "counter", Version: 2, MaxBytes: 1024,
			Decode: func(content []byte) (string, error) { return string(content), nil },
		}, slog.New(slog.DiscardHandler))
		if found := upgraded.Read(); found.Value != newer || found.Err != nil {
			t.Errorf("after the upgrade it finds %+v", found)
		}
	}
}

// TestAStormIsWrittenOnceASecond, and what is urgent at once.
func TestAStormIsWrittenOnceASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newModelDisk(rand.New(rand.NewPCG(9, 10)))
		p, _ := newTestProcess(disk)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- p.Run(ctx) }()
		for n := range uint64(100_000) {
			p.Save(testCounter{Count: n + 1}, false)
			time.Sleep(100 * time.Microsecond)
		}
		synctest.Wait()
		if disk.writes < 10 || disk.writes > 11 {
			t.Errorf("%d writes in ten seconds", disk.writes)
		}
		writes := disk.writes
		p.Save(testCounter{Count: 100_001}, true)
		synctest.Wait()
		if disk.writes != writes+1 || !bytes.Contains(disk.names["counter.json"].content, []byte("100001")) {
			t.Errorf("what is urgent is not written at once")
		}
		p.Save(testCounter{Count: 100_001}, false)
		time.Sleep(time.Minute)
		synctest.Wait()
		if disk.writes != writes+1 {
			t.Error("what has not changed is written")
		}
		disk.locked.Store(true)
		p.Save(testCounter{Count: 100_002}, false)
		time.Sleep(time.Minute)
		synctest.Wait()
		if status, _ := p.Get(); status.Err == nil {
			t.Error("a disk that fails is not reported")
		}
		disk.locked.Store(false)
		time.Sleep(RetryInterval)
		synctest.Wait()
		if status, _ := p.Get(); status.Err != nil || status.Exportable.Count != 100_002 {
			t.Errorf("when it works again there is %+v", status)
		}
		p.Save(testCounter{Count: 100_003}, false)
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if err := p.Flush(); err != nil {
			t.Error(err)
		}
		if next, _ := newTestProcess(disk); next.Count != 100_003 {
			t.Errorf("at the end there is %d", next.Count)
		}
	})
}

// TestAHungDiskHoldsUpNoOne: Save and Look return, and a scrape shows no more than the file
// may have.
func TestAHungDiskHoldsUpNoOne(t *testing.T) {
	disk := &hangingDisk{modelDisk: newModelDisk(rand.New(rand.NewPCG(1, 2))), enter: make(chan struct{}), leave: make(chan struct{})}
	p, _ := newTestProcess(disk)
	p.increment()
	disk.hangs = true
	ended := make(chan error)
	go func() { ended <- p.Flush() }()
	<-disk.enter
	p.increment()
	if got := p.scrape(t); got != 1 {
		t.Errorf("while a write hangs a scrape shows %d", got)
	}
	close(disk.leave)
	if err := <-ended; err != nil || p.scrape(t) != 1 {
		t.Errorf("when it has come back a scrape shows %d, %v", p.scraped, err)
	}
}

// hangingDisk is a disk on which the next file that is made hangs.
type hangingDisk struct {
	*modelDisk
	hangs        bool
	enter, leave chan struct{}
}

func (h *hangingDisk) Create(name string) (atomicfile.TempFile, error) {
	if h.hangs && name != OwnerFileName {
		h.hangs = false
		close(h.enter)
		<-h.leave
	}
	return h.modelDisk.Create(name)
}

// hungReadDisk is a disk that does not answer reads of a counter until it is released, and of another file until the end.
type hungReadDisk struct {
	*modelDisk
	released, end chan struct{}
}

func (h hungReadDisk) read(name string, limit int64) ([]byte, error) {
	switch {
	case strings.HasPrefix(name, "counter"):
		<-h.released
	case strings.HasPrefix(name, "another"):
		<-h.end
	}
	return h.modelDisk.read(name, limit)
}

// TestADiskThatHangsAtStart holds up neither start nor end, and what it has stored is never replaced.
func TestADiskThatHangsAtStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newModelDisk(rand.New(rand.NewPCG(1, 2)))
		earlier, _ := newTestProcess(disk)
		for range 7 {
			earlier.increment()
		}
		if err := earlier.Flush(); err != nil {
			t.Fatal(err)
		}
		stored := disk.names["counter.json"]
		hungDisk := hungReadDisk{disk, make(chan struct{}), make(chan struct{})}
		defer close(hungDisk.end)
		began := time.Now()
		p, found := newTestProcess(hungDisk)
		if took := time.Since(began); took != readTimeout || !errors.Is(found.Err, ErrDiskTimeout) {
			t.Errorf("Read returns %v after %s", found.Err, took)
		}
		began = time.Now()
		another := New(p.folder, Format[testCounter]{Name: "another"}, slog.New(slog.DiscardHandler))
		if found := another.Read(); time.Since(began) != 0 || !errors.Is(found.Err, ErrDiskTimeout) {
			t.Errorf("Read of another file returns %v after %s", found.Err, time.Since(began))
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- p.Run(ctx) }()
		p.increment()
		time.Sleep(time.Minute)
		if status, _ := p.Get(); !errors.Is(status.Err, ErrDiskTimeout) || p.scrape(t) != 0 {
			t.Errorf("while it hangs there is %+v", status)
		}
		began = time.Now()
		cancel()
		<-ended
		p.End()
		if took := time.Since(began); took != endTimeout {
			t.Errorf("the end takes %s", took)
		}
		synctest.Wait()
		if got := disk.names["counter.json"]; got != stored {
			t.Error("what was not read is replaced")
		}
		close(hungDisk.released)
		synctest.Wait()
		p.increment()
		if err := p.Flush(); !errors.Is(err, errLateRead) || p.scrape(t) != 2 {
			t.Errorf("when it answers again a write returns %v, and a scrape shows %d", err, p.scraped)
		}
		next, found := newTestProcess(disk)
		if !found.CountsStale || next.Events != 7 || next.Count != 0 {
			t.Errorf("the next process finds %+v", found)
		}
		if n := strings.Count(p.log.String(), "level=ERROR msg=\"state folder hangs: started"); n != 1 {
			t.Errorf("it is logged %d times: %s", n, p.log.String())
		}
	})
}

// TestADiskThatHangsAtStartAndFails, as one of the network does that gives up: the next process tries again.
func TestADiskThatHangsAtStartAndFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newModelDisk(rand.New(rand.NewPCG(1, 2)))
		earlier, _ := newTestProcess(disk)
		earlier.increment()
		if err := earlier.Flush(); err != nil {
			t.Fatal(err)
		}
		disk.broken = syscall.EIO
		hungDisk := hungReadDisk{disk, make(chan struct{}), nil}
		p, _ := newTestProcess(hungDisk)
		close(hungDisk.released)
		synctest.Wait()
		disk.broken = nil
		p.increment()
		if err := p.Flush(); !errors.Is(err, errLateRead) {
			t.Errorf("a write returns %v", err)
		}
		if next, found := newTestProcess(disk); found.Err != nil || next.Events != 1 {
			t.Errorf("the next process finds %+v", found)
		}
	})
}

// TestAnEmptyDiskThatHangsAtStart is written to as soon as it answers.
func TestAnEmptyDiskThatHangsAtStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hungDisk := hungReadDisk{newModelDisk(rand.New(rand.NewPCG(1, 2))), make(chan struct{}), nil}
		p, _ := newTestProcess(hungDisk)
		p.increment()
		close(hungDisk.released)
		if err := p.Flush(); err != nil || p.scrape(t) != 1 {
			t.Errorf("a write returns %v, and a scrape shows %d", err, p.scraped)
		}
		if next, found := newTestProcess(hungDisk.modelDisk); found.CountsStale || next.Count != 1 {
			t.Errorf("the next process finds %+v", found)
		}
	})
}

func FuzzUnmarshal(f *testing.F) {
	for _, content := range []string{"", "[]", "{}", `{"version":1}`, `{"version":2,"count":"x"}`, `{"version":1}{}`, `{"version":1,"count":-1}`} {
		f.Add([]byte(content))
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		var c testCounter
		err := Unmarshal(content, 1, &c)
		if err == nil && c.Version != 1 || err != nil && errors.Is(err, ErrInvalidFile) == errors.Is(err, ErrNewerVersion) {
			t.Error(fmt.Sprintf("%q", content), c, err)
		}
	})
}
