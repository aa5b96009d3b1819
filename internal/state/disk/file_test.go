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

// testCounter is the value of the tests: events that must not be lost, and a count that must not fall.
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

// testProcess is a process that keeps a counter.
type testProcess struct {
	*File[testCounter]
	testCounter
	scraped uint64 // count of the last scrape
	log     bytes.Buffer
}

func newTestProcess(files directory) (p *testProcess, err error) {
	p = &testProcess{}
	p.File = New(newFolder(files), counterFormat(1), slog.New(slog.NewTextHandler(&p.log, nil)))
	p.testCounter, err = p.Read()
	p.Version = 1
	return p, err
}

// increment counts an event.
func (p *testProcess) increment() {
	p.Events++
	p.Count++
	p.Save(p.testCounter, p.Count%5 == 0)
}

// scrape returns the count that a scrape exports now.
func (p *testProcess) scrape(t *testing.T) uint64 {
	t.Helper()
	exported := uint64(0)
	if status, _ := p.Get(); status.Exportable != nil {
		exported = status.Exportable.Count
	}
	if exported < p.scraped {
		t.Fatalf("scraped count: got %d after %d", exported, p.scraped)
	}
	p.scraped = exported
	return exported
}

// TestKilledAtAnyPoint kills processes, or cuts the power, at every step of a write, on a disk that may be full or read-only. The next
// process has the confirmed events or newer ones, and its count starts from 0 or from at least the scraped count.
func TestKilledAtAnyPoint(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	continued, restarted := 0, 0
	for range 400 {
		disk := newModelDisk(random)
		confirmed, scraped := uint64(0), uint64(0)
		for range 10 {
			disk.full.Store(random.IntN(6) == 0)
			disk.locked.Store(random.IntN(6) == 0)
			p, err := newTestProcess(disk)
			if err != nil {
				t.Fatal(err)
			}
			if p.Events < confirmed {
				t.Fatalf("events: got %d, want at least %d", p.Events, confirmed)
			}
			switch {
			case p.Count == 0:
				restarted++
			case p.Count >= scraped:
				continued++
			default:
				t.Fatalf("continued count: got %d, want at least %d", p.Count, scraped)
			}
			confirmed = p.Events
			p.scrape(t)
			disk.steps.Store(int64(random.IntN(40)))
			for range 12 {
				p.increment()
				p.scrape(t)
				events := p.Events
				if random.IntN(2) == 0 && p.Flush() == nil {
					confirmed = events
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
		t.Errorf("got %d continued and %d restarted counts, want at least 1000 and 100", continued, restarted)
	}
}

// TestExportableIsStored checks that scrapes export stored counts, even during a write.
func TestExportableIsStored(t *testing.T) {
	p, _ := newTestProcess(newModelDisk(rand.New(rand.NewPCG(1, 2))))
	p.increment()
	if got := p.scrape(t); got != 1 {
		t.Errorf("scraped count before the first write: got %d, want 1", got)
	}
	if err := p.Flush(); err != nil {
		t.Fatal(err)
	}
	p.increment()
	if got := p.scrape(t); got != 1 {
		t.Errorf("scraped count before the write: got %d, want 1", got)
	}
	if err := p.Flush(); err != nil {
		t.Fatal(err)
	}
	if got := p.scrape(t); got != 2 {
		t.Errorf("scraped count after the write: got %d, want 2", got)
	}
}

// TestWritten checks that Written is the value that the next process reads, not the exported value.
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
			t.Errorf("%s: written count: got %d, want %d", when, got, want)
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
	check("on a disk that is full later", 1)
}

// TestFullDisk checks that all counts are exported without a file, and the counts of the file with a file.
func TestFullDisk(t *testing.T) {
	disk := newModelDisk(rand.New(rand.NewPCG(1, 2)))
	disk.full.Store(true)
	p, _ := newTestProcess(disk)
	for want := uint64(1); want < 5; want++ {
		p.increment()
		if p.Flush() == nil {
			t.Error("Flush on a full disk: got no error")
		}
		if got := p.scrape(t); got != want {
			t.Errorf("scraped count without a file: got %d, want %d", got, want)
		}
	}
	if n := strings.Count(p.log.String(), "\n"); n != 1 {
		t.Errorf("log lines: got %d, want 1: %s", n, p.log.String())
	}
	disk.full.Store(false)
	if err := p.Flush(); err != nil {
		t.Fatal(err)
	}
	disk.full.Store(true)
	p.increment()
	if p.Flush() == nil || p.scrape(t) != 4 {
		t.Errorf("scraped count with a file of 4 events: got %d, want 4", p.scraped)
	}
	if next, err := newTestProcess(disk.restart(false)); err != nil || next.Count != 4 || next.scrape(t) != 4 {
		t.Errorf("next process: got count %d, error %v, want 4", next.Count, err)
	}
	disk.full.Store(false)
	if err := p.Flush(); err != nil || p.scrape(t) != 5 {
		t.Errorf("with space again: got error %v and scraped count %d, want 5", err, p.scraped)
	}
}

// TestUnreadableFile checks that the file is renamed, and that no later write removes it.
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
			t.Errorf("%s: got count %d, error %v, want an error", name, p.Count, err)
		}
		disk.broken = nil
		p.increment()
		if err := p.Flush(); err != nil {
			t.Fatal(err)
		}
		if n := disk.names["counter.json"+invalidSuffix]; n == nil || string(n.content) != content {
			t.Errorf("%s: the renamed file is missing among %v", name, disk.names)
		}
	}
}

