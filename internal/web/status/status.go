// Package status renders the node at a glance, as a page for people.
//
// What stands on it is what the JSON has (internal/web/api), and what the newest flight read.
// It asks for a flight itself where there is no young one, and so costs nothing while
// nobody looks. Everything is on one page without a frame, a font or a script from
// elsewhere; the page is whole without its own script too, which only keeps it fresh.
package status

import (
	"bytes"
	"context"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/web/api"
)

// maxPageAge is how long a page may be given to others who look, if nobody's holding and no
// device's health has changed since: with many that look, it is made twice a second.
const maxPageAge = 500 * time.Millisecond

// PageState returns the state of a node that the page shows.
type PageState interface {
	api.NodeState
	// Readings returns those of the newest collection; it may wait for a collection until ctx is done.
	Readings(ctx context.Context) Readings
	// Stalled reports whether a call to the GPU has not returned.
	Stalled(gpu device.GPU) bool
	// PluginResources returns the resources of the device plugin; nil if another device plugin serves the node.
	PluginResources() []PluginResource
	// PodsAPI reports whether the kubelet's Pods API is followed.
	PodsAPI() PodsAPIStatus
}

// PageOptions are the parts of the page that do not change.
type PageOptions struct {
	Node      string // name
	Version   string
	Simulated bool
	Links     []string // relative paths of other pages
}

// PluginResource is a resource, and what is offered under its name.
type PluginResource struct {
	Resource string
	IDs      []device.AdvertisedID
	Sharing  string // how its replicas share a device: "time-slicing", "MPS"; empty: not at all
	// Registered says that the kubelet listens to the list of these devices, of which it was
	// last told that so many are healthy.
	Registered bool
	Healthy    int
	Err        string // why the kubelet last refused it
}

// PodsAPIStatus is whether something is followed without a gap and, where it is not, why; empty:
// it was not asked yet.
type PodsAPIStatus struct {
	Synced bool
	Reason string
}

// Page is the page. It is an http.Handler.
type Page struct {
	state   PageState
	options PageOptions

	mu sync.Mutex
	// All below are guarded by mu.
	body       []byte // not written once it was made
	renderedAt time.Time
	// stale are closed when somebody's holding or a device's health has changed since.
	stale [2]<-chan struct{}
}

// New makes a page. Nobody is asked before somebody looks.
func New(state PageState, o PageOptions) *Page { return &Page{state: state, options: o} }

// ServeHTTP is http.Handler's.
func (p *Page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := p.current(context.WithoutCancel(r.Context())) // it is for all who look, and a flight has an end
	setSecurityHeaders(w.Header())
	w.Header().Set("Cache-Control", "no-store")
	if err != nil {
		http.Error(w, "the page cannot be made: "+err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Write(body) //nolint:errcheck // whoever asked has gone
}

// current is the page as of now, or as of a moment ago.
func (p *Page) current(ctx context.Context) ([]byte, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.isFresh() {
		return p.body, nil
	}
	_, health := p.state.Statuses()
	_, allocations := p.state.Allocations()
	readings := p.state.Readings(ctx)
	body, err := p.render(readings, time.Now())
	if err != nil {
		return nil, err
	}
	p.body, p.renderedAt, p.stale = body, time.Now(), [2]<-chan struct{}{health, allocations}
	return body, nil
}

// isFresh tells whether the page can be given to one more. The caller holds mu.
func (p *Page) isFresh() bool {
	for _, changed := range p.stale {
		select {
		case <-changed:
			return false
		default:
		}
	}
	return p.body != nil && time.Since(p.renderedAt) < maxPageAge
}

func (p *Page) render(readings Readings, now time.Time) ([]byte, error) {
	body := bytes.NewBuffer(make([]byte, 0, len(p.body)+len(p.body)/4))
	err := pageTemplate.Execute(body, newPageView(p.state, &p.options, readings, now))
	return body.Bytes(), err
}

// contentSecurityPolicy lets the page have what this server has, and nothing else: no style or script
// within it, no form, and no place in somebody else's frame.
const contentSecurityPolicy = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// setSecurityHeaders says to a browser what it must not do.
func setSecurityHeaders(h http.Header) {
	h.Set("Content-Security-Policy", contentSecurityPolicy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
}

// AssetsPath is what the paths of the page's style, script and icon begin with.
const AssetsPath = "/static/"

// Assets serves what the page is made of beside its text. A name has the hash of what is
// in it, so it can be kept for ever.
func Assets() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		setSecurityHeaders(w.Header())
		for _, a := range assets {
			if r.URL.Path == "/"+a.Path {
				h := w.Header()
				h.Set("Content-Type", a.contentType)
				h.Set("Cache-Control", "public, max-age=31536000, immutable")
				h.Set("Content-Length", strconv.Itoa(len(a.body)))
				w.Write(a.body) //nolint:errcheck // whoever asked has gone
				return
			}
		}
		http.NotFound(w, r)
	})
}
