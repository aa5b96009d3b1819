package app

import (
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/test/bubble"
)

// fakeAuthenticator replaces exporter-toolkit and counts the passwords that would be compared with a hash.
type fakeAuthenticator struct {
	t           *testing.T
	comparisons int
	limiter     *passwordLimiter
	http.Handler
}

func newFakeAuthenticator(t *testing.T) *fakeAuthenticator {
	c := &fakeAuthenticator{t: t, limiter: newPasswordLimiter(slog.New(slog.DiscardHandler))}
	right := c.limiter.recordAccepted(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	c.Handler = c.limiter.limitGuesses(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c.comparisons++
		if name, secret, _ := r.BasicAuth(); name != testUser || secret != testPassword {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		right.ServeHTTP(w, r)
	}))
	return c
}

// status returns the response status for a user's password from an address.
func (c *fakeAuthenticator) status(from, user, password string) int {
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

func (c *fakeAuthenticator) wantStatus(name, from, user, password string, want int) {
	c.t.Helper()
	if got := c.status(from, user, password); got != want {
		c.t.Errorf("%s: got status %d, want %d", name, got, want)
	}
}

// TestGuessesOfAClient checks the limit of compared passwords per client, over all users. Other clients, and passwords accepted before, are
// admitted from any address.
func TestGuessesOfAClient(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := newFakeAuthenticator(t)
		guess := func(n int) {
			for i := range n {
				c.status("10.0.0.1", []string{testUser, "root"}[i%2], fmt.Sprint(time.Now(), i))
			}
		}
		guess(1000)
		if c.comparisons != clientGuessBurst {
			t.Errorf("got %d passwords compared at once, want %d", c.comparisons, clientGuessBurst)
		}
		c.wantStatus("a correct but unknown password, from the address of the guesses", "10.0.0.1", testUser, testPassword, http.StatusTooManyRequests)
		c.wantStatus("the same from another address", "10.0.0.2", testUser, testPassword, http.StatusOK)
		c.wantStatus("the same, now known", "10.0.0.1", testUser, testPassword, http.StatusOK)
		before := c.comparisons
		for range 60 {
			time.Sleep(clientGuessInterval)
			guess(100)
			c.wantStatus("a known password", "10.0.0.1", testUser, testPassword, http.StatusOK)
		}
		if got := c.comparisons - before; got != 2*60 { // one guess and the known password each time
			t.Errorf("got %d passwords compared in five minutes, want 120", got)
		}
	})
}

// TestKnownPasswords checks that the newest correct passwords are known, for any hash.
func TestKnownPasswords(t *testing.T) {
	c := newFakeAuthenticator(t)
	request := func(n int) *http.Request {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", http.NoBody)
		r.SetBasicAuth(testUser, fmt.Sprint(n))
		return r
	}
	accept := c.limiter.recordAccepted(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	for n := range 2 * maxKnownPasswords {
		for range 3 {
			accept.ServeHTTP(httptest.NewRecorder(), request(n))
		}
	}
	for n := range 2 * maxKnownPasswords {
		if got, want := c.limiter.isAccepted(c.limiter.credentials(request(n))), n >= maxKnownPasswords; got != want {
			t.Errorf("password %d is known: got %v, want %v", n, got, want)
		}
	}
}

// TestGuessesOfManyClients checks that the total of comparisons is limited.
func TestGuessesOfManyClients(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := newFakeAuthenticator(t)
		c.wantStatus("a correct password", "10.0.0.1", testUser, testPassword, http.StatusOK)
		c.comparisons = 0
		for i := range 1000 {
			c.status(fmt.Sprintf("10.1.%d.%d", i/256, i%256), testUser, "wrong")
		}
		if c.comparisons != totalGuessBurst-1 {
			t.Errorf("got %d passwords compared at once, want %d", c.comparisons, totalGuessBurst-1)
		}
		c.wantStatus("a known password", "10.0.0.3", testUser, testPassword, http.StatusOK)
		time.Sleep(totalGuessInterval)
		c.wantStatus("a later guess", "10.0.0.4", testUser, "wrong", http.StatusUnauthorized)
		c.wantStatus("another guess", "10.0.0.5", testUser, "wrong", http.StatusTooManyRequests)
	})
}

// TestGuessesOfOthers checks that the guesses of other clients neither reduce nor raise a client's limit.
func TestGuessesOfOthers(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := newFakeAuthenticator(t)
		others := func() {
			for i := range 2000 {
				c.status(fmt.Sprintf("10.1.%d.%d", i/256, i%256), testUser, "wrong")
			}
		}
		countCompared := func(from string) int {
			before := c.comparisons
			for range 100 {
				c.status(from, testUser, "wrong")
			}
			return c.comparisons - before
		}
		countCompared("10.0.0.1")
		others()
		if n := countCompared("10.0.0.2"); n != 0 {
			t.Errorf("got %d passwords compared above the total limit, want none", n)
		}
		time.Sleep(totalGuessBurst * totalGuessInterval)
		if n, want := countCompared("10.0.0.1"), int(totalGuessBurst*totalGuessInterval/clientGuessInterval); n != want {
			t.Errorf("client with earlier guesses: got %d passwords compared, want %d", n, want)
		}
		if n := countCompared("10.0.0.2"); n != clientGuessBurst {
			t.Errorf("client whose guesses were rejected by the total limit: got %d compared, want %d", n, clientGuessBurst)
		}
	})
}

// TestPasswordGuesses checks the same with exporter-toolkit. Requests without a password are not limited.
func TestPasswordGuesses(t *testing.T) {
	s := newWebSecrets(t, tlsConfig+usersConfig)
	w := newTestApp(t, 1, "--web.config.file="+s.path("web.yaml"))
	w.waitRegistered()
	url := "https" + strings.TrimPrefix(w.url, "http") + "/healthz"
	here, elsewhere := newHTTPClient(t), newHTTPClient(t)
	elsewhere.Transport.(*http.Transport).DialContext = (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}).DialContext
	want := func(name string, c *http.Client, password string, status int) {
		t.Helper()
		if got, err := fetch(t, c, url, password); err != nil || got.status != status {
			t.Errorf("%s: got %d, want %d, %v", name, got.status, status, err)
		}
	}
	rejected := false
	for i := 0; i < 10*clientGuessBurst && !rejected; i++ {
		got, err := fetch(t, here, url, fmt.Sprint("guess ", i))
		if err != nil {
			t.Fatal(err)
		}
		rejected = got.status == http.StatusTooManyRequests
	}
	if !rejected {
		t.Fatalf("got all of %d guesses compared", 10*clientGuessBurst)
	}
	want("no password", here, "", http.StatusUnauthorized)
	want("the correct password, from another address", elsewhere, testPassword, http.StatusOK)
	want("the correct password, now known", here, testPassword, http.StatusOK)
}
