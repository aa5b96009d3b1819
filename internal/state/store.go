// Package state keeps the health of devices and the incidents in a file for
// the next process (docs/contributing/adr/0019-one-state-file.md).
package state

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/podgauge/podgauge/internal/atomicfile"
	"github.com/podgauge/podgauge/internal/health"
	"github.com/podgauge/podgauge/internal/incident"
	"github.com/podgauge/podgauge/internal/pubsub"
	"github.com/podgauge/podgauge/internal/retry"
)

const (
	// BootIDPath is the file with the id of the current boot.
	BootIDPath = "/proc/sys/kernel/random/boot_id"

	writeInterval = time.Second      // between two writes, unless a device has a fault
	retryInterval = 10 * time.Second // after a failed write, and until a write hangs
	readTimeout   = 5 * time.Second  // a disk that hangs must not keep the process from starting
	endTimeout    = 2 * time.Second
)

var (
	errHung       = errors.New("the disk does not respond")
	errHandedOver = errors.New("a newer podgauge process has the state")
)

// Store keeps the newest state, and writes it in the background: saves never
// wait for the disk.
type Store struct {
	path     string
	bootID   string
	log      *slog.Logger
	readOnly error // why the file is not replaced; nil: it is

	saved, fault chan struct{} // have room for one: requests to write
	disk         sync.Mutex    // held during a write
	handedOver   atomic.Bool   // a newer process writes the file; changed under disk

	mu sync.Mutex
	// All below are guarded by mu.
	newest content
	saves  uint64 // of newest
	status *pubsub.Value[WriteStatus]
}

// WriteStatus is the result of the newest write.
type WriteStatus struct {
	Used    bool   // there is a file
	Err     error  // nil if the state is on disk, or will be within a second
	written uint64 // saves on disk
}

// Open reads the state of an earlier process. A file that cannot be read is
// set aside with a log line, and the health is lost. Without a file at
// bootIDPath, no reboot is detected. The result of each write is published.
func Open(
	folder, bootIDPath string, published *pubsub.Value[WriteStatus], log *slog.Logger,
) (*Store, health.History, []incident.Incident) {
	boot, _ := os.ReadFile(bootIDPath) // empty: unknown
	s := &Store{
		path: filepath.Join(folder, FileName), bootID: strings.TrimSpace(string(boot)), log: log, status: published,
		saved: make(chan struct{}, 1), fault: make(chan struct{}, 1),
	}
	var err error
	if s.newest, err = s.readInTime(); err != nil {
		s.newest.Health.Lost = true
		log.Warn("state of an earlier process unreadable, checking devices before publication", "err", err)
	}
	s.newest.Version = version
	s.status.Set(WriteStatus{Used: true, Err: s.readOnly})
	s.save(func() {}, false) // a write shows whether the folder is usable
	history := s.newest.Health
	history.Rebooted = s.newest.BootID != "" && s.bootID != "" && s.newest.BootID != s.bootID
	return s, history, s.newest.Incidents
}

// readInTime reads the file. A file that another podgauge can read later is
// never replaced.
func (s *Store) readInTime() (content, error) {
	type result struct {
		content
		err error
	}
	r, inTime := retry.WithTimeout(context.Background(), readTimeout, func(context.Context) result {
		c, err := readFile(s.path)
		return result{c, err}
	})
	if !inTime {
		r.err = fmt.Errorf("%w: restart podgauge to read %s", errHung, s.path)
	}
	if errors.Is(r.err, errHung) || errors.Is(r.err, errNewer) {
		s.readOnly = r.err
	}
	return r.content, r.err
}

// SaveHealth schedules a write: within a second, at once if urgent. The caller
// must not change the history any more.
func (s *Store) SaveHealth(h health.History, urgent bool) {
	s.save(func() { s.newest.Health, s.newest.BootID = h, s.bootID }, urgent)
}

// SaveIncidents is like SaveHealth.
func (s *Store) SaveIncidents(all []incident.Incident, urgent bool) {
	s.save(func() { s.newest.Incidents = all }, urgent)
}

func (s *Store) save(change func(), urgent bool) {
	s.mu.Lock()
	change()
	s.saves++
	s.mu.Unlock()
	pubsub.Notify(s.saved)
	if urgent {
		pubsub.Notify(s.fault)
	}
}

// Stored reports whether the disk has all that was saved.
func (s *Store) Stored() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.status.Newest().written == s.saves
}

// Wait returns when the disk has all that was saved before the call, or an
// error when ctx is done.
func (s *Store) Wait(ctx context.Context) error {
	s.mu.Lock()
	saves := s.saves
	s.mu.Unlock()
	for {
		result, changed := s.status.Get()
		if result.written >= saves {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			if s.HandedOver() {
				return errHandedOver
			}
			return cmp.Or(result.Err, errHung)
		}
	}
}

