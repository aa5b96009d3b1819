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

// registeredFile has the resources that are podgauge's. It lies beside the kubelet's checkpoint,
// whose allocations it explains: a kubelet that starts deletes sockets, and no file.
const registeredFile = "podgauge_resources.json"

// registeredResources are the resources that podgauge has registered and that may still be allocated, by
// this process or an earlier one. Other plugins give away ids of the same form, so that an
// allocation does not show whose resource it is; and a resource of another plugin must never
// be registered, since that takes it away from the other (until 1.36) or mixes the lists of
// both.
type registeredResources struct {
	path string
	log  *slog.Logger

	mu    sync.Mutex
	names []string // sorted; guarded by mu
	saved []string // what the file has; guarded by mu
}

// registeredFileContent is the file's.
type registeredFileContent struct {
	Resources []string `json:"resources"`
}

// loadRegistered reads what earlier processes have registered. What cannot be read is unknown.
func loadRegistered(dir string, log *slog.Logger) *registeredResources {
	r := &registeredResources{path: filepath.Join(dir, registeredFile), log: log}
	content, err := os.ReadFile(r.path)
	var c registeredFileContent
	if err == nil {
		err = json.Unmarshal(content, &c)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		log.Warn("read the resources that were registered before; renamed ones are not served", "err", err)
		return r
	}
	slices.Sort(c.Resources)
	r.saved = slices.Compact(c.Resources)
	r.names = r.saved
	return r
}

// list returns the names. The slice must not be changed.
func (r *registeredResources) list() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.names
}

func (r *registeredResources) has(resource string) bool { return slices.Contains(r.list(), resource) }

// add notes a resource that is about to be registered.
func (r *registeredResources) add(resource string) {
	r.update(func(names []string) []string {
		if slices.Contains(names, resource) {
			return names
		}
		return append(names, resource)
	})
}

// remove forgets a resource that is neither offered nor allocated.
func (r *registeredResources) remove(resource string) {
	r.update(func(names []string) []string {
		return slices.DeleteFunc(names, func(name string) bool { return name == resource })
	})
}

// update stores other names, and the same ones if the file was deleted. Where that fails, this process knows them all the same, and the
// next change stores them too.
func (r *registeredResources) update(change func([]string) []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.names = change(slices.Clone(r.names))
	slices.Sort(r.names)
	if r.path == "" || slices.Equal(r.names, r.saved) && (len(r.names) == 0 || r.fileExists()) {
		return
	}
	if err := r.save(); err != nil {
		r.log.Warn("store the registered resources; a renamed one is not served after a restart", "err", err)
		return
	}
	r.saved = r.names
}

// fileExists reports whether the file is there, which a cleanup of the folder deletes.
func (r *registeredResources) fileExists() bool {
	_, err := os.Lstat(r.path)
	return !errors.Is(err, fs.ErrNotExist)
}

// save replaces the file as a whole. mu is held.
func (r *registeredResources) save() error {
	content, err := json.Marshal(registeredFileContent{r.names})
	if err != nil {
		return fmt.Errorf("encode the resources: %w", err)
	}
	next := r.path + ".tmp"
	if err := os.WriteFile(next, append(content, '\n'), 0o600); err != nil {
		return err
	}
	return os.Rename(next, r.path)
}
