package disk

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"sync/atomic"
	"syscall"

	"github.com/podgauge/podgauge/internal/atomicfile"
)

var errCrashed = errors.New("the power is gone")

// modelDisk is a disk in memory that loses data as a real disk may.
type modelDisk struct {
	random  *rand.Rand
	names   map[string]*modelInode // as readers see them
	synced  map[string]*modelInode // that survive a loss of power
	steps   atomic.Int64           // until the crash; negative: no crash
	full    atomic.Bool            // no space
	locked  atomic.Bool            // read-only
	broken  error                  // of each read, except of OwnerFileName
	created int
	writes  int // of files that were renamed into place, except OwnerFileName
}

type modelInode struct{ content, synced []byte }

func newModelDisk(random *rand.Rand) *modelDisk {
	m := &modelDisk{random: random, names: map[string]*modelInode{}, synced: map[string]*modelInode{}}
	m.steps.Store(-1)
	return m
}

// step counts a write to the disk.
func (m *modelDisk) step() error {
	if m.locked.Load() {
		return syscall.EROFS
	}
	if m.steps.Load() == 0 {
		return errCrashed
	}
	m.steps.Add(-1)
	return nil
}

func (m *modelDisk) mkdir() error { return nil }

func (m *modelDisk) read(name string) ([]byte, error) {
	if m.broken != nil && name != OwnerFileName && m.names[name] != nil {
		return nil, m.broken
	}
	if n := m.names[name]; n != nil {
		return n.content, nil
	}
	return nil, fs.ErrNotExist
}

func (m *modelDisk) Create(string) (atomicfile.TempFile, error) {
	if err := m.step(); err != nil {
		return nil, err
	}
	m.created++
	o := openModelFile{m, fmt.Sprintf("temporary %d", m.created), &modelInode{}}
	m.names[o.name] = o.modelInode
	return o, nil
}

func (m *modelDisk) Rename(from, to string) error {
	if err := m.step(); err != nil {
		return err
	}
	if m.names[from] == nil {
		return fs.ErrNotExist
	}
	m.names[to] = m.names[from]
	delete(m.names, from)
	if to != OwnerFileName {
		m.writes++
	}
	return nil
}

func (m *modelDisk) Remove(name string) error {
	if err := m.step(); err != nil {
		return err
	}
	if m.names[name] == nil {
		return fs.ErrNotExist
	}
	delete(m.names, name)
	return nil
}

func (m *modelDisk) Sync() error {
	if err := m.step(); err != nil {
		return err
	}
	m.synced = maps.Clone(m.names)
	return nil
}

func (m *modelDisk) RemoveStaleTemps(string) {}

// openModelFile is an open file of a modelDisk.
type openModelFile struct {
	*modelDisk
	name string
	*modelInode
}

func (o openModelFile) Name() string { return o.name }

func (o openModelFile) Write(content []byte) (int, error) {
	if err := o.step(); err != nil {
		o.content = content[:o.random.IntN(len(content)+1)]
		return 0, err
	}
	if o.full.Load() {
		return 0, syscall.ENOSPC
	}
	o.content = content
	return len(content), nil
}

func (o openModelFile) Sync() error {
	if err := o.step(); err != nil {
		return err
	}
	o.modelInode.synced = o.content
	return nil
}

func (o openModelFile) Close() error { return o.step() }

// restart returns the disk of the next process. After a loss of power, unsynced content may be cut short, and unsynced renames may be
// undone. A killed process loses nothing.
func (m *modelDisk) restart(power bool) *modelDisk {
	next := newModelDisk(m.random)
	names := m.names
	if power && m.random.IntN(2) == 0 {
		names = m.synced
	}
	for name, n := range names {
		content := n.content
		if power && n.synced == nil {
			content = content[:m.random.IntN(len(content)+1)]
		}
		next.names[name] = &modelInode{content, content}
	}
	next.synced = maps.Clone(next.names)
	return next
}
