package app

import (
	"hash/maphash"
	"log/slog"
	"net/http"
	"net/netip"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
)

// Limits of password guesses, per client and in total. A comparison with a hash takes 70 ms of a CPU, so guesses cost at most 7 % of
// a CPU.
const (
	clientGuessBurst    = 10
	clientGuessInterval = 5 * time.Second
	totalGuessBurst     = 20
	totalGuessInterval  = time.Second

	// maxKnownPasswords is below the 100 comparisons cached by the toolkit.
	maxKnownPasswords = 64
	guessLogInterval  = time.Minute
)

// passwordLimiter limits how often exporter-toolkit's handler compares passwords with hashes. limitGuesses runs before the toolkit's
// handler; recordAccepted runs after, for requests with the right password only. Unknown users count as wrong passwords: neither
// response nor response time reveals the users. The memory is fixed: clients share slots by the last byte of their address.
type passwordLimiter struct {
	log         *slog.Logger
	logInterval rate.Sometimes
	seed        maphash.Seed
	accepted    [maxKnownPasswords]atomic.Uint64 // hashes of right credentials: no limit
	acceptances atomic.Uint64                    // the next replaces the oldest hash
	clients     [1 << 8]*rate.Limiter
	total       *rate.Limiter
}

func newPasswordLimiter(log *slog.Logger) *passwordLimiter {
	l := &passwordLimiter{
		log: log, logInterval: rate.Sometimes{Interval: guessLogInterval}, seed: maphash.MakeSeed(),
		total: rate.NewLimiter(rate.Every(totalGuessInterval), totalGuessBurst),
	}
	for i := range l.clients {
		l.clients[i] = rate.NewLimiter(rate.Every(clientGuessInterval), clientGuessBurst)
	}
	return l
}

// limitGuesses rejects requests with an unknown password after too many guesses.
func (l *passwordLimiter) limitGuesses(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, _, ok := r.BasicAuth(); ok && !l.allow(l.credentials(r), clientAddr(r.RemoteAddr), time.Now()) {
			w.Header().Set("Retry-After", strconv.Itoa(int(clientGuessInterval.Seconds())))
			http.Error(w, "too many wrong passwords", http.StatusTooManyRequests)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// recordAccepted stores the passwords of all requests. A password stays accepted after a change: the toolkit caches comparisons, so
// old credentials cost a single comparison.
func (l *passwordLimiter) recordAccepted(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if hash := l.credentials(r); !l.isAccepted(hash) {
			l.accepted[l.acceptances.Add(1)%maxKnownPasswords].Store(hash)
		}
		next.ServeHTTP(w, r)
	})
}

// credentials returns the hash of a request's user and password.
func (l *passwordLimiter) credentials(r *http.Request) uint64 {
	return maphash.String(l.seed, r.Header.Get("Authorization"))
}

func (l *passwordLimiter) isAccepted(hash uint64) bool {
	for i := range l.accepted {
		if l.accepted[i].Load() == hash {
			return true
		}
	}
	return false
}

// allow reports whether a password may be compared. A client loses a guess only while the total is not used up, so the guesses of
// further clients cost the client nothing.
func (l *passwordLimiter) allow(hash uint64, from netip.Addr, now time.Time) bool {
	if l.isAccepted(hash) {
		return true
	}
	client := l.clients[from.As16()[15]]
	if client.TokensAt(now) >= 1 && l.total.AllowN(now, 1) && client.AllowN(now, 1) {
		return true
	}
	l.logInterval.Do(func() { l.log.Warn("password attempts rejected", "client", from) })
	return false
}
