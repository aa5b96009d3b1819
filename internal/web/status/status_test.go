package status

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/incident"
	"github.com/podgauge/podgauge/test/bubble"
	"golang.org/x/net/html"
)

var update = flag.Bool("update", false, "update the golden files")

// TestGolden compares each page with its golden file.
func TestGolden(t *testing.T) {
	for _, name := range slices.Sorted(maps.Keys(fixtures)) {
		t.Run(name, func(t *testing.T) {
			got := fixtures[name]().page(t)
			checkHTML(t, got)
			file := filepath.Join("testdata", name+".html")
			if *update {
				if err := os.WriteFile(file, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, want) {
				t.Errorf("differs from %s; if intended, run make golden:\n%s", file, got)
			}
		})
	}
	files, err := filepath.Glob("testdata/*.html")
	if err != nil || len(files) != len(fixtures) {
		t.Errorf("got %d golden files for %d nodes: %v", len(files), len(fixtures), err)
	}
}

// page returns the rendered page.
func (f *pageFixture) page(t *testing.T) []byte {
	t.Helper()
	return f.newPage().render(f.readings, filter{}, now)
}

// checkHTML checks that elements are closed, ids are unique and link targets exist, and that the page conforms to its policy.
func checkHTML(t *testing.T, page []byte) {
	t.Helper()
	var open []string
	ids, wanted := map[string]bool{}, map[string]bool{}
	for z := html.NewTokenizer(bytes.NewReader(page)); ; {
		kind := z.Next()
		token := z.Token()
		switch kind {
		case html.ErrorToken:
			if len(open) > 0 {
				t.Errorf("elements not closed: %v", open)
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
			if n := len(open); n > 0 && (open[n-1] == "script" || open[n-1] == "style") && strings.TrimSpace(token.Data) != "" {
				t.Errorf("<%s> has inline content: %q", open[n-1], token.Data)
			}
		}
	}
}

// xidCatalogue is the only allowed link to another server.
const xidCatalogue = "https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html"

var allowedElements = strings.Fields("html head meta title link noscript script body a header p span h1 h2 h3 bdi main ul li dl dt dd div b code q " +
	"section svg rect path details summary time table caption thead tbody tr th td footer nav")

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
		case a.Key == "href" && token.Data == "a" && a.Val == xidCatalogue:
		case (a.Key == "href" || a.Key == "src") && (strings.Contains(a.Val, ":") || strings.HasPrefix(a.Val, "/")):
			t.Errorf("<%s %s=%q> links to another server", token.Data, a.Key, a.Val)
		}
	}
}

// TestHostileNames checks that names are escaped.
func TestHostileNames(t *testing.T) {
	page := string(newHostileFixture().page(t))
	for _, out := range []string{"<script>alert", "<img", "\u202e", "\x00", "\x1b", "{{.}}<", "</title></svg>"} {
		if strings.Contains(page, out) {
			t.Errorf("the page contains %q", out)
		}
	}
	if n := strings.Count(page, "&lt;script&gt;alert(1)"); n < 20 {
		t.Errorf("occurrences of the name: got %d, want at least 20", n)
	}
	for root := range strings.SplitSeq(page, "<") { // each part begins with the name of an element
		if strings.HasPrefix(root, "script") && !strings.HasPrefix(root, `script src="static/page.js" defer>`) {
			t.Errorf("unexpected script: %q", root)
		}
	}
}

