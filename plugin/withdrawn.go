package plugin

import (
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

// This file owns withdrawn resources: resources without a rule. podgauge serves an owned withdrawn resource while a container has a
// device and no foreign plugin serves the resource (docs/adr/0015-renamed-resources.md).

// registeredFile has the names of owned resources. The file lies beside the kubelet's checkpoint and explains the allocations there: a
// starting kubelet deletes sockets, but no files.
const registeredFile = "podgauge_resources.json"

// registeredResources are the resources owned by podgauge: registered by this or an earlier process, and perhaps still allocated.
//
// Ids do not show the owner: all plugins use the same form. Registering the resource of a foreign plugin replaces the plugin (until
// 1.36) or mixes the lists of both.
type registeredResources struct {
	path string
	log  *slog.Logger

	mu    sync.Mutex
	names []string // sorted; guarded by mu, replaced and never written
	saved []string // the names last stored or read; guarded by mu
}

type registeredFileContent struct {
	Resources []string `json:"resources"`
}

// loadRegistered reads the resources of earlier processes. An unreadable file has no resources.
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
	r.saved = r.names
	return r
}

func (r *registeredResources) list() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.names
}

func (r *registeredResources) has(resource string) bool { return slices.Contains(r.list(), resource) }

// withdrawn returns the owned resources without a list by the rules.
func (r *registeredResources) withdrawn(lists map[string]*deviceList) []string {
	return slices.DeleteFunc(slices.Clone(r.list()), func(resource string) bool { return lists[resource] != nil })
}

// add records a resource before the registration, and restores a deleted file.
func (r *registeredResources) add(resource string) {
	r.update(func(names []string) []string { return append(names, resource) })
}

// remove forgets a resource without a rule and an allocation: from then on, a foreign plugin may serve the resource.
func (r *registeredResources) remove(resource string) {
	r.update(func(names []string) []string {
		return slices.DeleteFunc(names, func(name string) bool { return name == resource })
	})
}

// update changes the names and stores changed names, and also unchanged ones if the file was deleted. During a rolling update the file may
// have names of the next process, so unchanged names do not replace the file. After an error, the next update stores the names again.
func (r *registeredResources) update(change func([]string) []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	names := change(slices.Clone(r.names))
	slices.Sort(names)
	r.names = slices.Compact(names)
	_, err := os.Lstat(r.path)
	if missing := errors.Is(err, fs.ErrNotExist); slices.Equal(r.names, r.saved) && (len(r.names) == 0 || !missing) {
		return
	}
	content, err := json.Marshal(registeredFileContent{r.names})
	if err == nil {
		err = os.WriteFile(r.path+".tmp", append(content, '\n'), 0o600)
	}
	if err == nil {
		err = os.Rename(r.path+".tmp", r.path)
	}
	if err != nil {
		r.log.Warn("resource file not stored: after a restart, renamed resources are not served", "err", err)
		return
	}
	r.saved = r.names
}

// otherPlugin decides whether a foreign plugin serves a withdrawn resource. The kubelet's list of allocatable devices decides: only
// resources with a plugin are listed.
//
//	resource in the list   registered by this process   foreign plugin
//	yes                    no                           yes
//	yes                    yes                          yes, until the kubelet drops the old registration
//	no                     no                           as before for kubeletStartTimeout, then no: a plugin registers again
//	no                     yes                          no
//	list unknown           no                           yes if yes before, or within kubeletStartTimeout of meeting the kubelet
//	list unknown           yes                          no
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

// onRegister records a registration by this process: from then on, the kubelet may list podgauge's devices.
func (o *otherPlugin) onRegister() { o.registeredByUs, o.seen = true, false }
