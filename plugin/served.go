package plugin

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
)

// servedFile has the resources that are podgauge's. It lies beside the kubelet's checkpoint,
// whose allocations it explains: a kubelet that starts deletes sockets, and no file.
const servedFile = "podgauge_resources.json"

// served are the resources that podgauge has registered and that may still be allocated, by
// this process or an earlier one. Other plugins give away ids of the same form, so that an
// allocation does not show whose resource it is; and a resource of another plugin must never
// be registered, since that takes it away from the other (until 1.36) or mixes the lists of
// both.
type served struct {
	path string
	log  *slog.Logger

	mu     sync.Mutex
	names  []string // sorted; guarded by mu
	stored []string // what the file has; guarded by mu
}

// servedContent is the file's.
type servedContent struct {
	Resources []string `json:"resources"`
}

// readServed reads what earlier processes have registered. What cannot be read is unknown.
func readServed(dir string, log *slog.Logger) *served {
	s := &served{path: filepath.Join(dir, servedFile), log: log}
	content, err := os.ReadFile(s.path)
	var c servedContent
	if err == nil {
		err = json.Unmarshal(content, &c)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		log.Warn("read the resources that were registered before; renamed ones are not served", "err", err)
		return s
	}
	slices.Sort(c.Resources)
	s.stored = slices.Compact(c.Resources)
	s.names = s.stored
	return s
}

// all returns the names. The slice must not be changed.
func (s *served) all() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.names
}

func (s *served) has(resource string) bool { return slices.Contains(s.all(), resource) }

// add notes a resource that is about to be registered.
func (s *served) add(resource string) {
	s.change(func(names []string) []string {
		if slices.Contains(names, resource) {
			return names
		}
		return append(names, resource)
	})
}

// drop forgets a resource that is neither offered nor allocated.
func (s *served) drop(resource string) {
	s.change(func(names []string) []string {
		return slices.DeleteFunc(names, func(name string) bool { return name == resource })
	})
}

// change stores other names, and the same ones if the file was deleted. Where that fails, this process knows them all the same, and the
// next change stores them too.
func (s *served) change(change func([]string) []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.names = change(slices.Clone(s.names))
	slices.Sort(s.names)
	if s.path == "" || slices.Equal(s.names, s.stored) && (len(s.names) == 0 || s.exists()) {
		return
	}
	if err := s.store(); err != nil {
		s.log.Warn("store the registered resources; a renamed one is not served after a restart", "err", err)
		return
	}
	s.stored = s.names
}

// exists reports whether the file is there, which a cleanup of the folder deletes.
func (s *served) exists() bool {
	_, err := os.Lstat(s.path)
	return !errors.Is(err, fs.ErrNotExist)
}

// store replaces the file as a whole. mu is held.
func (s *served) store() error {
	content, err := json.Marshal(servedContent{s.names})
	if err != nil {
		return fmt.Errorf("encode the resources: %w", err)
	}
	next := s.path + ".tmp"
	if err := os.WriteFile(next, append(content, '\n'), 0o600); err != nil {
		return err
	}
	return os.Rename(next, s.path)
}
