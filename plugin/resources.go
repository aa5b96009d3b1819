package plugin

import (
	"slices"
	"strings"
	"sync"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/pubsub"
)

// Resource is a resource of a Plugin.
type Resource struct {
	Name       string
	IDs        []device.AdvertisedID // by the newest rules
	Sharing    string                // "time-slicing" or "MPS"; empty without replicas
	Registered bool                  // the kubelet reads the device list
	Healthy    int                   // devices in the newest list
	// Waiting is set while the first registration waits for a foreign plugin.
	Waiting bool
	Err     string // of the newest registration
}

// registrations publishes the state of registrations, and passes the events on.
type registrations struct {
	EndpointHooks
	published *pubsub.Value[[]Resource] // ordered by name, without ids and sharing
	mu        sync.Mutex                // held during a change
}

func (r *registrations) OnRegistered(resource string, err error) {
	r.EndpointHooks.OnRegistered(resource, err)
	text := ""
	if err != nil {
		text = err.Error()
	}
	r.change(resource, func(s *Resource) { s.Err = text })
}

func (r *registrations) OnOtherPlugin(resource string, waiting bool) {
	r.EndpointHooks.OnOtherPlugin(resource, waiting)
	text := ""
	if waiting {
		text = OtherPluginReason
	}
	r.change(resource, func(s *Resource) { s.Waiting, s.Err = waiting, text })
}

func (r *registrations) OnStreamCount(resource string, streams int) {
	r.EndpointHooks.OnStreamCount(resource, streams)
	r.change(resource, func(s *Resource) { s.Registered = streams > 0 })
}

func (r *registrations) OnListSent(resource string, devices, healthy int) {
	r.EndpointHooks.OnListSent(resource, devices, healthy)
	r.change(resource, func(s *Resource) { s.Healthy = healthy })
}

func (r *registrations) change(resource string, change func(*Resource)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before, _ := r.published.Get()
	all := slices.Clone(before)
	byName := func(s Resource, name string) int { return strings.Compare(s.Name, name) }
	i, found := slices.BinarySearchFunc(all, resource, byName)
	if !found {
		all = slices.Insert(all, i, Resource{Name: resource})
	}
	change(&all[i])
	r.published.Set(all)
}

// WithRegistrations returns the resources by the rules, with the published
// state of their registrations.
func (r Rules) WithRegistrations(statuses []device.Status, published []Resource) []Resource {
	lists, _ := r.Preview(statuses)
	all := make([]Resource, len(lists))
	for i, list := range lists {
		if n := slices.IndexFunc(published, func(s Resource) bool { return s.Name == list.Resource }); n >= 0 {
			all[i] = published[n]
		}
		all[i].Name, all[i].IDs = list.Resource, list.IDs
		isReplica := func(id device.AdvertisedID) bool { return id != id.Device().Advertised() }
		switch {
		case !slices.ContainsFunc(list.IDs, isReplica):
		case r.Response.MPSRoot != "":
			all[i].Sharing = "MPS"
		default:
			all[i].Sharing = "time-slicing"
		}
	}
	return all
}
