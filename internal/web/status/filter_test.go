package status_test

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"testing"

	"github.com/podgauge/podgauge/internal/web/status"
)

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
		if got := fixtures[c.fixture]().shownDevices(t, c.query); got != c.want {
			t.Errorf("%s, %s: got %q, want %q", c.fixture, c.query, got, c.want)
		}
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
		if got := strings.Join(n.find(t, query, `data-name="Device">([^<]*)<`), ", "); got != want {
			t.Errorf("%s: got %s, want %s", query, got, want)
		}
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
