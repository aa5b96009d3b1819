package status_test

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
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
		"X-Frame-Options": "DENY", "Cross-Origin-Resource-Policy": "same-origin",
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

// find returns the groups of each match of a pattern on the page for a query, as plain text.
func (f *pageFixture) find(t *testing.T, query, pattern string) (found []string) {
	t.Helper()
	for _, match := range regexp.MustCompile(pattern).FindAllStringSubmatch(f.html(t, query), -1) {
		groups := slices.DeleteFunc(match[1:], func(group string) bool { return group == "" })
		found = append(found, html.UnescapeString(strings.Join(groups, " ")))
	}
	return found
}

// checkHTML checks that elements are closed, ids are unique and link targets
// exist, and that the page conforms to its policy.
func checkHTML(t *testing.T, page string) {
	t.Helper()
	open := []string{""}
	ids, wanted := map[string]bool{}, map[string]bool{}
	z := html.NewTokenizer(strings.NewReader(page))
	for z.Next() != html.ErrorToken {
		token := z.Token()
		within := open[len(open)-1]
		switch {
		case token.Type == html.EndTagToken && within != token.Data:
			t.Fatalf("</%s> closes %v", token.Data, open)
		case token.Type == html.EndTagToken:
			open = open[:len(open)-1]
		case token.Type == html.TextToken && (within == "script" || within == "style") && strings.TrimSpace(token.Data) != "":
			t.Errorf("<%s> has inline content: %q", within, token.Data)
		case token.Type == html.StartTagToken && token.Data != "meta" && token.Data != "link":
			open = append(open, token.Data)
		}
		if token.Type == html.StartTagToken || token.Type == html.SelfClosingTagToken {
			checkAttributes(t, token, ids, wanted)
		}
	}
	if !errors.Is(z.Err(), io.EOF) || len(open) > 1 {
		t.Errorf("%v: elements not closed: %v", z.Err(), open)
	}
	for id := range wanted {
		if !ids[id] {
			t.Errorf("no element has the id %q", id)
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