// TestTemplate checks that the template prints only texts and numbers, escaped, and within a quoted attribute or a text: quicktemplate does
// not know the context of a value. No link begins with a value, which could be a scheme.
func TestTemplate(t *testing.T) {
	source, err := os.ReadFile("page.qtpl")
	if err != nil {
		t.Fatal(err)
	}
	tag := regexp.MustCompile(`^{%(\S*) .*?%}`)
	values := 0
	for text, inTag, quoted := string(source), false, false; text != ""; {
		found := tag.FindStringSubmatch(text)
		if found == nil {
			switch text[0] {
			case '<', '>':
				if quoted {
					t.Errorf("a quote is not closed before %.60q", text)
				}
				inTag = text[0] == '<'
			case '"':
				quoted = inTag && !quoted
			}
			text = text[1:]
			continue
		}
		switch found[1] {
		case "s", "d", "dul":
			if values++; inTag && !quoted {
				t.Errorf("a value without quotes: %.60q", text)
			}
		case "", "=": // control flow and subtemplates
		default:
			t.Errorf("got %q, want s, d, dul or =", found[0])
		}
		text = text[len(found[0]):]
	}
	if values < 100 {
		t.Errorf("got %d values, want at least 100", values)
	}
	for _, link := range regexp.MustCompile(`(?:href|src)="({%.*?%})`).FindAllStringSubmatch(string(source), -1) {
		if !strings.HasPrefix(link[1], "{%s incidentsHref(") && !strings.HasPrefix(link[1], "{%s podHref(") && !strings.HasSuffix(link[1], ".href() %}") && link[1] != "{%s link %}" { // PageOptions.Links: constants and --web.telemetry-path
			t.Errorf("a link begins with a value: %s", link[0])
		}
	}
}

// TestUnknownIsNotUnallocated checks that no device is shown or counted as unallocated while the allocations are incomplete.
func TestUnknownIsNotUnallocated(t *testing.T) {
	n := newUnsettledFixture()
	p := string(n.page(t))
	for _, out := range []string{`<p class="no-owner">unallocated</p>`, "1 of 4 replicas allocated", `class="map-part healthy" href`, `<span class="replica">`} {
		if strings.Contains(p, out) {
			t.Errorf("the page contains %q", out)
		}
	}
	v := n.pageView()
	for _, r := range v.Resources {
		if r.AllocatedKnown {
			t.Errorf("%s: got %d allocated, want unknown", r.Resource, r.Allocated)
		}
	}
	n.allocations.Complete = true
	if v = n.pageView(); !v.Resources[0].AllocatedKnown || v.Resources[0].Allocated != 1 {
		t.Errorf("with complete allocations: got %+v", v.Resources[0])
	}
}

// TestSums checks that sums cover the same GPUs, and state their number if other GPUs were not read.
func TestSums(t *testing.T) {
	sums := func(n *pageFixture) string {
		var stats []string
		for _, f := range n.pageView().Stats {
			if f.Name == "Memory" || f.Name == "Power" {
				stats = append(stats, f.Name+" "+f.Value+" "+f.Note)
			}
		}
		return strings.Join(stats, "; ")
	}
	n := newEmptyFixture()
	for range 3 {
		n.addGPU("NVIDIA L4", 20, "8.9")
	}
	for i, c := range []struct {
		used, total, power, limit float64
		want                      string
	}{
		{10, 20, 40, 72, "Memory 50 % of 20 GiB, 1 of 3 GPUs; Power 40 W of 72 W, 1 of 3 GPUs"},
		{5, 20, 40, -1, "Memory 38 % of 40 GiB, 2 of 3 GPUs; Power 80 W 2 of 3 GPUs"},
		{15, 20, -1, 72, "Memory 50 % of 60 GiB; Power 80 W 2 of 3 GPUs"},
	} {
		n.addReading(n.statuses[i].ID, -1, c.used, c.total, c.power, c.limit, -1)
		if got := sums(n); got != c.want {
			t.Errorf("%d GPUs read: got %q, want %q", i+1, got, c.want)
		}
	}
	n.statuses[2].Gone = true
	delete(n.readings.Devices, n.statuses[2].ID)
	if got, want := sums(n), "Memory 38 % of 40 GiB; Power 80 W"; strings.TrimSpace(got) != want {
		t.Errorf("one GPU removed: got %q, want %q", got, want)
	}
}

