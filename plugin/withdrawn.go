package plugin

import (
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/podgauge/podgauge/internal/atomicfile"
	"github.com/podgauge/podgauge/internal/device"
)

// This file owns withdrawn resources, resources without a rule, and the wait for foreign plugins. podgauge serves an owned withdrawn
// resource while a container has a device and no foreign plugin serves the resource (docs/contributing/adr/0015-renamed-resources.md).

// OtherPluginReason is why the first registration of a resource waits.
const OtherPluginReason = "waiting: another device plugin serves the resource"

// registeredFile has the names of owned resources. The file lies beside the kubelet's checkpoint and explains the allocations there: a
// starting kubelet deletes sockets, but no files.
const registeredFile = "podgauge_resources.json"

// registeredResources are the resources owned by podgauge: registered by this or an earlier process, and perhaps still allocated.
//
// Ids do not show the owner: all plugins use the same form. Registering the resource of a foreign plugin replaces the plugin (until
// 1.36) or mixes the lists of both.
type registeredResources struct {
	dir atomicfile.OSDir
	log *slog.Logger

	mu    sync.Mutex
	names []string // sorted; guarded by mu, replaced and never written
	saved []string // the names last stored or read; guarded by mu
}

// loadRegistered reads the resources of earlier processes. An unreadable file has no resources.
func loadRegistered(dir string, log *slog.Logger) *registeredResources {
	r := &registeredResources{dir: atomicfile.OSDir(dir), log: log}
	content, err := os.ReadFile(r.dir.Path(registeredFile))
	var c struct{ Resources []string } // a newer version may add keys
	if err == nil {
		err = json.Unmarshal(content, &c)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		log.Warn("resource file unreadable, not serving renamed resources", "err", err)
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

// withdrawn returns the owned resources without a list by the rules.
func (r *registeredResources) withdrawn(lists map[string]*deviceList) []string {
	return slices.DeleteFunc(slices.Clone(r.list()), func(resource string) bool { return lists[resource] != nil })
}

// add records a resource before the registration.
func (r *registeredResources) add(resource string) {
	r.update(func(names []string) []string { return append(names, resource) })
}

// remove forgets a resource without a rule and an allocation: from then on, a foreign plugin may serve the resource.
func (r *registeredResources) remove(resource string) {
	r.update(func(names []string) []string {
		return slices.DeleteFunc(names, func(name string) bool { return name == resource })
	})
}

// update changes the names and stores changed names. During a rolling update the file may have names of the next process, so unchanged
// names do not replace the file. After an error, the next update stores the names again.
func (r *registeredResources) update(change func([]string) []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	names := change(slices.Clone(r.names))
	slices.Sort(names)
	if r.names = slices.Compact(names); slices.Equal(r.names, r.saved) {
		return
	}
	content, err := json.Marshal(map[string][]string{"resources": r.names})
	if err == nil {
		err = atomicfile.Replace(r.dir, registeredFile, append(content, '\n'))
	}
	if err != nil {
		r.log.Warn("cannot store resource file, not serving renamed resources after a restart", "err", err)
		return
	}
	r.saved = r.names
}

// otherPlugin decides whether a foreign plugin serves a resource, before a first registration or if the resource is withdrawn. The kubelet's list of allocatable devices decides: only
// resources with a plugin are listed.
//
//	resource in the list   registered by this process   foreign plugin
//	yes                    no                           yes
//	yes                    yes                          yes, until the kubelet drops the old registration
//	no                     no                           as before for kubeletStartTimeout, then no: a plugin registers again
//	list unknown           no                           as before; at first yes for kubeletStartTimeout
//	no, or list unknown    yes                          no
//
// The timeouts begin when the kubelet listens.
type otherPlugin struct {
	since          time.Time // when the endpoint was made, or the kubelet was last away
	seen           time.Time // newest list with the resource; zero: none
	registeredByUs bool      // by this process
	waiting        bool      // the first registration waits for the foreign plugin
}

func (o *otherPlugin) serves(resource string, known device.NodeResources, now time.Time) bool {
	listed := slices.ContainsFunc(known.Allocatable.Devices, func(d device.ResourceDevice) bool { return d.Resource == resource })
	if listed || !known.AllocatableKnown && !o.seen.IsZero() {
		o.seen = now
	}
	last := o.seen
	if last.IsZero() && !known.AllocatableKnown {
		last = o.since
	}
	return listed || !o.registeredByUs && now.Sub(last) < kubeletStartTimeout
}

// onKubeletAway restarts the timeouts.
func (o *otherPlugin) onKubeletAway(now time.Time) {
	if o.since = now; !o.seen.IsZero() {
		o.seen = now
	}
}
