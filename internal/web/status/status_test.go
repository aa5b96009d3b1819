package status_test

import (
	"context"
	"flag"
	"maps"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/web/status"
	"github.com/podgauge/podgauge/test/bubble"
	"github.com/podgauge/podgauge/test/helpers/testfile"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var update = flag.Bool("update", false, "update the golden files")

// TestGolden compares each page with its golden file.
func TestGolden(t *testing.T) {
	for _, name := range slices.Sorted(maps.Keys(fixtures)) {
		t.Run(name, func(t *testing.T) {
			var got string
			runAtNow(t, func(t *testing.T) { got = fixtures[name]().html(t, "") })
			testfile.CheckGolden(t, *update, "testdata/"+name+".html", got)
		})
	}
	files, err := filepath.Glob("testdata/*.html")
	if err != nil || len(files) != len(fixtures) {
		t.Errorf("got %d golden files for %d nodes: %v", len(files), len(fixtures), err)
	}
}

// TestHostileNames checks that names are escaped.
func TestHostileNames(t *testing.T) {
	page := newHostileFixture().html(t, "")
	for _, out := range []string{"<script>alert", "<img", "\u202e", "\x00", "\x1b", "{{.}}<", "</title></svg>"} {
		if strings.Contains(page, out) {
			t.Errorf("the page contains %q", out)
		}
	}
	if n := strings.Count(page, "&lt;script&gt;alert(1)"); n < 20 {
		t.Errorf("occurrences of the name: got %d, want at least 20", n)
	}
}

func TestAssets(t *testing.T) {
	page := newH100Fixture().html(t, "")
	for name, contentType := range map[string]string{
		"page.css": "text/css; charset=utf-8", "page.js": "text/javascript; charset=utf-8", "icon.svg": "image/svg+xml",
	} {
		want := testfile.Read(t, name)
		w := get(t, status.Assets(), status.AssetsPath+name)
		if w.Code != http.StatusOK || w.Body.String() != want {
			t.Errorf("%s: got status %d, %s", name, w.Code, w.Body)
		}
		if h := w.Header(); h.Get("Content-Type") != contentType || h.Get("Cache-Control") != "no-cache" {
			t.Errorf("%s: got %v", name, h)
		}
		if !strings.Contains(page, `"static/`+name+`"`) {
			t.Errorf("the page does not use %s", name)
		}
		if name != "icon.svg" && strings.Contains(want, "http") {
			t.Errorf("%s has a URL", name)
		}
	}
	for _, path := range []string{"/static/page.html", "/static/templates/page.html", "/static/"} {
		if w := get(t, status.Assets(), path); w.Code != http.StatusNotFound {
			t.Errorf("%s: got status %d", path, w.Code)
		}
	}
}

// TestViewersShareAPage checks that a page is rendered at most twice a second, completely for a disconnected client.
func TestViewersShareAPage(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		n, reads := newH100Fixture(), 0
		p := status.New(func(ctx context.Context) status.PageState {
			if ctx.Err() != nil {
				t.Error("the readings of a disconnected client are not waited for")
			}
			reads++
			return n.newest(ctx)
		}, pageOptions)
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		r := httptest.NewRequestWithContext(gone, http.MethodGet, "/", http.NoBody)
		p.ServeHTTP(httptest.NewRecorder(), r)
		for range 100 {
			get(t, p, "/")
			time.Sleep(50 * time.Millisecond)
		}
		if reads != 10 {
			t.Errorf("got %d rendered pages in five seconds, want 10", reads)
		}
		n.Statuses[3].Healthy, n.Statuses[3].Health, n.Statuses[3].Reason = false, device.Unhealthy, "xid_79"
		time.Sleep(500 * time.Millisecond)
		if page := get(t, p, "/").Body.String(); !strings.Contains(page, "Unhealthy: 1 of 8 devices.") {
			t.Error("the page lacks the change")
		}
	})
}
