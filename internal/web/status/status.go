// Package status renders the status page of a node.
//
// The page shows the content of the JSON API (internal/web/api), and the
// readings of the newest collection. A request starts a collection only if
// there is no recent one, so a page without viewers costs nothing. All files
// come from this server. The page's script only refreshes the page.
package status

import (
	"context"
	"embed"
	"fmt"
	"html/template"
	"io"
	"mime"
	"net/http"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/podgauge/podgauge/internal/text"
	"github.com/podgauge/podgauge/internal/web/api"
	"github.com/podgauge/podgauge/internal/xid"
)

const (
	// maxPageAge is how long viewers share a page.
	maxPageAge = 500 * time.Millisecond
	// readingsTimeout limits the wait for readings; a collection takes at most a
	// second. After it the page has no readings.
	readingsTimeout = 2 * time.Second
)

//go:embed templates
var templateFiles embed.FS

// Page is the status page. It implements http.Handler.
type Page struct {
	newest   func(ctx context.Context) PageState
	options  PageOptions
	template *template.Template

	mu         sync.Mutex // guards the newest page below
	body       string
	filter     filter
	renderedAt time.Time
}

// New returns a page of the state that newest returns. Nothing is read before
// the first request.
func New(newest func(ctx context.Context) PageState, o PageOptions) *Page {
	p := &Page{newest: newest, options: o}
	functions := template.FuncMap{
		"action":     xid.Action,
		"ago":        func(at time.Time) *displayTime { return formatTime(p.renderedAt, at, "%s ago") },
		"containers": firstContainers,
		"plural":     text.Plural,
		"reason":     xid.Reason,
		"replicas":   replicasOf,
		"since":      func(at time.Time) *displayTime { return formatTime(p.renderedAt, at, "for %s") },
		"terminated": api.TerminationText,
		"isXid": func(reason string) bool {
			_, ok := xid.OfReason(reason)
			return ok
		},
	}
	p.template = template.Must(template.New("").Funcs(functions).ParseFS(templateFiles, "templates/*.html"))
	return p
}

func (p *Page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	setSecurityHeaders(w.Header())
	f, err := parseFilter(r.URL.RawQuery)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest) // with quoted values
		return
	}
	// Other viewers share the page. A client that closes its sending half also
	// cancels the context.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), readingsTimeout)
	defer cancel()
	body, err := p.current(ctx, f)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	io.WriteString(w, body) //nolint:errcheck // the client disconnected
}

// current returns a page not older than maxPageAge.
func (p *Page) current(ctx context.Context, f filter) (string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.body != "" && p.filter == f && time.Since(p.renderedAt) < maxPageAge {
		return p.body, nil
	}
	n := p.newest(ctx)
	p.body, p.filter, p.renderedAt = "", f, time.Now()
	data := &nodeData{PageState: &n, now: p.renderedAt, Response: n.Devices(api.Query{}, p.renderedAt)}
	view := newPageView(data, p.options, f)
	var page strings.Builder
	if err := p.template.ExecuteTemplate(&page, "page.html", view); err != nil {
		return "", fmt.Errorf("render page: %w", err)
	}
	p.body = text.PrintableLines(page.String()) // the template escapes markup, but not control characters
	return p.body, nil
}

//go:embed page.css page.js icon.svg
var assetFiles embed.FS

// AssetsPath begins the paths of the style, script and icon.
const AssetsPath = "/static/"

// Assets serves the style, script and icon.
func Assets() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		setSecurityHeaders(w.Header())
		body, err := assetFiles.ReadFile(strings.TrimPrefix(r.URL.Path, AssetsPath))
		if err != nil {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", mime.TypeByExtension(path.Ext(r.URL.Path)))
		w.Header().Set("Cache-Control", "no-cache") // another version of podgauge has other files
		w.Write(body)                               //nolint:errcheck // the client disconnected
	})
}

// setSecurityHeaders limits a browser to this server's files: no inline style or
// script, no form, no frame. The exporter sets the headers of all its responses.
func setSecurityHeaders(h http.Header) {
	h.Set("Content-Security-Policy", "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "+
		"img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
}
