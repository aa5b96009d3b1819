package exporter

import (
	"cmp"
	"net/http"
	"slices"
	"sync"
	"time"
)

// maxSendingBytes bounds the bodies in memory. Sixty compressed scrapes of the largest node are smaller.
const maxSendingBytes = 8 << 20

// scrapeBody is the response to all scrapes of one collection in the same representation.
type scrapeBody struct {
	data       []byte
	compressed bool
	collection time.Time                         // its begin; zero for a body of podgauge's own metrics only
	readers    map[*http.ResponseController]bool // guarded by sender.mu
}

// sender sends bodies to slow clients. Above maxSendingBytes it closes the connections of readers of the oldest collection's bodies,
// the largest body first. It always keeps the compressed bodies of the newest collection, and the latest uncompressed one: a
// client that reads at all finishes long before.
type sender struct {
	mu sync.Mutex
	// All below are guarded by mu.
	bodies     []*scrapeBody // with readers
	totalBytes int           // of them
}

// send writes the body until the client is disconnected or cut off.
func (s *sender) send(w http.ResponseWriter, b *scrapeBody) {
	reader := http.NewResponseController(w)
	s.addReader(b, reader)
	defer s.removeReader(b, reader)
	w.Write(b.data) //nolint:errcheck // the client disconnected
}

func (s *sender) addReader(b *scrapeBody, reader *http.ResponseController) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.Contains(s.bodies, b) {
		b.readers = map[*http.ResponseController]bool{}
		s.bodies, s.totalBytes = append(s.bodies, b), s.totalBytes+len(b.data)
	}
	b.readers[reader] = true
	for s.totalBytes > maxSendingBytes {
		evicted := s.findEvictable(b)
		if evicted == nil {
			return
		}
		for reader := range evicted.readers {
			reader.SetWriteDeadline(time.Unix(1, 0)) //nolint:errcheck // only connections of tests lack deadlines
		}
		s.remove(evicted)
		if evicted == b { // of an older collection
			return
		}
	}
}

// findEvictable returns the body to drop for latest, or nil. The caller holds mu.
func (s *sender) findEvictable(latest *scrapeBody) *scrapeBody {
	var newest time.Time
	for _, b := range s.bodies {
		if b.collection.After(newest) {
			newest = b.collection
		}
	}
	var surplus *scrapeBody
	for _, b := range s.bodies {
		if b.collection.Equal(newest) && (b == latest || b.compressed) {
			continue
		}
		if surplus == nil || cmp.Or(b.collection.Compare(surplus.collection), cmp.Compare(len(surplus.data), len(b.data))) < 0 {
			surplus = b
		}
	}
	return surplus
}

func (s *sender) removeReader(b *scrapeBody, reader *http.ResponseController) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if delete(b.readers, reader); len(b.readers) == 0 {
		s.remove(b)
	}
}

// remove drops a body and its readers. The caller holds mu.
func (s *sender) remove(b *scrapeBody) {
	if i := slices.Index(s.bodies, b); i >= 0 {
		s.bodies, s.totalBytes = slices.Delete(s.bodies, i, i+1), s.totalBytes-len(b.data)
	}
	b.readers = nil
}
