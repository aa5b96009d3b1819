package app

import (
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// compared stands for exporter-toolkit: it counts the passwords that it would compare with a hash.
type compared struct {
	t     *testing.T
	count int
	guard *guesses
	http.Handler
}

func newCompared(t *testing.T) *compared {
	c := &compared{t: t, guard: newGuesses(slog.New(slog.DiscardHandler))}
	right := c.guard.behind(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	c.Handler = c.guard.before(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c.count++
		if name, secret, _ := r.BasicAuth(); name != user || secret != password {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		right.ServeHTTP(w, r)
	}))
	return c
}

// status is the answer to a user's password from an address.
func (c *compared) status(from, user, password string) int {
	r := httptest.NewRequestWithContext(c.t.Context(), http.MethodGet, "/metrics", http.NoBody)
	r.RemoteAddr = from + ":1234"
	r.SetBasicAuth(user, password)
	w := httptest.NewRecorder()
	c.ServeHTTP(w, r)
	if w.Code == http.StatusTooManyRequests && w.Header().Get("Retry-After") == "" {
		c.t.Error("a rejection lacks Retry-After")
	}
	return w.Code
}

func (c *compared) want(what, from, user, password string, want int) {
	c.t.Helper()
	if got := c.status(from, user, password); got != want {
		c.t.Errorf("%s: status %d, want %d", what, got, want)
	}
}

// TestGuessesOfAClient: one client has so many passwords compared, of known and unknown users together. Others get in, and
// so does whoever's password was right before, from any address.
func TestGuessesOfAClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCompared(t)
		guess := func(n int) {
			for i := range n {
				c.status("10.0.0.1", []string{user, "root"}[i%2], fmt.Sprint(time.Now(), i))
			}
		}
		guess(1000)
		if c.count != clientGuesses {
			t.Errorf("%d passwords were compared at once, want %d", c.count, clientGuesses)
		}
		c.want("a password that was not right before, from where guesses come", "10.0.0.1", user, password, http.StatusTooManyRequests)
		c.want("the same from elsewhere", "10.0.0.2", user, password, http.StatusOK)
		c.want("the same, known by now", "10.0.0.1", user, password, http.StatusOK)
		before := c.count
		for range 60 {
			time.Sleep(clientGuessInterval)
			guess(100)
			c.want("a known password", "10.0.0.1", user, password, http.StatusOK)
		}
		if got := c.count - before; got != 2*60 { // one guess each time, and the known one
			t.Errorf("%d passwords were compared in five minutes, want 120", got)
		}
	})
}

// TestGuessesOfManyClients: together they have no more compared than there may be, and take no more memory.
func TestGuessesOfManyClients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCompared(t)
		c.want("a right password", "10.0.0.1", user, password, http.StatusOK)
		c.count = 0
		for i := range 10 * maxGuessingClients {
			c.status(fmt.Sprintf("10.1.%d.%d", i/256, i%256), user, "wrong")
		}
		if c.count != allGuesses-1 {
			t.Errorf("%d passwords were compared at once, want %d", c.count, allGuesses-1)
		}
		if n := len(c.guard.clients); n > maxGuessingClients {
			t.Errorf("%d clients are remembered, want %d at most", n, maxGuessingClients)
		}
		c.want("a known password", "10.0.0.3", user, password, http.StatusOK)
		time.Sleep(allGuessInterval)
		c.want("a guess later", "10.0.0.4", user, "wrong", http.StatusUnauthorized)
		c.want("one more", "10.0.0.5", user, "wrong", http.StatusTooManyRequests)
	})
}

// TestClientsThatGuessedLongAgo: the guard forgets clients whose guesses are refilled, so that their number stays bounded.
func TestClientsThatGuessedLongAgo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGuesses(slog.New(slog.DiscardHandler))
		for i := range 20 * maxGuessingClients {
			g.allow(uint64(i), clientOf(fmt.Sprintf("10.1.%d.%d:80", i/256, i%256)), time.Now())
			if n := len(g.clients); n > maxGuessingClients {
				t.Fatalf("%d clients are counted, want %d at most", n, maxGuessingClients)
			}
			time.Sleep(allGuessInterval / 2)
		}
	})
}

// TestGuessesOfOthers: what other clients guess takes no guess from a client, and gives it none.
func TestGuessesOfOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCompared(t)
		others := func() {
			for i := range 2000 {
				c.status(fmt.Sprintf("10.1.%d.%d", i/256, i%256), user, "wrong")
			}
		}
		compared := func(from string) int {
			before := c.count
			for range 100 {
				c.status(from, user, "wrong")
			}
			return c.count - before
		}
		compared("10.0.0.1")
		others()
		if n := compared("10.0.0.2"); n != 0 {
			t.Errorf("%d passwords are compared beyond those of all, want none", n)
		}
		time.Sleep(allGuesses * allGuessInterval)
		if n, want := compared("10.0.0.1"), int(allGuesses*allGuessInterval/clientGuessInterval); n != want {
			t.Errorf("a client that has guessed has %d more passwords compared, want %d", n, want)
		}
		if n := compared("10.0.0.2"); n != clientGuesses {
			t.Errorf("a client whose guesses were rejected for those of others has %d compared, want %d", n, clientGuesses)
		}
	})
}

// TestKnownPasswords: they are bounded, where a web config without users lets anyone in.
func TestKnownPasswords(t *testing.T) {
	g := newGuesses(slog.New(slog.DiscardHandler))
	for i := range uint64(10 * maxKnownPasswords) {
		g.learn(i)
		if len(g.known) > maxKnownPasswords || !g.known[i] {
			t.Fatalf("%d are known after %d", len(g.known), i+1)
		}
	}
}

// TestPasswordGuesses: the same with the toolkit. What carries no password is answered as ever.
func TestPasswordGuesses(t *testing.T) {
	s := newSecrets(t, usesTLS+users)
	w := newWorld(t, 1, "--web.config.file="+s.path("web.yaml"))
	w.untilRegistered()
	url := "https" + strings.TrimPrefix(w.url, "http") + "/healthz"
	here, elsewhere := client(t), client(t)
	elsewhere.Transport.(*http.Transport).DialContext = (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}).DialContext
	want := func(what string, c *http.Client, password string, status int) {
		t.Helper()
		if got, err := fetch(t, c, url, password); err != nil || got.status != status {
			t.Errorf("%s: %d, want %d, %v", what, got.status, status, err)
		}
	}
	rejected := false
	for i := 0; i < 10*clientGuesses && !rejected; i++ {
		got, err := fetch(t, here, url, fmt.Sprint("guess ", i))
		if err != nil {
			t.Fatal(err)
		}
		rejected = got.status == http.StatusTooManyRequests
	}
	if !rejected {
		t.Fatalf("%d guesses were all compared", 10*clientGuesses)
	}
	want("no password", here, "", http.StatusUnauthorized)
	want("the right password, elsewhere", elsewhere, password, http.StatusOK)
	want("the right password, known by now", here, password, http.StatusOK)
}