// TestReadOnlyDisk checks that counts do not change, and that the next process continues from them.
func TestReadOnlyDisk(t *testing.T) {
	disk := newModelDisk(rand.New(rand.NewPCG(1, 2)))
	p, _ := newTestProcess(disk)
	p.increment()
	p.Flush()
	disk.locked.Store(true)
	p.increment()
	if p.Flush() == nil || p.scrape(t) != 1 {
		t.Errorf("scraped count: got %d, want 1", p.scraped)
	}
	next, err := newTestProcess(disk)
	if status, _ := next.Get(); err != nil || next.Count != 1 || status.Err == nil || next.scrape(t) != 1 {
		t.Errorf("next process: got count %d, error %v, want 1 and a write error", next.Count, err)
	}
	disk.locked.Store(false)
	next.increment()
	if err := next.Flush(); err != nil || next.scrape(t) != 2 {
		t.Errorf("on a writable disk: got scraped count %d, error %v, want 2", next.scraped, err)
	}
}

// TestNewestProcessOwnsFolder checks that an older process does not replace the files of a newer one.
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
		t.Errorf("older process: got error %v and scraped count %d, want errNotOwner and 1", err, older.scraped)
	}
	newer.increment()
	if err := newer.Flush(); err != nil {
		t.Errorf("newer process: Flush: %v", err)
	}
	if next, err := newTestProcess(disk); err != nil || next.Count != 7 {
		t.Errorf("next process: got count %d, error %v, want 7", next.Count, err)
	}
}

// TestFileOfNewerVersion checks that the file is unchanged, and read after the upgrade. The older version uses another file until then.
func TestFileOfNewerVersion(t *testing.T) {
	disk := newModelDisk(rand.New(rand.NewPCG(1, 2)))
	const newer = `{"version":2,"verdict":100}`
	disk.names["counter.json"] = &modelInode{content: []byte(newer)}
	for n := range uint64(3) {
		p, err := newTestProcess(disk)
		if !errors.Is(err, errNewerVersion) || p.Events != n || p.Count != n {
			t.Errorf("process %d: got %d events, error %v, want errNewerVersion", n, p.Events, err)
		}
		p.increment()
		if err := p.Flush(); err != nil || p.scrape(t) != n+1 {
			t.Errorf("process %d: Flush: %v", n, err)
		}
	}
	if got := string(disk.names["counter.json"].content); got != newer || len(disk.names) != 3 {
		t.Errorf("file of the newer version: got %s among %v, want it unchanged", got, disk.names)
	}
	upgraded := New(newFolder(disk), counterFormat(2), slog.New(slog.DiscardHandler))
	if c, err := upgraded.Read(); c.Events != 100 || err != nil {
		t.Errorf("after the upgrade: got %+v, %v, want 100 events", c, err)
	}
}

// TestStormIsWrittenOnceASecond checks that a storm is written once a second, and an urgent value at once.
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
			t.Errorf("got %d writes in ten seconds, want 10 or 11", disk.writes)
		}
		writes := disk.writes
		p.Save(testCounter{Version: 1, Count: 100_001}, true)
		synctest.Wait()
		if disk.writes != writes+1 || !bytes.Contains(disk.names["counter.json"].content, []byte("100001")) {
			t.Errorf("an urgent value was not written at once")
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if disk.writes != writes+1 {
			t.Error("an unchanged value was written")
		}
		disk.locked.Store(true)
		p.Save(testCounter{Version: 1, Count: 100_002}, false)
		time.Sleep(time.Minute)
		synctest.Wait()
		if status, _ := p.Get(); status.Err == nil {
			t.Error("Err with a failing disk: got nil")
		}
		disk.locked.Store(false)
		time.Sleep(RetryInterval)
		synctest.Wait()
		if status, _ := p.Get(); status.Err != nil || status.Exportable.Count != 100_002 {
			t.Errorf("after the disk works again: got %+v, want count 100002 and no error", status)
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
			t.Errorf("count at the end: got %d, want 100003", next.Count)
		}
	})
}

