package exporter

import (
	"errors"
	"net/http"
)

// maxConcurrentRequests is how many answers in JSON may be under way, and how many pages: who looks at the
// page while the driver hangs waits for a flight, and is not to be in the way of programs. One is made within
// milliseconds, and stays in memory until its reader has it, which may take a minute:
// the longest is a megabyte.
const maxConcurrentRequests = 8

// requestLimiter has room for the requests that may be answered at a time. Scrapes share their bodies, which
// sender bounds, and probes are answered in a word: neither needs one.
type requestLimiter chan struct{}

// limit turns away who comes when there is no room: who waited would take memory, too.
func (l requestLimiter) limit(next http.Handler, reject func(w http.ResponseWriter, status int, err error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case l <- struct{}{}:
			defer func() { <-l }()
			next.ServeHTTP(w, r)
		default:
			w.Header().Set("Retry-After", "1")
			reject(w, http.StatusServiceUnavailable, errBusy)
		}
	})
}

var errBusy = errors.New("too many requests at a time")

func writeError(w http.ResponseWriter, status int, err error) { http.Error(w, err.Error(), status) }

// setSecurityHeaders has browsers neither guess what an answer is, nor keep it, nor tell others where
// they have it from, nor do what an answer says. The page says for itself what it wants done.
func setSecurityHeaders(h http.Header) {
	h.Set("Content-Security-Policy", "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cache-Control", "no-store")
}
