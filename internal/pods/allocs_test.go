//go:build !race

package pods

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"testing"

	api "k8s.io/kubelet/pkg/apis/pods/v1alpha1"
)

// nodeEvents returns the first events of a stream on a node with a number of pods.
func nodeEvents(t testing.TB, pods int) (events [][]byte) {
	t.Helper()
	for i := range pods {
		events = append(events, podVariantEvent(t, i, "Running", 0))
	}
	return append(events, eventBytes(t, api.EventType_INITIAL_SYNC_COMPLETE, nil))
}

// podVariantEvent returns the event of a real pod with another identity and three containers, appended as fields: the last value of a
// field counts. The size, four kilobytes, is realistic.
func podVariantEvent(t testing.TB, i int, phase string, start int) []byte {
	t.Helper()
	real, _ := fixture(t, "starting")
	status := []encodedFields{text(1, phase)}
	for c := range 3 {
		id := sha256.Sum256(fmt.Appendf(nil, "%d/%d/%d", i, c, start))
		status = append(status, message(8, text(1, fmt.Sprint("container-", c)), message(2, message(2)), text(8, fmt.Sprintf("containerd://%x", id))))
	}
	return eventBytes(t, api.EventType_MODIFIED, slices.Concat(real,
		message(1, text(1, fmt.Sprintf("training-6d4cf56db6-x%04d", i)), text(5, fmt.Sprintf("7c0ffee5-0000-4000-8000-%012d", i)), label("team", "a")),
		message(2, text(99, strings.Repeat("x", 2000))), message(3, status...)))
}

// benchClient is a client without a stream.
type benchClient struct{ c *Client }

func newBenchClient(t testing.TB) benchClient {
	t.Helper()
	c, err := New("socket", Options{Labels: []string{"app.kubernetes.io/*", "team"}})
	if err != nil {
		t.Fatal(err)
	}
	c.cache.startSync()
	return benchClient{c: c}
}

func (f *benchClient) apply(t testing.TB, b []byte) {
	if err := f.c.event.Read(b); err != nil {
		t.Fatal(err)
	}
	f.c.applyEvent()
}

func TestLookupAllocations(t *testing.T) {
	f := newBenchClient(t)
	for _, b := range nodeEvents(t, 500) {
		f.apply(t, b)
	}
	ps, _ := f.c.Snapshot()
	p, known := ps.find("7c0ffee5-0000-4000-8000-000000000007"), true
	if n := testing.AllocsPerRun(100, func() {
		_, byName := ps.ByName(p.Namespace, p.Name)
		_, _, byContainer := ps.ByContainer(p.Containers[3].ID)
		known = known && byName && byContainer
	}); n > 0 || !known {
		t.Errorf("lookups: got %v allocations, found %t, want 0, true", n, known)
	}
}

func BenchmarkSync(b *testing.B) {
	for _, pods := range []int{110, 500} {
		b.Run(fmt.Sprint(pods), func(b *testing.B) {
			events := nodeEvents(b, pods)
			f := newBenchClient(b)
			size := 0
			for _, e := range events {
				size += len(e)
			}
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for b.Loop() {
				f.c.cache.startSync()
				for _, e := range events {
					f.apply(b, e)
				}
			}
			if ps, _ := f.c.Snapshot(); ps.Len() != pods || !ps.Synced {
				b.Fatalf("%d pods, %v", ps.Len(), ps.Err)
			}
		})
	}
}

func BenchmarkChange(b *testing.B) {
	for _, what := range []struct {
		name   string
		events [2][]byte
	}{
		{"nothing", [2][]byte{podVariantEvent(b, 7, "Running", 0), podVariantEvent(b, 7, "Running", 0)}},
		{"phase", [2][]byte{podVariantEvent(b, 7, "Running", 0), podVariantEvent(b, 7, "Unknown", 0)}},
		{"containers", [2][]byte{podVariantEvent(b, 7, "Running", 0), podVariantEvent(b, 7, "Running", 1)}},
	} {
		b.Run(what.name, func(b *testing.B) {
			f := newBenchClient(b)
			for _, e := range nodeEvents(b, 500) {
				f.apply(b, e)
			}
			i := 0
			b.ReportAllocs()
			for b.Loop() {
				i++
				f.apply(b, what.events[i%2])
			}
		})
	}
}

func BenchmarkByContainer(b *testing.B) {
	f := newBenchClient(b)
	for _, e := range nodeEvents(b, 500) {
		f.apply(b, e)
	}
	ps, _ := f.c.Snapshot()
	p := ps.find("7c0ffee5-0000-4000-8000-000000000321")
	id := p.Containers[3].ID
	b.ReportAllocs()
	for b.Loop() {
		if _, _, ok := ps.ByContainer(id); !ok {
			b.Fatal("container not found")
		}
	}
}
