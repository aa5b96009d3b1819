package state

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/podgauge/podgauge/device"
)

var errCrashed = errors.New("the power is gone")

// model is a disk in memory, which loses what a disk may lose.
type model struct {
	random *rand.Rand
	names  map[string]*inode // as everybody sees them
	synced map[string]*inode // that outlive a loss of power for sure
	steps  atomic.Int64      // until it is lost; negative: never
	made   int
	writes int // files that were renamed into place
}

type inode struct{ content, synced []byte }

func newModel(random *rand.Rand) *model {
	m := &model{random: random, names: map[string]*inode{}, synced: map[string]*inode{}}
	m.steps.Store(-1)
	return m
}

// step is one thing done to the disk.
func (m *model) step() error {
	if m.steps.Load() == 0 {
		return errCrashed
	}
	m.steps.Add(-1)
	return nil
}

func (m *model) read() ([]byte, error) {
	if n := m.names[FileName]; n != nil {
		return n.content, nil
	}
	return nil, fs.ErrNotExist
}

func (m *model) create() (file, error) {
	if err := m.step(); err != nil {
		return nil, err
	}
	m.made++
	o := open{m, fmt.Sprintf("temporary %d", m.made), &inode{}}
	m.names[o.name] = o.inode
	return o, nil
}

func (m *model) rename(from, to string) error {
	if err := m.step(); err != nil {
		return err
	}
	if m.names[from] == nil {
		return fs.ErrNotExist
	}
	m.names[to] = m.names[from]
	delete(m.names, from)
	m.writes++
	return nil
}

func (m *model) remove(name string) error {
	if err := m.step(); err != nil {
		return err
	}
	delete(m.names, name)
	return nil
}

func (m *model) sync() error {
	if err := m.step(); err != nil {
		return err
	}
	m.synced = maps.Clone(m.names)
	return nil
}

func (m *model) tidy() {}

// open is an open file of it.
type open struct {
	*model
	name string
	*inode
}

func (o open) Name() string { return o.name }

func (o open) Write(content []byte) (int, error) {
	if err := o.step(); err != nil {
		o.content = content[:o.random.IntN(len(content)+1)]
		return 0, err
	}
	o.content = content
	return len(content), nil
}

func (o open) Sync() error {
	if err := o.step(); err != nil {
		return err
	}
	o.inode.synced = o.content
	return nil
}

func (o open) Close() error { return o.step() }

// restart is what the next process finds: after a loss of power the content of what was
// not synced is anything up to what was written, and a change of names has happened or
// has not. One that is but killed leaves all that it did.
func (m *model) restart(power bool) *model {
	next := newModel(m.random)
	names := m.names
	if power && m.random.IntN(2) == 0 {
		names = m.synced
	}
	for name, n := range names {
		content := n.content
		if power && n.synced == nil {
			content = content[:m.random.IntN(len(content)+1)]
		}
		next.names[name] = &inode{content, content}
	}
	next.synced = maps.Clone(next.names)
	return next
}

// generation is a history that is told from others by its count of flaps.
func generation(n uint64) device.History {
	return device.History{Records: []device.Record{
		{GPU: "GPU-a", Flaps: n, Reason: "xid_79", Since: time.Unix(1, 0).UTC(), ByReset: true, Xids: []device.Xid{{Code: 79, Count: n}}},
		{GPU: "GPU-b", Flaps: 1},
	}}
}

// TestKilledAtAnyPoint has processes write until they are killed, or the power goes, at
// every step that a write takes and many times over. What the next one reads is what was
// confirmed, or what was being written; and nothing else, ever.
func TestKilledAtAnyPoint(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	log := slog.New(slog.DiscardHandler)
	crashes := 0
	for range 250 {
		disk, said := newModel(random), uint64(0)
		for range 10 {
			f := newFile(disk, "boot", log)
			disk.steps.Store(int64(random.IntN(24)))
			f.read()
			confirmed := said
			for err := error(nil); err == nil; {
				said++
				f.Save(generation(said))
				if err = f.write(random.IntN(8) == 0); err == nil {
					confirmed = said
				}
			}
			disk = disk.restart(random.IntN(2) == 0)
			crashes++
			h := newFile(disk, "boot", log).read()
			if h.Lost {
				t.Fatalf("what was left after %d is not read", confirmed)
			}
			read := uint64(0)
			if len(h.Records) > 0 {
				read = h.Records[0].Flaps
				if read > 0 && h.Records[0].Reason != "xid_79" || len(h.Records) != 2 {
					t.Fatalf("it is %+v", h)
				}
			}
			if read < confirmed || read > said {
				t.Fatalf("read is %d, of which %d was confirmed and %d the last", read, confirmed, said)
			}
			said = read
		}
	}
	if crashes < 1000 {
		t.Errorf("%d crashes", crashes)
	}
}

// childEnv has the test's binary be the process that is killed.
const childEnv = "PODGAUGE_STATE_CHILD"

// child writes ever newer histories, and says which are written.
func child(dir string) {
	f, h := Open(Options{Dir: dir, Boot: "/none", Log: slog.New(slog.DiscardHandler)})
	n := uint64(0)
	if len(h.Records) > 0 {
		n = h.Records[0].Flaps
	}
	for {
		n++
		f.Save(generation(n))
		if err := f.write(false); err != nil {
			os.Exit(1)
		}
		fmt.Println(n)
	}
}

// TestKilledForReal kills a process that writes to a real folder.
func TestKilledForReal(t *testing.T) {
	dir := t.TempDir()
	random := rand.New(rand.NewPCG(7, 8))
	for range 20 {
		ctx, cancel := context.WithCancel(t.Context())
		c := exec.CommandContext(ctx, os.Args[0])
		c.Env = append(os.Environ(), childEnv+"="+dir)
		out, err := c.StdoutPipe()
		if err != nil || c.Start() != nil {
			t.Fatal("the child does not start", err)
		}
		lines := bufio.NewScanner(out)
		confirmed := uint64(0)
		for wanted := 1 + random.IntN(20); wanted > 0 && lines.Scan(); wanted-- {
			confirmed, err = strconv.ParseUint(lines.Text(), 10, 64)
			if err != nil {
				t.Fatal(err)
			}
		}
		time.AfterFunc(time.Duration(random.IntN(2000))*time.Microsecond, cancel)
		for lines.Scan() {
			if n, err := strconv.ParseUint(lines.Text(), 10, 64); err == nil { // the last line may be cut short
				confirmed = max(confirmed, n)
			}
		}
		c.Wait()
		cancel()
		_, h := Open(Options{Dir: dir, Boot: "/none", Log: slog.New(slog.DiscardHandler)})
		if h.Lost || len(h.Records) != 2 || h.Records[0].Flaps < confirmed {
			t.Fatalf("%d was confirmed, and it reads %+v", confirmed, h)
		}
	}
	if names := list(t, dir); slices.Contains(names, BadName) {
		t.Errorf("a file was set aside: %q", names)
	}
}

func list(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}
