package status

import (
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"html/template"
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

// asset is a file that the page asks for.
type asset struct {
	Path        string // without a slash before it: the page may be below one that a proxy adds
	contentType string
	body        []byte
}

// assets are all there are.
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

// pageTemplate is the page's template.
var pageTemplate = template.Must(template.New("page").Funcs(template.FuncMap{
	"asset": func(name string) string { return assets[name].Path },
}).Parse(pageText))
