package exporter

import (
	"net/http"
	"slices"
	"sync"
	"time"
)

// maxSending is how many bytes of bodies may be in memory for their readers. Sixty compressed scrapes of the largest node
// are fewer.
const maxSending = 8 << 20

// body is the encoded answer to all scrapes of one collection that ask for the same representation.
type body struct {
	data    []byte
	readers map[*http.ResponseController]bool // guarded by sender.mu
}

// sender sends bodies to clients that may read slowly. Beyond maxSending it closes the connections of those that read the
// oldest bodies, so that the newest body can always be sent: a client that reads at all has its scrape long before.
type sender struct {
	mu sync.Mutex
	// All below are guarded by mu.
	bodies []*body // with readers, the oldest first
	bytes  int     // of them
}

// send writes the body, or as much of it as the client takes in time.
func (s *sender) send(w http.ResponseWriter, b *body) {
	reader := http.NewResponseController(w)
	s.begin(b, reader)
	defer s.end(b, reader)
	w.Write(b.data) //nolint:errcheck // the client has gone
}

func (s *sender) begin(b *body, reader *http.ResponseController) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.Contains(s.bodies, b) {
		b.readers = map[*http.ResponseController]bool{}
		s.bodies, s.bytes = append(s.bodies, b), s.bytes+len(b.data)
	}
	b.readers[reader] = true
	for s.bytes > maxSending && len(s.bodies) > 1 {
		oldest := s.bodies[0]
		if oldest == b {
			oldest = s.bodies[1]
		}
		for reader := range oldest.readers {
			reader.SetWriteDeadline(time.Unix(1, 0)) //nolint:errcheck // a connection without deadlines is a test's
		}
		s.remove(oldest)
	}
}

func (s *sender) end(b *body, reader *http.ResponseController) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if delete(b.readers, reader); len(b.readers) == 0 {
		s.remove(b)
	}
}

// remove forgets a body and its readers. The caller holds mu.
func (s *sender) remove(b *body) {
	if i := slices.Index(s.bodies, b); i >= 0 {
		s.bodies, s.bytes = slices.Delete(s.bodies, i, i+1), s.bytes-len(b.data)
	}
	b.readers = nil
}
