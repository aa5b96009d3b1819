package status

import (
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"html/template"
	"net/http"
	"strconv"
	"strings"
)

//go:embed page.html
var pageText string

//go:embed page.css
var styleText []byte

//go:embed page.js
var scriptText []byte

//go:embed icon.svg
var iconText []byte

// AssetsPath begins the paths of the style, script and icon.
const AssetsPath = "/static/"

type asset struct {
	Path        string // relative: a proxy may serve the page below a path of its own
	contentType string
	body        []byte
}

var assets = map[string]asset{
	"style":  newAsset("page", "css", "text/css; charset=utf-8", styleText),
	"script": newAsset("page", "js", "text/javascript; charset=utf-8", scriptText),
	"icon":   newAsset("icon", "svg", "image/svg+xml", iconText),
}

func newAsset(name, extension, contentType string, body []byte) asset {
	sum := sha256.Sum256(body)
	path := strings.TrimPrefix(AssetsPath, "/") + name + "." + hex.EncodeToString(sum[:6]) + "." + extension
	return asset{path, contentType, body}
}

var pageTemplate = template.Must(template.New("page").Funcs(template.FuncMap{
	"asset": func(name string) string { return assets[name].Path },
}).Parse(pageText))

// Assets serves the style, script and icon. Names have a hash of the content, so caches may keep them.
func Assets() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		setSecurityHeaders(w.Header())
		for _, a := range assets {
			if r.URL.Path == "/"+a.Path {
				h := w.Header()
				h.Set("Content-Type", a.contentType)
				h.Set("Cache-Control", "public, max-age=31536000, immutable")
				h.Set("Content-Length", strconv.Itoa(len(a.body)))
				w.Write(a.body) //nolint:errcheck // the client disconnected
				return
			}
		}
		http.NotFound(w, r)
	})
}

// setSecurityHeaders limits a browser to this server's files: no inline style or script, no form, no frame.
func setSecurityHeaders(h http.Header) {
	h.Set("Content-Security-Policy", "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self'; "+
		"base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
}
