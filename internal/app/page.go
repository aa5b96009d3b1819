package app

import (
	"strings"
	"sync"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/web/status"
	"github.com/podgauge/podgauge/plugin"
)

// registrations are how the kubelet took what it was offered, as the page shows it. The
// plugin's trace feeds them.
type registrations struct {
	mu sync.Mutex
	of map[string]registration // by resource; guarded by mu
}

type registration struct {
	streams int
	healthy int    // devices, as the kubelet was last told
	err     string // why it refused; empty once it has not
}

// listen has the trace tell the registrations too.
func (r *registrations) listen(t plugin.Trace) plugin.Trace {
	registered, streaming, sent := t.Registered, t.Streaming, t.Sent
	t.Registered = func(resource string, err error) {
		registered(resource, err)
		r.note(resource, func(of *registration) {
			of.err = ""
			if err != nil {
				of.err = err.Error()
			}
		})
	}
	t.Streaming = func(resource string, streams int) {
		streaming(resource, streams)
		r.note(resource, func(of *registration) { of.streams = streams })
	}
	t.Sent = func(resource string, devices, healthy int) {
		sent(resource, devices, healthy)
		r.note(resource, func(of *registration) { of.healthy = healthy })
	}
	return t
}

func (r *registrations) note(resource string, note func(*registration)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.of == nil {
		r.of = map[string]registration{}
	}
	of := r.of[resource]
	note(&of)
	r.of[resource] = of
}

func (r *registrations) get(resource string) registration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.of[resource]
}

// offers are what the rules have of the devices on the Board, and how the kubelet took it;
// nil where another device plugin serves.
func (a *assembly) offers() []status.Offer {
	if a.rules == nil {
		return nil
	}
	rules, _ := a.rules()
	settings, _ := a.watch.Look()
	statuses, _ := a.board.Look()
	offered, _ := rules.Preview(statuses)
	all := make([]status.Offer, len(offered))
	for i, o := range offered {
		taken := a.registrations.get(o.Resource)
		all[i] = status.Offer{
			Resource: o.Resource, IDs: o.IDs, Registered: taken.streams > 0, Healthy: taken.healthy, Err: taken.err,
		}
		switch {
		case sharedByMPS(settings.Sharing, o.Resource):
			all[i].Sharing = "MPS"
		case len(o.IDs) > 0 && isReplica(o.IDs[0]):
			all[i].Sharing = "time-slicing"
		}
	}
	return all
}

func isReplica(id device.OfferedID) bool { return id != id.Device().Offered() }

// podsFollowed says whether the kubelet's Pods API is followed.
func (a *assembly) podsFollowed() status.Feed {
	known, _ := a.pods.Look()
	f := status.Feed{Followed: known.Synced}
	if known.Err != nil {
		f.Why = strings.ReplaceAll(known.Err.Error(), "\n", "; ")
	}
	return f
}
