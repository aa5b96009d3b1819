package app

import (
	"context"
	"hash/maphash"
	"log/slog"
	"maps"
	"net/http"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// The guesses bound how often passwords that were never right are compared with a hash: for one client, and for all together. A
// comparison takes some 70 ms of a CPU, so guessing costs at most 7 % of one.
const (
	clientGuessBurst    = 10 // at once
	clientGuessInterval = 5 * time.Second
	totalGuessBurst     = 20 // at once
	totalGuessInterval  = time.Second

	// maxGuessingClients are more than can lack a guess: a client that spends all has them back after 50 seconds, in which all
	// clients together spend 70.
	maxGuessingClients = 100
	maxKnownPasswords  = 100
)

// passwordLimiter bounds how often passwords are compared with hashes. It stands on both sides of exporter-toolkit's handler, which
// compares them: before it, and behind it, where only requests with a right password arrive. Unknown users are treated like
// wrong passwords, so that neither the answer nor its time shows who exists.
type passwordLimiter struct {
	log  *slog.Logger
	seed maphash.Seed

	mu sync.Mutex
	// All below are guarded by mu.
	accepted   map[uint64]bool // hashes of credentials that were right: their requests always pass
	clients    map[netip.Addr]*rate.Limiter
	total      *rate.Limiter
	logLimiter rate.Sometimes
}

func newPasswordLimiter(log *slog.Logger) *passwordLimiter {
	return &passwordLimiter{
		log: log, seed: maphash.MakeSeed(),
		accepted: map[uint64]bool{}, clients: map[netip.Addr]*rate.Limiter{},
		total: rate.NewLimiter(rate.Every(totalGuessInterval), totalGuessBurst), logLimiter: rate.Sometimes{Interval: time.Minute},
	}
}

// credentialsKey is the key of a request's context for the hash of its user and password.
type credentialsKey struct{}

// limitGuesses rejects requests with a new password while there were too many.
func (l *passwordLimiter) limitGuesses(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, _, ok := r.BasicAuth(); ok {
			hash := maphash.String(l.seed, r.Header.Get("Authorization"))
			if !l.allow(hash, clientAddr(r.RemoteAddr), time.Now()) {
				w.Header().Set("Retry-After", strconv.Itoa(int(clientGuessInterval.Seconds())))
				http.Error(w, "too many wrong passwords", http.StatusTooManyRequests)
				return
			}
			r = r.WithContext(context.WithValue(r.Context(), credentialsKey{}, hash))
		}
		next.ServeHTTP(w, r)
	})
}

// recordAccepted remembers the passwords of the requests that arrive.
func (l *passwordLimiter) recordAccepted(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if hash, ok := r.Context().Value(credentialsKey{}).(uint64); ok {
			l.accept(hash)
		}
		next.ServeHTTP(w, r)
	})
}

// allow reports whether a password may be compared. A guess is taken from a client only if all clients have one left, so that
// the guesses of others cost it none.
func (l *passwordLimiter) allow(hash uint64, from netip.Addr, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.accepted[hash] {
		return true
	}
	client := l.clients[from]
	if client != nil && client.TokensAt(now) < 1 || !l.total.AllowN(now, 1) {
		l.logLimiter.Do(func() { l.log.Warn("password attempts rejected", "client", from) })
		return false
	}
	if client == nil {
		client = l.addClient(from, now)
	}
	client.AllowN(now, 1)
	return true
}

// addClient counts a client, and forgets those that have as many guesses as a new one. The caller holds mu.
func (l *passwordLimiter) addClient(from netip.Addr, now time.Time) *rate.Limiter {
	if len(l.clients) >= maxGuessingClients {
		maps.DeleteFunc(l.clients, func(_ netip.Addr, client *rate.Limiter) bool { return client.TokensAt(now) >= clientGuessBurst })
	}
	client := rate.NewLimiter(rate.Every(clientGuessInterval), clientGuessBurst)
	l.clients[from] = client
	return client
}

// accept keeps the hash of credentials that were right. It is not forgotten when the password changes: the toolkit keeps its
// comparisons, so old credentials cost one more.
func (l *passwordLimiter) accept(hash uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.accepted) >= maxKnownPasswords && !l.accepted[hash] {
		for other := range l.accepted {
			delete(l.accepted, other)
			break
		}
	}
	l.accepted[hash] = true
}