// TestPartitionMap checks that MIG devices are drawn at the position of their memory.
func TestPartitionMap(t *testing.T) {
	type migDevice struct {
		profile string
		memory  float64
		at      device.Placement
	}
	for _, c := range []struct {
		name   string
		memory float64
		slices []migDevice
		want   string
	}{
		{"H100", 80, []migDevice{
			{"1g.20gb", 19.5, device.Placement{Start: 0, Size: 2}},
			{"1g.10gb+me", 9.75, device.Placement{Start: 2, Size: 1}},
			{"2g.20gb", 19.5, device.Placement{Start: 4, Size: 2}},
		}, "8: at-0 span-2, at-2 span-1, at-4 span-2"},
		{"A100, of 40 GB", 40, []migDevice{{"1g.10gb", 9.6, device.Placement{Start: 6, Size: 2}}}, "8: at-6 span-2"},
		{"A30", 24, []migDevice{{"1g.6gb", 5.8, device.Placement{Start: 3, Size: 1}}, {"2g.12gb", 11.7, device.Placement{Start: 0, Size: 2}}}, "4: at-3 span-1, at-0 span-2"},
		{"unknown memory", 0, []migDevice{{"3g.40gb", 39.5, device.Placement{Start: 4, Size: 4}}}, "8: at-4 span-4"},
		{"unknown place", 80, []migDevice{{"3g.40gb", 39.5, device.Placement{Start: -1}}}, "8: span-1"},
	} {
		n := newEmptyFixture()
		n.addGPU("NVIDIA "+c.name, c.memory, "9.0").MIGEnabled = true
		for i, s := range c.slices {
			n.addMIGDevice(s.profile, i, 0, s.memory, s.at)
		}
		drawn := n.pageView().GPUs[0].Partition
		var places []string
		for _, i := range drawn.Instances {
			places = append(places, i.CSSClass())
		}
		if got := fmt.Sprintf("%d: %s", drawn.MemorySlices, strings.Join(places, ", ")); got != c.want {
			t.Errorf("%s: got %s, want %s", c.name, got, c.want)
		}
	}
}

func get(t *testing.T, h http.Handler, path string) *httptest.ResponseRecorder {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, http.NoBody))
	for name, want := range map[string]string{
		"X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY", "Referrer-Policy": "no-referrer",
		"Cross-Origin-Resource-Policy": "same-origin",
		"Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self'; " +
			"base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
	} {
		if got := w.Header().Get(name); got != want {
			t.Errorf("%s: %s: got %q, want %q", path, name, got, want)
		}
	}
	return w
}

func TestAssets(t *testing.T) {
	page := get(t, newH100Fixture().newPage(), "/").Body.String()
	for name, contentType := range map[string]string{"page.css": "text/css; charset=utf-8", "page.js": "text/javascript; charset=utf-8", "icon.svg": "image/svg+xml"} {
		want, err := assetFiles.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		w := get(t, Assets(), AssetsPath+name)
		if w.Code != http.StatusOK || w.Body.String() != string(want) || w.Header().Get("Content-Type") != contentType || w.Header().Get("Cache-Control") != "no-cache" {
			t.Errorf("%s: got status %d, %v", name, w.Code, w.Header())
		}
		if !strings.Contains(page, `"static/`+name+`"`) {
			t.Errorf("the page does not use %s", name)
		}
		if name != "icon.svg" && bytes.Contains(want, []byte("http")) {
			t.Errorf("%s has a URL", name)
		}
	}
	if w := get(t, Assets(), "/static/page.qtpl"); w.Code != http.StatusNotFound {
		t.Errorf("unknown file: got status %d", w.Code)
	}
}

