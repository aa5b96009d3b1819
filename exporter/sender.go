package exporter

import (
	"cmp"
	"net/http"
	"slices"
	"sync"
	"time"
)

// maxSendingBytes is how many bytes of bodies may be in memory for their readers. Sixty compressed scrapes of the largest node
// are fewer.
const maxSendingBytes = 8 << 20

// scrapeBody is the encoded answer to all scrapes of one collection that ask for the same representation.
type scrapeBody struct {
	data       []byte
	compressed bool
	// collection is when the collection began; zero for a body of podgauge's own metrics alone.
	collection time.Time
	readers    map[*http.ResponseController]bool // guarded by sender.mu
}

// sender sends bodies to clients that may read slowly. Beyond maxSendingBytes it closes the connections that read the oldest
// collection's bodies, the largest first. It always sends the compressed bodies of the newest collection, and the latest
// uncompressed one: a client that reads at all has its scrape long before.
type sender struct {
	mu sync.Mutex
	// All below are guarded by mu.
	bodies     []*scrapeBody // with readers
	totalBytes int           // of them
}

// send writes the body, or as much of it as the client takes in time.
func (s *sender) send(w http.ResponseWriter, b *scrapeBody) {
	reader := http.NewResponseController(w)
	s.addReader(b, reader)
	defer s.removeReader(b, reader)
	w.Write(b.data) //nolint:errcheck // the client has gone
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
			reader.SetWriteDeadline(time.Unix(1, 0)) //nolint:errcheck // a connection without deadlines is a test's
		}
		s.remove(evicted)
		if evicted == b { // of an older collection: the others are as before
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

// remove forgets a body and its readers. The caller holds mu.
func (s *sender) remove(b *scrapeBody) {
	if i := slices.Index(s.bodies, b); i >= 0 {
		s.bodies, s.totalBytes = slices.Delete(s.bodies, i, i+1), s.totalBytes-len(b.data)
	}
	b.readers = nil
}
