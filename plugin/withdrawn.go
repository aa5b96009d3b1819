package plugin

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/podgauge/podgauge/internal/device"
)

// This file owns the resources that the rules no longer have. A withdrawn resource is served while podgauge owns it, a container has a
// device of it, and no other plugin serves it (docs/adr/0015-renamed-resources.md).

// registeredFile has the names of owned resources. It lies beside the kubelet's checkpoint, whose allocations it explains: a kubelet
// that starts deletes sockets, but no files.
const registeredFile = "podgauge_resources.json"

// registeredResources are the resources that podgauge owns: it registered them, in this process or an earlier one, and containers may
// still have their devices.
//
// Ids do not show the owner, since other plugins use the same form. Registering a resource of another plugin takes it away (until 1.36)
// or mixes the lists of both.
type registeredResources struct {
	path string
	log  *slog.Logger

	mu    sync.Mutex
	names []string // sorted; guarded by mu, replaced and never written
}

type registeredFileContent struct {
	Resources []string `json:"resources"`
}

// loadRegistered reads the resources of earlier processes. A file that cannot be read has none.
func loadRegistered(dir string, log *slog.Logger) *registeredResources {
	r := &registeredResources{path: filepath.Join(dir, registeredFile), log: log}
	content, err := os.ReadFile(r.path)
	var c registeredFileContent
	if err == nil {
		err = json.Unmarshal(content, &c)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		log.Warn("resource file unreadable: renamed resources are not served", "err", err)
		return r
	}
	slices.Sort(c.Resources)
	r.names = slices.Compact(c.Resources)
	return r
}

func (r *registeredResources) list() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.names
}

func (r *registeredResources) has(resource string) bool { return slices.Contains(r.list(), resource) }

// withdrawn returns the owned resources that the rules do not have.
func (r *registeredResources) withdrawn(lists map[string]*deviceList) []string {
	return slices.DeleteFunc(slices.Clone(r.list()), func(resource string) bool { return lists[resource] != nil })
}

// add records a resource before its registration, and restores a deleted file.
func (r *registeredResources) add(resource string) {
	r.update(func(names []string) []string { return append(names, resource) })
}

// remove forgets a resource that is neither offered nor allocated: from then on it may be another plugin's.
func (r *registeredResources) remove(resource string) {
	r.update(func(names []string) []string {
		return slices.DeleteFunc(names, func(name string) bool { return name == resource })
	})
}

// update changes the names and replaces the file, unless it has them already. If that fails, this process still uses the new names, and
// the next update stores them.
func (r *registeredResources) update(change func([]string) []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	names := change(slices.Clone(r.names))
	slices.Sort(names)
	r.names = slices.Compact(names)
	stored, err := os.ReadFile(r.path)
	if len(r.names) == 0 && errors.Is(err, fs.ErrNotExist) {
		return
	}
	content, err := json.Marshal(registeredFileContent{r.names})
	if content = append(content, '\n'); bytes.Equal(content, stored) {
		return
	}
	if err == nil {
		err = os.WriteFile(r.path+".tmp", content, 0o600)
	}
	if err == nil {
		err = os.Rename(r.path+".tmp", r.path)
	}
	if err != nil {
		r.log.Warn("resource file not stored: after a restart, renamed resources are not served", "err", err)
	}
}

// otherPlugin decides whether another plugin serves a withdrawn resource, by the devices that the kubelet lists as allocatable: of
// resources with a plugin only.
//
//	kubelet's answer    this process registered it   other plugin
//	lists it            any                          yes: if it was this process, until the kubelet drops it
//	does not list it    no                           as before, for kubeletStartTimeout: a restarted kubelet has no plugin yet
//	does not list it    yes                          no
//	none                no                           as before; at first yes, for kubeletStartTimeout
//	none                yes                          no
type otherPlugin struct {
	seen            bool // by the newest answer
	registeredByUs  bool // by this process
	kubelet         socketID
	kubeletMetSince time.Time
}

func (o *otherPlugin) serves(resource string, kubelet socketID, known device.NodeResources, now time.Time) bool {
	if kubelet != o.kubelet {
		o.kubelet, o.kubeletMetSince = kubelet, now
	}
	starting := now.Sub(o.kubeletMetSince) < kubeletStartTimeout
	if !known.AllocatableKnown {
		return o.seen || starting && !o.registeredByUs
	}
	listed := slices.ContainsFunc(known.AllocatableDevices, func(d device.ResourceDevice) bool { return d.Resource == resource })
	o.seen = !o.registeredByUs && (listed || o.seen && starting)
	return listed || o.seen
}

// onRegister records that this process registers the resource: the kubelet may then list it as podgauge's.
func (o *otherPlugin) onRegister() { o.registeredByUs, o.seen = true, false }
