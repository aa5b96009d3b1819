package exporter

import (
	"cmp"
	"maps"
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
	collection time.Time // the begin; zero for a body of podgauge's own metrics only
}

// sender sends bodies to slow clients. Above maxSendingBytes it closes the connections of readers of the oldest collection's bodies,
// the largest body first. It always keeps the compressed bodies of the newest collection, and the latest uncompressed one: a
// client that reads at all finishes long before.
type sender struct {
	mu      sync.Mutex
	readers map[*scrapeBody]map[*http.ResponseController]bool // guarded by mu; of the bodies in transfer
}

func newSender() sender { return sender{readers: map[*scrapeBody]map[*http.ResponseController]bool{}} }

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
	if s.readers[b] == nil {
		s.readers[b] = map[*http.ResponseController]bool{}
	}
	s.readers[b][reader] = true
	for s.readers[b] != nil && s.totalBytes() > maxSendingBytes {
		evicted := s.findEvictable(b)
		if evicted == nil {
			return
		}
		for reader := range s.readers[evicted] {
			reader.SetWriteDeadline(time.Unix(1, 0)) //nolint:errcheck // only connections of tests lack deadlines
		}
		delete(s.readers, evicted) // possibly b, of an older collection
	}
}

func (s *sender) totalBytes() (total int) {
	for b := range s.readers {
		total += len(b.data)
	}
	return total
}

// findEvictable returns the body to drop for latest, or nil. The caller holds mu.
func (s *sender) findEvictable(latest *scrapeBody) *scrapeBody {
	bodies := slices.SortedFunc(maps.Keys(s.readers), func(a, b *scrapeBody) int {
		return cmp.Or(a.collection.Compare(b.collection), cmp.Compare(len(b.data), len(a.data)))
	})
	newest := bodies[len(bodies)-1].collection
	i := slices.IndexFunc(bodies, func(b *scrapeBody) bool { return !b.collection.Equal(newest) || b != latest && !b.compressed })
	if i < 0 {
		return nil
	}
	return bodies[i]
}

func (s *sender) removeReader(b *scrapeBody, reader *http.ResponseController) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if delete(s.readers[b], reader); len(s.readers[b]) == 0 {
		delete(s.readers, b)
	}
}