// TestViewersShareAPage checks that a page is rendered at most twice a second.
func TestViewersShareAPage(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		n := newH100Fixture()
		p := n.newPage()
		for range 100 {
			get(t, p, "/")
			time.Sleep(50 * time.Millisecond)
		}
		if n.reads != 10 {
			t.Errorf("got %d rendered pages in five seconds, want 10", n.reads)
		}
		n.statuses[3].Healthy, n.statuses[3].Health, n.statuses[3].Reason = false, 2, "xid_79"
		time.Sleep(maxPageAge)
		if page := get(t, p, "/").Body.String(); !strings.Contains(page, "Unhealthy: 1 of 8 devices.") {
			t.Error("the page lacks the change")
		}
	})
}

// TestPageOfDisconnectedClient checks that the page for a disconnected client is complete, since other viewers share it.
func TestPageOfDisconnectedClient(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	w := httptest.NewRecorder()
	newH100Fixture().newPage().ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodGet, "/", http.NoBody))
	if !strings.Contains(w.Body.String(), "98 %") {
		t.Errorf("got status %d, %s", w.Code, w.Body)
	}
}

// TestPageAllocations limits the size of a page and the memory allocations, also with the race detector.
func TestPageAllocations(t *testing.T) {
	for name, limit := range map[string]struct {
		allocations float64
		bytes       int
	}{"h100": {500, 30_000}, "mig_full": {3000, 90_000}, "replicas": {2000, 55_000}} {
		n := fixtures[name]()
		p := n.newPage()
		size := len(p.render(n.readings, filter{}, now))
		if got := testing.AllocsPerRun(10, func() { p.render(n.readings, filter{}, now) }); got > limit.allocations || size > limit.bytes {
			t.Errorf("%s: got %.0f allocations and %d bytes per page, want at most %.0f and %d", name, got, size, limit.allocations, limit.bytes)
		} else {
			t.Logf("%s: %.0f allocations, %d bytes", name, got, size)
		}
	}
}

func BenchmarkPage(b *testing.B) {
	for _, name := range []string{"h100", "mig_full", "replicas"} {
		n := fixtures[name]()
		p := n.newPage()
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				p.render(n.readings, filter{}, now)
			}
		})
	}
}

func TestIncidentDevice(t *testing.T) {
	for want, i := range map[string]incident.Incident{
		"GPU 3":                {Index: 3},
		"GPU 3, 1g.10gb":       {Index: 3, Profile: "1g.10gb"},
		"GPU 3, 2 MIG devices": {Index: 3, MIGDevices: make([]incident.AffectedMIGDevice, 2)},
	} {
		if got := incidentDevice(&i); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestMissingGPUs(t *testing.T) {
	n := newEmptyFixture()
	n.addGPU("NVIDIA L4", 20, "8.9")
	n.addGPU("NVIDIA L4", 20, "8.9")
	n.expected = 3
	if v := n.pageView(); v.Grade != "warning" || v.Headline != "All 2 devices are healthy. Missing: 1 of 3 expected GPUs." {
		t.Errorf("got %s: %s", v.Grade, v.Headline)
	}
	n.expected = 2
	if v := n.pageView(); v.Grade != "well" || strings.Contains(v.Headline, "issing") {
		t.Errorf("got %s: %s", v.Grade, v.Headline)
	}
}

func TestRetiredDevice(t *testing.T) {
	n := newEmptyFixture()
	n.addGPU("NVIDIA L4", 20, "8.9")
	n.statuses[0].Healthy, n.statuses[0].Health, n.statuses[0].Reason, n.statuses[0].Note = false, device.Unhealthy, "retired", "fan is <noisy>"
	i := incident.Incident{Reason: "retired", Note: "fan is <noisy>", MarkedUnhealthy: true}
	n.incidents.Incidents = []incident.Incident{i}
	if v := n.pageView(); v.GPUs[0].HealthNote != "fan is <noisy>" {
		t.Errorf("got %+v", v.GPUs[0])
	}
	if grade, state, action := incidentOutcome(&i); grade != "plain" || state != "retired: fan is <noisy>" || action != "" {
		t.Error(grade, state, action)
	}
}
