// Package status renders the status page of a node.
//
// The page shows the content of the JSON API (internal/web/api), and the readings of the newest collection. A request starts a collection
// only if there is no recent one, so a page without viewers costs nothing. All files come from this server. The page's script only
// refreshes the page.
package status

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/podgauge/podgauge/internal/text"
)

// maxPageAge is how long viewers share a page.
const maxPageAge = 500 * time.Millisecond

// PageOptions are the parts of the page that do not change.
type PageOptions struct {
	Node      string // name
	Version   string
	Simulated bool
	Links     []string // relative paths of other pages
}

// Page is the status page. It implements http.Handler.
type Page struct {
	state   PageState
	options PageOptions

	mu sync.Mutex
	// All below are guarded by mu.
	body       []byte // of the newest filter; not written after it was rendered
	filter     filter
	renderedAt time.Time
}

// New returns a page. Nothing is read before the first request.
func New(state PageState, o PageOptions) *Page { return &Page{state: state, options: o} }

func (p *Page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	setSecurityHeaders(w.Header())
	f, err := parseFilter(r.URL.RawQuery)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest) // with quoted values
		return
	}
	body := p.current(context.WithoutCancel(r.Context()), f) // other viewers share the page, and a collection has a timeout
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Write(body) //nolint:errcheck // the client disconnected
}

// current returns a page not older than maxPageAge.
func (p *Page) current(ctx context.Context, f filter) []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.body == nil || p.filter != f || time.Since(p.renderedAt) >= maxPageAge {
		p.body, p.filter, p.renderedAt = p.render(p.state.Readings(ctx), f, time.Now()), f, time.Now()
	}
	return p.body
}

func (p *Page) render(readings Readings, f filter, now time.Time) []byte {
	// The template escapes markup, but not control characters.
	return []byte(text.PrintableLines(page(newPageView(p.state, &p.options, readings, f, now))))
}