// TestHungWrite checks that Save and Get return, and that scrapes export at most the counts of the file.
func TestHungWrite(t *testing.T) {
	disk := &hangingDisk{modelDisk: newModelDisk(rand.New(rand.NewPCG(1, 2))), entered: make(chan struct{}), release: make(chan struct{})}
	p, _ := newTestProcess(disk)
	p.increment()
	disk.hangs = true
	ended := make(chan error)
	go func() { ended <- p.Flush() }()
	<-disk.entered
	p.increment()
	if got := p.scrape(t); got != 1 {
		t.Errorf("scraped count while a write hangs: got %d, want 1", got)
	}
	close(disk.release)
	if err := <-ended; err != nil || p.scrape(t) != 1 {
		t.Errorf("after the write: got scraped count %d, error %v, want 1", p.scraped, err)
	}
}

// hangingDisk is a disk on which the next creation of a file hangs.
type hangingDisk struct {
	*modelDisk
	hangs            bool
	entered, release chan struct{}
}

func (h *hangingDisk) Create(name string) (atomicfile.TempFile, error) {
	if h.hangs && name != OwnerFileName {
		h.hangs = false
		close(h.entered)
		<-h.release
	}
	return h.modelDisk.Create(name)
}

// TestHungDiskAtEnd checks that the end of the process waits for two seconds. The status reports a write that hangs for longer.
func TestHungDiskAtEnd(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		disk := &hangingDisk{modelDisk: newModelDisk(rand.New(rand.NewPCG(1, 2))), entered: make(chan struct{}), release: make(chan struct{})}
		p, _ := newTestProcess(disk)
		p.increment()
		disk.hangs = true
		began := time.Now()
		p.End()
		if took := time.Since(began); took != endTimeout {
			t.Errorf("duration of End: got %s, want endTimeout", took)
		}
		time.Sleep(RetryInterval)
		if status, _ := p.Get(); !errors.Is(status.Err, errHung) {
			t.Errorf("while a write hangs: got %v, want errHung", status.Err)
		}
		close(disk.release)
		synctest.Wait()
		if status, _ := p.Get(); status.Err != nil {
			t.Errorf("after the write: got %v, want nil", status.Err)
		}
	})
}

// hungReadDisk is a disk on which reads hang until released is closed.
type hungReadDisk struct {
	*modelDisk
	released chan struct{}
}

func (h hungReadDisk) read(name string) ([]byte, error) {
	<-h.released
	return h.modelDisk.read(name)
}

// TestHungDiskAtStart checks that a disk that hangs delays the start for readTimeout, and that the next process reads the stored value.
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
			t.Errorf("Read: got error %v after %s, want errUnread after readTimeout", err, took)
		}
		began = time.Now()
		p.increment()
		p.End()
		if took := time.Since(began); took != 0 {
			t.Errorf("duration of End: got %s, want 0s", took)
		}
		close(hung.released)
		synctest.Wait()
		p.increment()
		if err := p.Flush(); !errors.Is(err, errUnread) || p.scrape(t) != 0 || disk.names["counter.json"] != stored {
			t.Errorf("after the disk responds: got error %v and scraped count %d, want errUnread and 0", err, p.scraped)
		}
		if status, _ := p.Get(); !errors.Is(status.Err, errUnread) || strings.Count(p.log.String(), "\n") != 1 {
			t.Errorf("got status %+v and log %s, want errUnread and one line", status, p.log.String())
		}
		if next, err := newTestProcess(disk); err != nil || next.Count != 1 {
			t.Errorf("next process: got count %d, error %v, want 1", next.Count, err)
		}
	})
}

// TestFIFO checks that a FIFO in the place of a file does not block the start.
func TestFIFO(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mkfifo(filepath.Join(dir, "counter.json"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := New(OpenFolder(dir), counterFormat(1), slog.New(slog.DiscardHandler)).Read(); !errors.Is(err, errInvalidFile) {
		t.Errorf("Read: got %v, want errInvalidFile", err)
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
