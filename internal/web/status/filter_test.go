package status

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/podgauge/podgauge/test/bubble"
)

func TestParseFilter(t *testing.T) {
	for query, want := range map[string]string{
		"":                           "{ }",
		"state=unhealthy":            "{ unhealthy}",
		"pod=train":                  "{train }",
		"pod=lab%2Ftrain&state=idle": `state "idle": expected unhealthy, recovering, suspect, healthy, allocated, unallocated`,
		"pod=lab%2Ftrain":            "{lab/train }",
		"pods=train":                 `unknown parameter "pods": expected pod, state`,
		"pod=a&pod=b":                "pod is given 2 times",
		"pod=":                       `pod "": expected a value`,
		"pod=%":                      `parse parameters: invalid URL escape "%"`,
	} {
		f, err := parseFilter(query, now)
		got := fmt.Sprint(f)
		if err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%s: got %s, want %s", query, got, want)
		}
	}
}

// shown returns the names of the devices in a view.
func shown(v *pageView) string {
	var names []string
	for _, g := range v.GPUs {
		name := g.ShortName
		for _, m := range g.MIGDevices {
			name += ":" + m.ShortName
		}
		names = append(names, name)
	}
	return strings.Join(names, " ")
}

func TestFilter(t *testing.T) {
	for _, c := range []struct {
		fixture string
		filter  filter
		want    string
	}{
		{"failed", filter{}, "2 7 6 5 0 1 3 4"},
		{"failed", filter{State: "unhealthy"}, "2 7"},
		{"failed", filter{State: "recovering"}, "6"},
		{"failed", filter{State: "suspect"}, "5"},
		{"failed", filter{State: "healthy"}, "0 1 3 4"},
		{"failed", filter{State: "allocated"}, "2 5 0 1 3 4"},
		{"failed", filter{State: "unallocated"}, ""}, // 6 and 7 are neither allocated nor allocatable
		{"h100", filter{State: "unallocated"}, "6 7"},
		{"failed", filter{Pod: "llama"}, "2 0 1 3"},
		{"failed", filter{Pod: "research/llama-pretrain-0"}, "2 0 1 3"},
		{"failed", filter{Pod: "research/llama"}, ""},
		{"failed", filter{Pod: "serving/llama-pretrain-0"}, ""},
		{"failed", filter{Pod: "finetune-17"}, "6"}, // the pod ended with the device's failure
		{"failed", filter{"llama", "unhealthy"}, "2"},
		{"mig_failed", filter{State: "unhealthy"}, "3:0:1:2:3:4:5:6 5:4"},
		{"mig_failed", filter{Pod: "batch/job-3-2"}, "3:2"},
		{"mig_failed", filter{"job-3", "healthy"}, ""},
		{"mig", filter{State: "unallocated"}, "1:2:4:6"},
		{"unsettled", filter{State: "unallocated"}, ""},
		{"replicas", filter{Pod: "notebook-3-63"}, "3"},
	} {
		n := fixtures[c.fixture]()
		p := n.newPage()
		if got := shown(n.filteredView(c.filter)); got != c.want {
			t.Errorf("%s, %+v: got %q, want %q", c.fixture, c.filter, got, c.want)
		}
		checkHTML(t, p.render(n.readings, c.filter, now))
	}
}

// TestFilterLinks checks that each link states the number of devices that it shows.
func TestFilterLinks(t *testing.T) {
	for name, f := range map[string]filter{"failed": {}, "mig_failed": {Pod: "job-3"}, "h100": {State: "suspect"}} {
		n := fixtures[name]()
		n.newPage()
		for _, l := range n.filteredView(f).FilterLinks {
			v := n.filteredView(l.filter)
			count := countCards(v.GPUs, func(g *deviceCard) bool { return len(g.MIGDevices) == 0 })
			for _, g := range v.GPUs {
				count += len(g.MIGDevices)
			}
			if count != l.Count || l.Current != (l.State == f.State) || l.Pod != f.Pod {
				t.Errorf("%s: %s: got %d devices, link %+v", name, l.href(), count, l)
			}
		}
	}
}

// TestFilterHref checks that each link results in its filter.
func TestFilterHref(t *testing.T) {
	for _, f := range []filter{{}, {Pod: "lab/a&b=c #?%"}, {State: "healthy"}, {hostileText, "unhealthy"}} {
		href := f.href()
		query, found := strings.CutPrefix(href, "?")
		if got, err := parseFilter(query, now); found == (f == filter{}) || found && (got != f || err != nil) || !found && href != "./" {
			t.Errorf("%+v: %s: got %+v, %v", f, href, got, err)
		}
	}
}

// TestIncidentsOfPod checks that a pod filter also selects incidents.
func TestIncidentsOfPod(t *testing.T) {
	n := newFailedFixture()
	for pod, want := range map[string]string{"": "6 5 4 3 2 1", "notebook-ada": "4", "research/finetune-17": "3", "none": ""} {
		var ids []string
		for _, i := range n.filteredView(filter{Pod: pod}).Incidents.Incidents {
			ids = append(ids, fmt.Sprint(i.ID))
		}
		if got := strings.Join(ids, " "); got != want {
			t.Errorf("%s: got %s, want %s", pod, got, want)
		}
	}
	if len(n.incidents.Incidents) != 6 {
		t.Error("published incidents were modified")
	}
}

// TestFilteredPage checks filters over HTTP: viewers with different filters get different pages.
func TestFilteredPage(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		n := newFailedFixture()
		h := n.newPage()
		for range 2 {
			for path, gpus := range map[string]int{"/": 8, "/?state=unhealthy": 2, "/?pod=llama-pretrain-0": 4, "/?pod=none": 0} {
				if got := strings.Count(get(t, h, path).Body.String(), `<li class="gpu `); got != gpus {
					t.Errorf("%s: got %d GPUs, want %d", path, got, gpus)
				}
			}
		}
		if page := get(t, h, "/?pod=none").Body.String(); !strings.Contains(page, "No device matches the filter.") || !strings.Contains(page, "Unhealthy: 3 of 8 devices.") {
			t.Errorf("got page %s", page)
		}
		if page := get(t, h, "/?state=healthy").Body.String(); !strings.Contains(page, `<a href="./#gpu-2">GPU 2</a>`) {
			t.Error("no link to the failed GPU")
		}
		w := get(t, h, "/?state=%1B%5B31m")
		if w.Code != http.StatusBadRequest || !strings.HasPrefix(w.Body.String(), `state "\x1b[31m": expected unhealthy, `) || strings.Count(w.Body.String(), "\n") != 1 {
			t.Errorf("got status %d, %q", w.Code, w.Body)
		}
	})
}

// FuzzFilter checks that no query causes a panic or injects HTML.
func FuzzFilter(f *testing.F) {
	for _, seed := range []string{"", "pod=a%2Fb", "state=healthy", "pod=%22%3E%3Cscript%3E", "pod=%00", "pod=/", ";"} {
		f.Add(seed)
	}
	n := fixtures["failed"]()
	page := n.newPage()
	f.Fuzz(func(t *testing.T, query string) {
		by, err := parseFilter(query, now)
		if err != nil {
			return
		}
		checkHTML(t, page.render(n.readings, by, now))
	})
}
