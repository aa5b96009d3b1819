package disk

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/podgauge/podgauge/internal/atomicfile"
	"github.com/podgauge/podgauge/test/bubble"
)

// testCounter is a value of the tests: events that must not be lost, and a count that must not fall.
type testCounter struct {
	Version int    `json:"version"`
	Events  uint64 `json:"verdict"`
	Count   uint64 `json:"count"`
}

// counterFormat is the format of testCounter.
func counterFormat(version int) Format[testCounter] {
	return Format[testCounter]{
		Name: "counter", Version: version,
		Validate: func(c *testCounter) error {
			if c.Count > 1e9 {
				return errors.New("count too large")
			}
			return nil
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

func newTestProcess(files directory) (p *testProcess, err error) {
	p = &testProcess{}
	p.File = New(newFolder(files), counterFormat(1), slog.New(slog.NewTextHandler(&p.log, nil)))
	p.testCounter, err = p.Read()
	p.Version = 1
	return p, err
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

// TestKilledAtAnyPoint: processes write until they are killed, or the power fails, at every step of a write, on a disk that is full
// or read-only now and then. The next process has the confirmed value or a newer one, and its count starts from 0 or from at least
// the scraped count.
func TestKilledAtAnyPoint(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	continued, restarted := 0, 0
	for range 400 {
		disk := newModelDisk(random)
		verdict, scraped := uint64(0), uint64(0)
		for range 10 {
			disk.full.Store(random.IntN(6) == 0)
			disk.locked.Store(random.IntN(6) == 0)
			p, err := newTestProcess(disk)
			if err != nil {
				t.Fatal(err)
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

// TestExportableIsStored: scrapes show stored counts, even during a write.
func TestExportableIsStored(t *testing.T) {
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

// TestWritten: a value is written when the next process has it, not when a scrape may show it.
func TestWritten(t *testing.T) {
	disk := newModelDisk(rand.New(rand.NewPCG(1, 2)))
	p, _ := newTestProcess(disk)
	check := func(when string, want uint64) {
		t.Helper()
		got := uint64(0)
		if status, _ := p.Get(); status.Written != nil {
			got = status.Written.Count
		}
		if got != want {
			t.Errorf("%s: %d is written, want %d", when, got, want)
		}
	}
	p.increment()
	check("before the first write", 0)
	disk.full.Store(true)
	p.Flush()
	check("on a full disk", 0)
	disk.full.Store(false)
	p.Flush()
	check("after a write", 1)
	disk.full.Store(true)
	p.increment()
	p.Flush()
	check("on a disk that filled up", 1)
}

// TestFullDisk: without a file all counts are shown, and with a file the counts that the file has.
func TestFullDisk(t *testing.T) {
	disk := newModelDisk(rand.New(rand.NewPCG(1, 2)))
	disk.full.Store(true)
	p, _ := newTestProcess(disk)
	for want := uint64(1); want < 5; want++ {
		p.increment()
		if p.Flush() == nil {
			t.Error("a write to a full disk succeeded")
		}
		if got := p.scrape(t); got != want {
			t.Errorf("without a file a scrape shows %d, want %d", got, want)
		}
	}
	if n := strings.Count(p.log.String(), "\n"); n != 1 {
		t.Errorf("%d log lines: %s", n, p.log.String())
	}
	disk.full.Store(false)
	if err := p.Flush(); err != nil {
		t.Fatal(err)
	}
	disk.full.Store(true)
	p.increment()
	if p.Flush() == nil || p.scrape(t) != 4 {
		t.Errorf("with a file of 4 events a scrape shows %d", p.scraped)
	}
	if next, err := newTestProcess(disk.restart(false)); err != nil || next.Count != 4 || next.scrape(t) != 4 {
		t.Errorf("the next process has %d, %v", next.Count, err)
	}
	disk.full.Store(false)
	if err := p.Flush(); err != nil || p.scrape(t) != 5 {
		t.Errorf("with space again: %v, and a scrape shows %d", err, p.scraped)
	}
}

// TestUnreadableFile: the file is set aside, and no later write removes it.
func TestUnreadableFile(t *testing.T) {
	for name, content := range map[string]string{
		"broken": `{"version":1,"verdict":3,"count":3}`, "empty": "", "not an object": "[]", "no version": "{}", "old version": `{"version":0}`,
		"two values": `{"version":1}{}`, "type": `{"version":1,"count":-1}`, "invalid": `{"version":1,"count":1000000001}`,
	} {
		disk := newModelDisk(rand.New(rand.NewPCG(1, 2)))
		disk.names["counter.json"] = &modelInode{content: []byte(content)}
		if name == "broken" {
			disk.broken = syscall.EIO
		}
		p, err := newTestProcess(disk)
		if p.Count != 0 || !errors.Is(err, errInvalidFile) && !errors.Is(err, disk.broken) {
			t.Errorf("%s: count %d, %v", name, p.Count, err)
		}
		disk.broken = nil
		p.increment()
		if err := p.Flush(); err != nil {
			t.Fatal(err)
		}
		if n := disk.names["counter.json"+invalidSuffix]; n == nil || string(n.content) != content {
			t.Errorf("%s: the file is lost, left are %v", name, disk.names)
		}
	}
}

// TestReadOnlyDisk: counts stay as they are, and the next process continues from them.
func TestReadOnlyDisk(t *testing.T) {
	disk := newModelDisk(rand.New(rand.NewPCG(1, 2)))
	p, _ := newTestProcess(disk)
	p.increment()
	p.Flush()
	disk.locked.Store(true)
	p.increment()
	if p.Flush() == nil || p.scrape(t) != 1 {
		t.Errorf("a scrape shows %d", p.scraped)
	}
	next, err := newTestProcess(disk)
	if status, _ := next.Get(); err != nil || next.Count != 1 || status.Err == nil || next.scrape(t) != 1 {
		t.Errorf("the next process has %d, %v", next.Count, err)
	}
	disk.locked.Store(false)
	next.increment()
	if err := next.Flush(); err != nil || next.scrape(t) != 2 {
		t.Errorf("when it can be written to a scrape shows %d, %v", next.scraped, err)
	}
}

// TestNewestProcessOwnsFolder: an older process does not replace the files of a newer one.
func TestNewestProcessOwnsFolder(t *testing.T) {
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
	if next, err := newTestProcess(disk); err != nil || next.Count != 7 {
		t.Errorf("the next process has %d, %v", next.Count, err)
	}
}

// TestFileOfNewerVersion: the file is unchanged, and read again after the upgrade. The older version has a file of its own until then.
func TestFileOfNewerVersion(t *testing.T) {
	disk := newModelDisk(rand.New(rand.NewPCG(1, 2)))
	const newer = `{"version":2,"verdict":100}`
	disk.names["counter.json"] = &modelInode{content: []byte(newer)}
	for n := range uint64(3) {
		p, err := newTestProcess(disk)
		if !errors.Is(err, errNewerVersion) || p.Events != n || p.Count != n {
			t.Errorf("process %d has %d events: %v", n, p.Events, err)
		}
		p.increment()
		if err := p.Flush(); err != nil || p.scrape(t) != n+1 {
			t.Errorf("process %d cannot write: %v", n, err)
		}
	}
	if got := string(disk.names["counter.json"].content); got != newer || len(disk.names) != 3 {
		t.Errorf("the newer version finds %s among %v", got, disk.names)
	}
	upgraded := New(newFolder(disk), counterFormat(2), slog.New(slog.DiscardHandler))
	if c, err := upgraded.Read(); c.Events != 100 || err != nil {
		t.Errorf("after the upgrade: %+v, %v", c, err)
	}
}

// TestStormIsWrittenOnceASecond: an urgent value is written at once.
func TestStormIsWrittenOnceASecond(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		disk := newModelDisk(rand.New(rand.NewPCG(9, 10)))
		p, _ := newTestProcess(disk)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- p.Run(ctx) }()
		for n := range uint64(100_000) {
			p.Save(testCounter{Version: 1, Count: n + 1}, false)
			time.Sleep(100 * time.Microsecond)
		}
		synctest.Wait()
		if disk.writes < 10 || disk.writes > 11 {
			t.Errorf("%d writes in ten seconds", disk.writes)
		}
		writes := disk.writes
		p.Save(testCounter{Version: 1, Count: 100_001}, true)
		synctest.Wait()
		if disk.writes != writes+1 || !bytes.Contains(disk.names["counter.json"].content, []byte("100001")) {
			t.Errorf("an urgent value is not written at once")
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if disk.writes != writes+1 {
			t.Error("an unchanged value is written")
		}
		disk.locked.Store(true)
		p.Save(testCounter{Version: 1, Count: 100_002}, false)
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
		p.Save(testCounter{Version: 1, Count: 100_003}, false)
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

// TestHungWrite: Save and Get return, and scrapes show at most the counts of the file.
func TestHungWrite(t *testing.T) {
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

// TestHungDiskAtEnd: the end of the process waits for two seconds. The status reports a write that hangs for longer.
func TestHungDiskAtEnd(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		disk := &hangingDisk{modelDisk: newModelDisk(rand.New(rand.NewPCG(1, 2))), enter: make(chan struct{}), leave: make(chan struct{})}
		p, _ := newTestProcess(disk)
		p.increment()
		disk.hangs = true
		began := time.Now()
		p.End()
		if took := time.Since(began); took != endTimeout {
			t.Errorf("the end took %s", took)
		}
		time.Sleep(RetryInterval)
		if status, _ := p.Get(); !errors.Is(status.Err, errHung) {
			t.Errorf("while a write hangs: %v", status.Err)
		}
		close(disk.leave)
		synctest.Wait()
		if status, _ := p.Get(); status.Err != nil {
			t.Errorf("after the write: %v", status.Err)
		}
	})
}

// hungReadDisk is a disk on which reads hang until it is released.
type hungReadDisk struct {
	*modelDisk
	released chan struct{}
}

func (h hungReadDisk) read(name string) ([]byte, error) {
	<-h.released
	return h.modelDisk.read(name)
}

// TestHungDiskAtStart: a disk that hangs delays the start for readTimeout, and the next process reads the stored value.
func TestHungDiskAtStart(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		disk := newModelDisk(rand.New(rand.NewPCG(1, 2)))
		earlier, _ := newTestProcess(disk)
		earlier.increment()
		if err := earlier.Flush(); err != nil {
			t.Fatal(err)
		}
		stored := disk.names["counter.json"]
		hung := hungReadDisk{disk, make(chan struct{})}
		began := time.Now()
		p, err := newTestProcess(hung)
		if took := time.Since(began); took != readTimeout || !errors.Is(err, errUnread) || p.Count != 0 {
			t.Errorf("Read returns %v after %s", err, took)
		}
		began = time.Now()
		p.increment()
		p.End()
		if took := time.Since(began); took != 0 {
			t.Errorf("the end took %s", took)
		}
		close(hung.released)
		synctest.Wait()
		p.increment()
		if err := p.Flush(); !errors.Is(err, errUnread) || p.scrape(t) != 0 || disk.names["counter.json"] != stored {
			t.Errorf("when the disk answers, a write returns %v, and a scrape shows %d", err, p.scraped)
		}
		if status, _ := p.Get(); !errors.Is(status.Err, errUnread) || strings.Count(p.log.String(), "\n") != 1 {
			t.Errorf("status %+v, log %s", status, p.log.String())
		}
		if next, err := newTestProcess(disk); err != nil || next.Count != 1 {
			t.Errorf("the next process has %d, %v", next.Count, err)
		}
	})
}

// TestFIFO: a FIFO in the place of a file does not block the start.
func TestFIFO(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mkfifo(filepath.Join(dir, "counter.json"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := New(OpenFolder(dir), counterFormat(1), slog.New(slog.DiscardHandler)).Read(); !errors.Is(err, errInvalidFile) {
		t.Errorf("Read returns %v", err)
	}
}

func FuzzDecode(f *testing.F) {
	for _, content := range []string{"", "[]", "{}", `{"version":1}`, `{"version":2,"count":"x"}`, `{"version":1}{}`, `{"version":1,"count":-1}`} {
		f.Add([]byte(content))
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		c, err := counterFormat(1).decode(content)
		if err == nil && c.Version != 1 || err != nil && errors.Is(err, errInvalidFile) == errors.Is(err, errNewerVersion) {
			t.Error(fmt.Sprintf("%q", content), c, err)
		}
	})
}
