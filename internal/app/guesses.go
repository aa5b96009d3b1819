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
	clientGuesses       = 10 // at once
	clientGuessInterval = 5 * time.Second
	allGuesses          = 20 // at once
	allGuessInterval    = time.Second

	// maxGuessingClients are more than can lack a guess: a client that spends all has them back after 50 seconds, in which all
	// clients together spend 70.
	maxGuessingClients = 100
	maxKnownPasswords  = 100
)

// guesses bounds how often passwords are compared with hashes. It stands on both sides of exporter-toolkit's handler, which
// compares them: before it, and behind it, where only requests with a right password arrive. Unknown users are treated like
// wrong passwords, so that neither the answer nor its time shows who exists.
type guesses struct {
	log  *slog.Logger
	seed maphash.Seed

	mu sync.Mutex
	// All below are guarded by mu.
	known   map[uint64]bool // hashes of credentials that were right: their requests always pass
	clients map[netip.Addr]*rate.Limiter
	all     *rate.Limiter
	logged  rate.Sometimes
}

func newGuesses(log *slog.Logger) *guesses {
	return &guesses{
		log: log, seed: maphash.MakeSeed(),
		known: map[uint64]bool{}, clients: map[netip.Addr]*rate.Limiter{},
		all: rate.NewLimiter(rate.Every(allGuessInterval), allGuesses), logged: rate.Sometimes{Interval: time.Minute},
	}
}

// credentials is the key of a request's context for the hash of its user and password.
type credentials struct{}

// before rejects requests with a new password while there were too many.
func (g *guesses) before(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, _, ok := r.BasicAuth(); ok {
			hash := maphash.String(g.seed, r.Header.Get("Authorization"))
			if !g.allow(hash, clientOf(r.RemoteAddr), time.Now()) {
				w.Header().Set("Retry-After", strconv.Itoa(int(clientGuessInterval.Seconds())))
				http.Error(w, "too many wrong passwords", http.StatusTooManyRequests)
				return
			}
			r = r.WithContext(context.WithValue(r.Context(), credentials{}, hash))
		}
		next.ServeHTTP(w, r)
	})
}

// behind remembers the passwords of the requests that arrive.
func (g *guesses) behind(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if hash, ok := r.Context().Value(credentials{}).(uint64); ok {
			g.learn(hash)
		}
		next.ServeHTTP(w, r)
	})
}

// allow reports whether a password may be compared. A guess is taken from a client only if all clients have one left, so that
// the guesses of others cost it none.
func (g *guesses) allow(hash uint64, from netip.Addr, now time.Time) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.known[hash] {
		return true
	}
	client := g.clients[from]
	if client != nil && client.TokensAt(now) < 1 || !g.all.AllowN(now, 1) {
		g.logged.Do(func() { g.log.Warn("password attempts rejected", "client", from) })
		return false
	}
	if client == nil {
		client = g.add(from, now)
	}
	client.AllowN(now, 1)
	return true
}

// add counts a client, and forgets those that have as many guesses as a new one. The caller holds mu.
func (g *guesses) add(from netip.Addr, now time.Time) *rate.Limiter {
	if len(g.clients) >= maxGuessingClients {
		maps.DeleteFunc(g.clients, func(_ netip.Addr, client *rate.Limiter) bool { return client.TokensAt(now) >= clientGuesses })
	}
	client := rate.NewLimiter(rate.Every(clientGuessInterval), clientGuesses)
	g.clients[from] = client
	return client
}

// learn keeps the hash of credentials that were right. It is not forgotten when the password changes: the toolkit keeps its
// comparisons, so old credentials cost one more.
func (g *guesses) learn(hash uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.known) >= maxKnownPasswords && !g.known[hash] {
		for other := range g.known {
			delete(g.known, other)
			break
		}
	}
	g.known[hash] = true
}