// SetHandedOver ends or resumes writes: a newer process writes the file.
func (s *Store) SetHandedOver(handedOver bool) {
	s.disk.Lock()
	s.handedOver.Store(handedOver)
	s.disk.Unlock()
	s.save(func() {}, true) // replaces the file of the newer process
}

// HandedOver reports whether a newer process writes the file; false for nil.
func (s *Store) HandedOver() bool { return s != nil && s.handedOver.Load() }

// Run writes what is saved until ctx is done: at most once a second, every ten
// seconds while the disk fails, and a fault at once.
func (s *Store) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.saved:
		}
		pause := writeInterval
		if s.write(ctx) != nil {
			pause = retryInterval
			pubsub.Notify(s.saved)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-s.fault:
			pubsub.Notify(s.saved)
		case <-time.After(pause):
		}
	}
}

// End writes the newest state, without waiting for a disk that hangs.
func (s *Store) End() {
	ctx, cancel := context.WithTimeout(context.Background(), endTimeout)
	defer cancel()
	if s.write(ctx) != nil && ctx.Err() != nil {
		s.log.Error("state folder hangs, exiting without the last write", "file", s.path)
	}
}

// write writes the newest state. It returns when ctx is done, also if the disk
// hangs.
func (s *Store) write(ctx context.Context) error {
	ended := make(chan error, 1)
	go func() { ended <- s.replace() }() // ends with the process if the disk hangs
	hung := time.After(retryInterval)
	for {
		select {
		case err := <-ended:
			return err
		case <-hung:
			s.setStatus(0, errHung)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// replace replaces the file, unless it has the newest state or a newer process
// writes it.
func (s *Store) replace() error {
	s.disk.Lock()
	defer s.disk.Unlock()
	s.mu.Lock()
	newest, saves := s.newest, s.saves
	s.mu.Unlock()
	if s.status.Newest().written == saves || s.readOnly != nil || s.HandedOver() {
		return s.readOnly
	}
	text, err := json.Marshal(newest)
	if err == nil {
		err = os.MkdirAll(filepath.Dir(s.path), 0o700)
	}
	if err == nil {
		err = atomicfile.Replace(s.path, text)
	}
	s.setStatus(saves, err)
	return err
}

// setStatus publishes the result of a write, and logs the first failure and
// the first success after failures.
func (s *Store) setStatus(saves uint64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.status.Newest()
	switch {
	case err != nil && before.Err == nil:
		s.log.Warn("cannot store state, keeping it in memory", "err", err)
	case err == nil && before.Err != nil:
		s.log.Info("state storage recovered")
	}
	if err != nil {
		saves = before.written
	}
	s.status.Set(WriteStatus{Used: true, Err: err, written: saves})
}

const (
	// FileName is the name of the file in the state folder.
	FileName = "state.json"

	version       = 1      // new fields keep the version; existing fields never change
	invalidSuffix = ".bad" // of a file that podgauge could not read
	maxBytes      = 64 << 20
)

var errNewer = errors.New("the file is of a newer podgauge, and remains unchanged")

// content is the content of the file.
type content struct {
	Version   int                 `json:"version"`
	BootID    string              `json:"boot,omitempty"` // when the health was saved
	Health    health.History      `json:"health"`
	Incidents []incident.Incident `json:"incidents"`
}

// readFile reads a file. A missing file has no content, and an invalid file is
// set aside.
func readFile(path string) (c content, err error) {
	atomicfile.RemoveStaleTemps(path)
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return content{}, nil
	}
	if err == nil {
		c, err = decode(f)
		f.Close() //nolint:errcheck // opened for reading
	}
	if err == nil || errors.Is(err, errNewer) {
		return c, err
	}
	if renameErr := os.Rename(path, path+invalidSuffix); renameErr != nil {
		return content{}, errors.Join(err, renameErr)
	}
	return content{}, fmt.Errorf("%w (set aside as %s)", err, path+invalidSuffix)
}

func decode(r io.Reader) (c content, err error) {
	text, err := io.ReadAll(io.LimitReader(r, maxBytes))
	if err != nil {
		return content{}, err
	}
	err = json.Unmarshal(text, &c) // sets the version also if later types differ
	switch {
	case c.Version > version:
		return content{}, fmt.Errorf("%w: version %d, expected %d", errNewer, c.Version, version)
	case err != nil:
		return content{}, fmt.Errorf("decode %s: %w", FileName, err)
	case c.Version != version:
		return content{}, fmt.Errorf("decode %s: version %d, expected %d", FileName, c.Version, version)
	}
	if err := errors.Join(c.Health.Validate(), incident.Validate(c.Incidents)); err != nil {
		return content{}, fmt.Errorf("check %s: %w", FileName, err)
	}
	return c, nil
}
