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

	"github.com/podgauge/podgauge/internal/loglimit"
	"golang.org/x/time/rate"
)

// Limits of password guesses, per client and in total. A comparison with a hash takes 70 ms of a CPU, so guesses cost at most 7 % of
// a CPU.
const (
	clientGuessBurst    = 10
	clientGuessInterval = 5 * time.Second
	totalGuessBurst     = 20
	totalGuessInterval  = time.Second

	// maxGuessingClients exceeds the number of clients without a guess: a client recovers all guesses in 50 s, and all clients
	// together have 70 guesses in that time.
	maxGuessingClients = 100
	maxKnownPasswords  = 100

	guessLogInterval = time.Minute
)

// passwordLimiter limits how often exporter-toolkit's handler compares passwords with hashes. limitGuesses runs before the toolkit's
// handler; recordAccepted runs after, for requests with the right password only. Unknown users count as wrong passwords: neither
// response nor response time reveals the users.
type passwordLimiter struct {
	log  *slog.Logger
	seed maphash.Seed

	mu sync.Mutex
	// All below are guarded by mu.
	accepted   map[uint64]bool // hashes of right credentials: no limit
	clients    map[netip.Addr]*rate.Limiter
	total      *rate.Limiter
	logLimiter *loglimit.Limiter[struct{}]
}

func newPasswordLimiter(log *slog.Logger) *passwordLimiter {
	return &passwordLimiter{
		log: log, seed: maphash.MakeSeed(), accepted: map[uint64]bool{}, clients: map[netip.Addr]*rate.Limiter{},
		total: rate.NewLimiter(rate.Every(totalGuessInterval), totalGuessBurst), logLimiter: loglimit.New[struct{}](guessLogInterval),
	}
}

// credentialsKey is the context key of the hash of a request's user and password.
type credentialsKey struct{}

// limitGuesses rejects requests with an unknown password after too many guesses.
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

// recordAccepted stores the passwords of all requests.
func (l *passwordLimiter) recordAccepted(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if hash, ok := r.Context().Value(credentialsKey{}).(uint64); ok {
			l.accept(hash)
		}
		next.ServeHTTP(w, r)
	})
}

// allow reports whether a password may be compared. A client loses a guess only while the total is not used up, so the guesses of
// further clients cost the client nothing.
func (l *passwordLimiter) allow(hash uint64, from netip.Addr, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.accepted[hash] {
		return true
	}
	client := l.clients[from]
	if client != nil && client.TokensAt(now) < 1 || !l.total.AllowN(now, 1) {
		if l.logLimiter.Allow(struct{}{}, now) {
			l.log.Warn("password attempts rejected", "client", from)
		}
		return false
	}
	if client == nil {
		client = l.addClient(from, now)
	}
	client.AllowN(now, 1)
	return true
}

// addClient adds a client, and at the limit drops clients with all guesses. The caller holds mu.
func (l *passwordLimiter) addClient(from netip.Addr, now time.Time) *rate.Limiter {
	if len(l.clients) >= maxGuessingClients {
		maps.DeleteFunc(l.clients, func(_ netip.Addr, client *rate.Limiter) bool { return client.TokensAt(now) >= clientGuessBurst })
	}
	client := rate.NewLimiter(rate.Every(clientGuessInterval), clientGuessBurst)
	l.clients[from] = client
	return client
}

// accept stores the hash of right credentials. The hash stays after a change of the password: the toolkit caches comparisons, so old
// credentials cost a single comparison.
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
