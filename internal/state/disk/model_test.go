package disk

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"sync/atomic"
	"syscall"
)

var errCrashed = errors.New("the power is gone")

// model is a disk in memory, which loses what a disk may lose.
type model struct {
	random *rand.Rand
	names  map[string]*inode // as everybody sees them
	synced map[string]*inode // that outlive a loss of power for sure
	steps  atomic.Int64      // until it is lost; negative: never
	full   atomic.Bool       // it has no room
	locked atomic.Bool       // it is read-only
	broken error             // of each read, but for OwnerName
	made   int
	writes int // of files that were renamed into place, but for OwnerName
}

type inode struct{ content, synced []byte }

func newModel(random *rand.Rand) *model {
	m := &model{random: random, names: map[string]*inode{}, synced: map[string]*inode{}}
	m.steps.Store(-1)
	return m
}

// step is one thing done to the disk.
func (m *model) step() error {
	if m.locked.Load() {
		return syscall.EROFS
	}
	if m.steps.Load() == 0 {
		return errCrashed
	}
	m.steps.Add(-1)
	return nil
}

func (m *model) make() error { return nil }

func (m *model) read(name string, _ int64) ([]byte, error) {
	if m.broken != nil && name != OwnerName && m.names[name] != nil {
		return nil, m.broken
	}
	if n := m.names[name]; n != nil {
		return n.content, nil
	}
	return nil, fs.ErrNotExist
}

func (m *model) create(string) (file, error) {
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
	if to != OwnerName {
		m.writes++
	}
	return nil
}

func (m *model) remove(name string) error {
	if err := m.step(); err != nil {
		return err
	}
	if m.names[name] == nil {
		return fs.ErrNotExist
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

func (m *model) tidy(string) {}

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
	if o.full.Load() {
		return 0, syscall.ENOSPC
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
// has not. A process that is killed leaves all that it did.
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
