package status_test

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/web/status"
	"github.com/podgauge/podgauge/test/bubble"
	"golang.org/x/net/html"
)

// runAtNow runs a test in a bubble, at the time of the golden pages.
func runAtNow(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
		time.Sleep(time.Until(now))
		test(t)
	})
}

// get sends a request and checks the headers common to all responses.
func get(t *testing.T, h http.Handler, path string) *httptest.ResponseRecorder {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, http.NoBody))
	for name, want := range map[string]string{
		"X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY", "Referrer-Policy": "no-referrer",
		"Cross-Origin-Resource-Policy": "same-origin",
		"Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; " +
			"img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
	} {
		if got := w.Header().Get(name); got != want {
			t.Errorf("%s: %s: got %q, want %q", path, name, got, want)
		}
	}
	return w
}

// html returns the page for a query, and checks it.
func (f *pageFixture) html(t *testing.T, query string) string {
	t.Helper()
	w := get(t, status.New(f.newest, pageOptions), "/"+query)
	if w.Code != http.StatusOK {
		t.Fatalf("%s: got status %d, %s", query, w.Code, w.Body)
	}
	checkHTML(t, w.Body.String())
	return w.Body.String()
}

// page returns the elements of the page.
func (f *pageFixture) page(t *testing.T) element { return f.filteredPage(t, "") }

func (f *pageFixture) filteredPage(t *testing.T, query string) element {
	t.Helper()
	root, err := html.Parse(strings.NewReader(f.html(t, query)))
	if err != nil {
		t.Fatal(err)
	}
	return element{root}
}

// element is an element of a page with its content. The zero element is empty.
type element struct{ *html.Node }

func (e element) attribute(name string) string {
	for _, a := range e.Attr {
		if a.Key == name {
			return a.Val
		}
	}
	return ""
}

// find returns the elements that match, in the order of the page.
func (e element) find(matches func(element) bool) (found []element) {
	if e.Node == nil {
		return nil
	}
	for n := range e.Descendants() {
		if n.Type == html.ElementNode && matches(element{n}) {
			found = append(found, element{n})
		}
	}
	return found
}

// all returns the elements of a class.
func (e element) all(class string) []element {
	return e.find(func(o element) bool { return slices.Contains(strings.Fields(o.attribute("class")), class) })
}

// first returns the first element of a class.
func (e element) first(class string) element { return append(e.all(class), element{})[0] }

// byID returns the element with an id.
func (e element) byID(t *testing.T, id string) element {
	t.Helper()
	found := e.find(func(o element) bool { return o.attribute("id") == id })
	if len(found) != 1 {
		t.Fatalf("%d elements have the id %s", len(found), id)
	}
	return found[0]
}

// text returns the text as a browser shows it, with a space before each cell and
// item.
func (e element) text() string {
	if e.Node == nil {
		return ""
	}
	var all strings.Builder
	for n := range e.Descendants() {
		switch {
		case n.Type == html.TextNode:
			all.WriteString(n.Data)
		case slices.Contains([]string{"td", "th", "li", "dt", "dd", "p", "div", "span", "time"}, n.Data):
			all.WriteString(" ")
		}
	}
	return strings.Join(strings.Fields(all.String()), " ")
}

// texts returns the text of each element.
func texts(all []element) (list []string) {
	for _, e := range all {
		list = append(list, e.text())
	}
	return list
}

// pairs returns the values of a description list by name.
func (e element) pairs(class string) map[string]string {
	pairs := map[string]string{}
	name := ""
	for _, part := range e.first(class).find(func(o element) bool { return o.Data == "dt" || o.Data == "dd" }) {
		if part.Data == "dt" {
			name = part.text()
		} else {
			pairs[name] = part.text()
		}
	}
	return pairs
}

// cells returns the cell of a column of each row of a table.
func (e element) cells(table, column string) []string {
	return texts(e.first(table).find(func(o element) bool { return o.attribute("data-name") == column }))
}

// checkHTML checks that elements are closed, ids are unique and link targets
// exist, and that the page conforms to its policy.
func checkHTML(t *testing.T, page string) {
	t.Helper()
	var open []string
	ids, wanted := map[string]bool{}, map[string]bool{}
	for z := html.NewTokenizer(strings.NewReader(page)); ; {
		kind := z.Next()
		token := z.Token()
		switch kind {
		case html.ErrorToken:
			if !errors.Is(z.Err(), io.EOF) || len(open) > 0 {
				t.Errorf("%v: elements not closed: %v", z.Err(), open)
			}
			for id := range wanted {
				if !ids[id] {
					t.Errorf("no element has the id %q", id)
				}
			}
			return
		case html.StartTagToken, html.SelfClosingTagToken:
			if kind == html.StartTagToken && !slices.Contains([]string{"meta", "link"}, token.Data) {
				open = append(open, token.Data)
			}
			checkAttributes(t, token, ids, wanted)
		case html.EndTagToken:
			if len(open) == 0 || open[len(open)-1] != token.Data {
				t.Fatalf("</%s> closes %v", token.Data, open)
			}
			open = open[:len(open)-1]
		case html.TextToken:
			within := append([]string{""}, open...)[len(open)]
			if slices.Contains([]string{"script", "style"}, within) && strings.TrimSpace(token.Data) != "" {
				t.Errorf("<%s> has inline content: %q", within, token.Data)
			}
		}
	}
}

// xidCatalog is the only allowed link to another server.
const xidCatalog = "https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html"

var allowedElements = strings.Fields("html head meta title link noscript script body a header p span h1 h2 h3 bdi " +
	"main ul li dl dt dd div b code q section svg rect path details summary time table caption thead tbody tr " +
	"th td footer nav")

func checkAttributes(t *testing.T, token html.Token, ids, wanted map[string]bool) {
	t.Helper()
	if !slices.Contains(allowedElements, token.Data) {
		t.Errorf("element <%s> is not allowed", token.Data)
	}
	for _, a := range token.Attr {
		switch {
		case strings.HasPrefix(a.Key, "on") || a.Key == "style":
			t.Errorf("<%s %s=%q>", token.Data, a.Key, a.Val)
		case a.Key == "id" && ids[a.Val]:
			t.Errorf("id %q is not unique", a.Val)
		case a.Key == "id":
			ids[a.Val] = true
		case a.Key == "aria-labelledby", a.Key == "href" && strings.HasPrefix(a.Val, "#"):
			wanted[strings.TrimPrefix(a.Val, "#")] = true
		case a.Key == "href" && token.Data == "a" && a.Val == xidCatalog:
		case a.Key == "href" && (strings.Contains(a.Val, ":") || strings.HasPrefix(a.Val, "/")):
			t.Errorf("<%s %s=%q> links to another server", token.Data, a.Key, a.Val)
		case a.Key == "src" && a.Val != "static/page.js":
			t.Errorf("<%s src=%q>", token.Data, a.Val)
		}
	}
}
