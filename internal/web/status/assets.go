package status

import (
	"embed"
	"mime"
	"net/http"
	"path"
	"strings"
)

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
