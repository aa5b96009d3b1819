package status_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/net/html"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/incident"
	"github.com/podgauge/podgauge/internal/web/status"
	"github.com/podgauge/podgauge/test/bubble"
	"github.com/podgauge/podgauge/test/helpers/expect"
	"github.com/podgauge/podgauge/test/helpers/testfile"
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
		expect.Equal(t, get(t, status.Assets(), path).Code, http.StatusNotFound, path)
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
		expect.Equal(t, reads, 10, "rendered pages in five seconds")
		n.Statuses[3].Healthy, n.Statuses[3].Health, n.Statuses[3].Reason = false, device.Unhealthy, "xid_79"
		time.Sleep(500 * time.Millisecond)
		if page := get(t, p, "/").Body.String(); !strings.Contains(page, "Unhealthy: 1 of 8 devices.") {
			t.Error("the page lacks the change")
		}
	})
}

// TestLastFault checks which incident a GPU with Xid 79 shows, with which containers. Incidents are newest first, with
// device, reason, whether it marked the device unhealthy, and pod.
func TestLastFault(t *testing.T) {
	for _, c := range []struct{ name, incidents, want string }{
		{"no incident", "", ""},
		{"the incident of the fault, not a later one", "gpu xid_45 no b, gpu xid_79 yes a, gpu xid_79 no c", "xid_79 a"},
		{"the last one, without an incident of the fault", "gpu xid_31 no b, gpu xid_13 no a", "xid_31 b"},
		{"containers of MIG devices, each once", "gpu xid_79 yes a, mig xid_79 yes b, mig xid_79 yes a", "xid_79 a b"},
		{"not of another fault of a MIG device", "mig xid_95 yes b, gpu xid_79 yes a", "xid_79 a"},
		{"not of another GPU", "other xid_79 yes a", ""},
	} {
		n := newEmptyFixture()
		s := n.addGPU("NVIDIA L4", 24)
		fail(s, "xid_79", "", time.Minute)
		for row := range strings.SplitSeq(c.incidents, ", ") {
			fields := strings.Fields(row)
			if len(fields) == 0 {
				continue
			}
			i := incident.Incident{
				Device: s.ID, GPU: s.GPU, Reason: fields[1], MarkedUnhealthy: fields[2] == "yes", Last: beforeNow(time.Minute),
				Affected: []incident.AffectedContainer{{Owner: ownerOf("lab/" + fields[3] + "/main")}},
			}
			switch fields[0] {
			case "mig":
				i.Device = "MIG-1"
			case "other":
				i.Device, i.GPU = "GPU-other", "GPU-other"
			}
			n.Incidents.Incidents = append(n.Incidents.Incidents, i)
		}
		fault := n.find(t, "", `(?s)<div class="last-fault">(.*?)</div>`)
		got := ""
		for _, match := range regexp.MustCompile(`&reason=(\w+)|<bdi>(\w+)</bdi></a>`).FindAllStringSubmatch(strings.Join(fault, ""), -1) {
			got += match[1] + match[2] + " "
		}
		if strings.TrimSpace(got) != c.want {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
	}
}

// TestSums checks that sums cover the same GPUs, and state their number if other GPUs were not read.
func TestSums(t *testing.T) {
	check := func(n *pageFixture, want string) {
		t.Helper()
		stats := n.find(t, "", `<dt>(Memory|Power)</dt><dd><b>([^<]*)</b>(?: <span>([^<]*)</span>)?`)
		expect.Equal(t, strings.Join(stats, "; "), want, len(n.Readings.Devices), "GPUs read")
	}
	n := newEmptyFixture()
	n.addGPU("NVIDIA L4", 20)
	if !strings.Contains(n.html(t, ""), "The device is healthy.") {
		t.Error("one GPU: no headline")
	}
	n.addGPU("NVIDIA L4", 20)
	n.addGPU("NVIDIA L4", 20)
	n.addReading(n.Statuses[0].ID, -1, 10, 20, 40, 72, -1)
	check(n, "Memory 50 % of 20 GiB, 1 of 3 GPUs; Power 40 W of 72 W, 1 of 3 GPUs")
	n.addReading(n.Statuses[1].ID, -1, 5, 20, 40, -1, -1)
	check(n, "Memory 38 % of 40 GiB, 2 of 3 GPUs; Power 80 W 2 of 3 GPUs")
	n.addReading(n.Statuses[2].ID, -1, 15, 20, -1, 72, -1)
	check(n, "Memory 50 % of 60 GiB; Power 80 W 2 of 3 GPUs")
	n.Statuses[2].Gone = true
	delete(n.Readings.Devices, n.Statuses[2].ID)
	check(n, "Memory 38 % of 40 GiB; Power 80 W")
}

// lines returns the label and the path of each line of the past.
func (f *pageFixture) lines(t *testing.T) string {
	t.Helper()
	return strings.Join(f.find(t, "", `<svg class="past"[^>]*aria-label="([^"]*)"[^>]*>\s*<path d="([^"]*)"`), "; ")
}

// newHistoryFixture returns a node of a GPU with an empty history.
func newHistoryFixture() (*pageFixture, device.ID) {
	n := newEmptyFixture()
	n.Readings.History = &status.ReadingHistory{}
	return n, n.addGPU("NVIDIA L4", 24).ID
}

// TestHistoryLines checks the lines of the last half hour: a unit to the right for 30 s, 16 units up for 100 %.
func TestHistoryLines(t *testing.T) {
	for _, c := range []struct {
		name   string
		points map[int]float64 // utilization by slot; 59 is the newest
		want   string
	}{
		{"nothing read", nil, ""},
		{"one reading is a dot", map[int]float64{59: 0.5}, "50 to 50 % M59 8h0"},
		{"equal readings", map[int]float64{56: 0.5, 57: 0.51, 58: 0.5, 59: 0.49}, "49 to 51 % M56 8h0L57 8L58 8L59 8"},
		{"up and down", map[int]float64{56: 0, 57: 1, 58: 1, 59: 0}, "0 to 100 % M56 16h0L57 0L58 0L59 16"},
		{"above 100 %", map[int]float64{59: 1.5}, "100 to 100 % M59 0h0"},
		{"a line over a short gap", map[int]float64{50: 0.5, 54: 1}, "50 to 100 % M50 8h0L54 0"},
		{"a long gap", map[int]float64{50: 0.5, 55: 1, 56: 1}, "50 to 100 % M50 8h0M55 0h0L56 0"},
	} {
		runAtNow(t, func(t *testing.T) {
			n, id := newHistoryFixture()
			for slot := range 60 {
				if value, ok := c.points[slot]; ok {
					at := beforeNow(time.Duration(59-slot) * 30 * time.Second)
					n.Readings.History.Record(at, map[device.ID]status.DeviceReading{id: {status.Utilization: value}})
				}
			}
			want := c.want
			if want != "" {
				want = "Utilization of the last 30 min: " + want
			}
			expect.Equal(t, n.lines(t), want, c.name)
		})
	}
}

// TestHistorySlots checks which readings become points, and for how long.
func TestHistorySlots(t *testing.T) {
	runAtNow(t, func(t *testing.T) {
		n, id := newHistoryFixture()
		record := func(id device.ID, after time.Duration, value float64) {
			n.Readings.History.Record(now.Add(after), map[device.ID]status.DeviceReading{id: {status.Utilization: value}})
		}
		check := func(after time.Duration, want string) {
			t.Helper()
			time.Sleep(time.Until(now.Add(after)))
			got := regexp.MustCompile(`\d+ to \d+ % M\d+`).FindString(n.lines(t))
			expect.Equal(t, got, want, "after", after)
		}
		record(id, 0, 0.1)
		record(id, 29*time.Second, 0.2) // replaces the first reading
		record(id, 30*time.Second, 0.3)
		record(id, 20*time.Second, 0.4) // the clock went back: the reading goes into the newest slot
		check(30*time.Second, "20 to 40 % M58")
		check(90*time.Second, "20 to 40 % M56")
		check(30*time.Minute, "40 to 40 % M0")
		check(31*time.Minute, "")
		record(id, 32*time.Minute, 0.5)
		check(32*time.Minute, "50 to 50 % M59")
		record("another", 5*time.Hour, 0.6)
		check(5*time.Hour, "")
	})
}

// TestHistoryIsBounded checks that any number of devices, as of MIG devices made again and again, does not fill the memory.
func TestHistoryIsBounded(t *testing.T) {
	n, id := newHistoryFixture()
	for i := range 5000 {
		some := device.ID(fmt.Sprint("MIG-", i))
		n.Readings.History.Record(time.Now(), map[device.ID]status.DeviceReading{some: {status.Utilization: 0.5}})
	}
	n.Readings.History.Record(time.Now(), map[device.ID]status.DeviceReading{id: {status.Utilization: 0.5}})
	expect.Equal(t, n.lines(t), "")
}

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
		expect.Equal(t, w.Header().Get(name), want, path, name)
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

// shownDevices returns the ids of the devices on the page for a query.
func (f *pageFixture) shownDevices(t *testing.T, query string) string {
	t.Helper()
	return strings.Join(f.find(t, query, ` id="gpu-([^"]+)"\s+data-device=`), " ")
}

func TestFilter(t *testing.T) {
	for _, c := range []struct{ fixture, query, want string }{
		// Without a filter, the worst first: unhealthy, recovering, suspect, healthy; then by index.
		{"failed", "", "2 7 6 5 0 1 3 4"},
		{"mig", "", "1 1-5 1-0 1-1 1-2 1-3 1-4 1-6 0 2 2-0 2-1 2-2 3 3-0 3-1 3-2 4 4-0 5"},
		{"replaced", "", "1.2 7 0 1 2 3 4 5 6"},
		{"failed", "?state=unhealthy", "2 7"},
		{"failed", "?state=recovering", "6"},
		{"failed", "?state=suspect", "5"},
		{"failed", "?state=healthy", "0 1 3 4"},
		{"failed", "?state=allocated", "2 5 0 1 3 4"},
		{"failed", "?state=unallocated", ""}, // 6 and 7 are neither allocated nor allocatable
		{"h100", "?state=unallocated", "6 7"},
		{"failed", "?pod=llama", "2 0 1 3"},
		{"failed", "?pod=research/llama-pretrain-0", "2 0 1 3"},
		{"failed", "?pod=research%2Fllama-pretrain-0", "2 0 1 3"},
		{"failed", "?pod=research/llama", ""},
		{"failed", "?pod=serving/llama-pretrain-0", ""},
		{"failed", "?pod=finetune-17", "6"}, // the pod ended with the device's failure
		{"failed", "?pod=llama&state=unhealthy", "2"},
		{"mig_failed", "?state=unhealthy", "3 3-0 3-1 3-2 3-3 3-4 3-5 3-6 5 5-4"},
		{"mig_failed", "?pod=batch/job-3-2", "3 3-2"},
		{"mig_failed", "?pod=job-3&state=healthy", ""},
		{"mig", "?state=unallocated", "1 1-2 1-4 1-6 3 3-0 3-1 3-2 4 4-0"},
		{"unsettled", "?state=unallocated", ""},
		{"shared", "?pod=notebook-63", "2"},
	} {
		expect.Equal(t, fixtures[c.fixture]().shownDevices(t, c.query), c.want, c.fixture, c.query)
	}
	for query, want := range map[string]string{
		"?pod=none":      "Unhealthy: 3 of 8 devices.",
		"?pod=other":     "No device matches the filter.",
		"?state=healthy": `<a href="./#gpu-2">GPU 2</a>`, // a link to the failed GPU
	} {
		if page := newFailedFixture().html(t, query); !strings.Contains(page, want) {
			t.Errorf("%s: missing %s", query, want)
		}
	}
}

// TestFilterLinks checks that each link states the number of devices that it shows, and keeps the pod.
func TestFilterLinks(t *testing.T) {
	for name, query := range map[string]string{"failed": "", "mig_failed": "?pod=job-3", "h100": "?state=suspect"} {
		n := fixtures[name]()
		links := n.find(t, query, `<li><a href="([^"]*)"( aria-current="true")?>\w+\s+<span class="count">(\d+)</span>`)
		if len(links) != 7 {
			t.Fatalf("%s: got links %q", name, links)
		}
		for _, link := range links {
			href, rest, _ := strings.Cut(strings.TrimPrefix(link, "./"), " ")
			count := 0
			ids := strings.Fields(n.shownDevices(t, href))
			for i, id := range ids {
				if i+1 == len(ids) || !strings.HasPrefix(ids[i+1], id+"-") { // otherwise the GPU of MIG devices
					count++
				}
			}
			want := strconv.Itoa(count)
			if href == query {
				want = ` aria-current="true" ` + want
			}
			if rest != want || strings.Contains(query, "pod") != strings.Contains(href, "pod=job-3") {
				t.Errorf("%s, %s: got link %s with %q, want %q", name, query, href, rest, want)
			}
		}
	}
}

// TestPodLink checks that the link of a pod shows the pod's devices.
func TestPodLink(t *testing.T) {
	for _, pod := range []string{"a", "a&b=c #?%", hostileText} {
		n := newEmptyFixture()
		for range 2 {
			n.addGPU("NVIDIA L4", 24)
		}
		n.allocate(gpuResource, n.Statuses[1].ID.Advertised(), 0, "lab/"+pod+"/main")
		href := n.find(t, "", `class="pod" href="([^"]*)"`)[0]
		if got := n.shownDevices(t, href); got != "1" {
			t.Errorf("%s: got devices %q at %s", pod, got, href)
		}
	}
}

// TestIncidentsOfPod checks that a pod filter also selects incidents.
func TestIncidentsOfPod(t *testing.T) {
	n := newFailedFixture()
	for query, want := range map[string]string{
		"":                          "GPU 7, GPU 2, GPU 5, GPU 6, GPU 4, 1g.10gb, GPU 0, 2 MIG devices",
		"?pod=notebook-ada":         "GPU 5",
		"?pod=research/finetune-17": "GPU 6",
		"?pod=none":                 "",
	} {
		expect.Equal(t, strings.Join(n.find(t, query, `data-name="Device">([^<]*)<`), ", "), want, query)
	}
}

func TestInvalidFilter(t *testing.T) {
	states := "expected unhealthy, recovering, suspect, healthy, allocated, unallocated"
	for query, want := range map[string]string{
		"pod=lab%2Ftrain&state=idle": `state "idle": ` + states,
		"state=%1B%5B31m":            `state "\x1b[31m": ` + states,
		"device=0":                   `unknown parameter "device": expected pod, state`,
	} {
		w := get(t, status.New(newEmptyFixture().newest, pageOptions), "/?"+query)
		if w.Code != http.StatusBadRequest || w.Body.String() != want+"\n" {
			t.Errorf("%s: got status %d, %q, want %s", query, w.Code, w.Body, want)
		}
	}
}

// FuzzFilter checks that no query causes a panic or injects HTML.
func FuzzFilter(f *testing.F) {
	for _, seed := range []string{
		"", "pod=a%2Fb", "state=healthy", "pod=%22%3E%3Cscript%3E", "pod=%00", "pod=/", ";",
		"pod=" + url.QueryEscape(hostileText),
	} {
		f.Add(seed)
	}
	h := status.New(newFailedFixture().newest, pageOptions)
	f.Fuzz(func(t *testing.T, query string) {
		if _, err := url.Parse("/?" + query); err != nil {
			return
		}
		r, err := http.NewRequest(http.MethodGet, "/?"+query, http.NoBody)
		if err != nil {
			return
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code == http.StatusOK {
			checkHTML(t, w.Body.String())
		} else if w.Code != http.StatusBadRequest || strings.Count(w.Body.String(), "\n") != 1 {
			t.Errorf("%q: got status %d, %q", query, w.Code, w.Body)
		}
	})
}
