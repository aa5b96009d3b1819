package app

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// TestBoundedListener checks that a client with many connections is limited, and that other clients are served, with and without TLS.
func TestBoundedListener(t *testing.T) {
	for name, config := range map[string]string{"plain": "", "passwords": usersConfig, "TLS": tlsConfig + usersConfig} {
		t.Run(name, func(t *testing.T) {
			s := newWebSecrets(t, config)
			w := newTestApp(t, 1, "--web.config.file="+s.path("web.yaml"), "--web.probe-address=127.0.0.1:0")
			w.waitRegistered()
			secure := strings.HasPrefix(config, tlsConfig)
			url := w.url
			if secure {
				url = "https" + strings.TrimPrefix(w.url, "http")
			}
			httpClient := newHTTPClient(t)
			for _, at := range []string{w.url, w.probesURL} {
				var ended atomic.Int32
				for range 3 * maxConnections {
					openIdle(t, at, secure && at == w.url, &ended)
				}
				waitUntil(t, "the oldest connections are closed", func() bool { return ended.Load() >= 2*maxConnections })
				if got, err := fetch(t, httpClient, url+"/healthz", testPassword); err != nil || got.status != http.StatusOK {
					t.Errorf("request beside many connections: got %d, %v", got.status, err)
				}
				if got, err := fetch(t, httpClient, w.probesURL+"/healthz", ""); err != nil || got.status != http.StatusOK {
					t.Errorf("probe beside many connections: got %d, %v", got.status, err)
				}
				if got := ended.Load(); got > 2*maxConnections+2 {
					t.Errorf("got %d of %d connections closed", got, 3*maxConnections)
				}
			}
		})
	}
}

// openIdle sends one request on a new connection, and counts the connection when it is closed.
func openIdle(t *testing.T, url string, secure bool, ended *atomic.Int32) {
	t.Helper()
	conn := dialFrom(t, "127.0.0.1", url)
	if secure {
		conn = tls.Client(conn, &tls.Config{InsecureSkipVerify: true})
	}
	requestOnce(t, conn)
	countClosed(conn, ended)
}

// dialFrom opens a connection from an address.
func dialFrom(t *testing.T, from, url string) net.Conn {
	t.Helper()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	conn, err := dialer.DialContext(t.Context(), "tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// requestOnce sends a request, so that the connection is idle and has two minutes until the next request.
func requestOnce(t *testing.T, conn net.Conn) {
	t.Helper()
	if _, err := conn.Write([]byte("GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		t.Fatal(err)
	}
}

// countClosed counts a connection when it is closed.
func countClosed(conn net.Conn, ended *atomic.Int32) {
	go func() { // ends with the connection
		<-awaitClose(conn)
		ended.Add(1)
	}()
}

// TestBoundedListenerSparesOtherClients checks that a client with too many connections loses its own oldest, and other clients lose none.
func TestBoundedListenerSparesOtherClients(t *testing.T) {
	w := newTestApp(t, 1, "--web.probe-address=127.0.0.1:0")
	for _, at := range []string{w.url, w.probesURL} {
		kept := dialFrom(t, "127.0.0.1", at)
		requestOnce(t, kept)
		var ended atomic.Int32
		for range 3 * maxConnections {
			conn := dialFrom(t, "127.0.0.2", at)
			requestOnce(t, conn)
			countClosed(conn, &ended)
		}
		waitUntil(t, "the oldest connections are closed", func() bool { return ended.Load() > 2*maxConnections })
		if _, err := kept.Write([]byte("GET /healthz HTTP/1.0\r\n\r\n")); err != nil {
			t.Fatal(err)
		}
		if response, err := io.ReadAll(kept); err != nil || !strings.HasSuffix(string(response), "ok\n") {
			t.Errorf("oldest connection, of another client: got %q, %v", response, err)
		}
	}
}

// TestBoundedListenerCountsUnreleased checks that closed connections count until the server has released them. The new connections of a
// client with too many are closed, and other clients are served at once.
func TestBoundedListenerCountsUnreleased(t *testing.T) {
	l, err := listenTCP("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	arrived, unblock := make(chan struct{}), make(chan struct{})
	server := newHTTPServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/healthz" {
			return
		}
		select {
		case arrived <- struct{}{}:
			<-unblock
		case <-unblock:
		}
	}), slog.New(slog.DiscardHandler))
	listener := newBoundedListener(server, l)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- serveHTTP(ctx, server, "this", func() error { return server.Serve(listener) }) }()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	connect := func(from string) <-chan struct{} {
		dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
		conn, err := dialer.DialContext(t.Context(), "tcp", l.Addr().String())
		if errors.Is(err, syscall.ECONNRESET) { // closed before connect has returned
			ended := make(chan struct{})
			close(ended)
			return ended
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		conn.Write([]byte("GET / HTTP/1.0\r\n\r\n")) //nolint:errcheck // it may be closed already
		return awaitClose(conn)
	}
	probe := func() {
		conn := dialFrom(t, "127.0.0.1", l.Addr().String())
		if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil { // instead of the timeout of all tests
			t.Fatal(err)
		}
		requestOnce(t, conn)
		conn.Close()
	}
	release := sync.OnceFunc(func() { close(unblock) })
	defer release()
	for range maxActive * clientShare / (clientShare + 1) {
		connect("127.0.0.2")
		<-arrived
	}
	var surplus []<-chan struct{}
	for range maxActive {
		surplus = append(surplus, connect("127.0.0.2"))
	}
	probe()
	for i := range 20 { // the more clients, the fewer connections of each
		connect(fmt.Sprint("127.0.0.", 10+i))
		<-arrived
	}
	surplus = append(surplus, connect("127.0.0.2"))
	probe()
	for _, ended := range surplus {
		<-ended
	}
	release()
	waitUntil(t, "the server has released all connections", func() bool {
		listener.mu.Lock()
		defer listener.mu.Unlock()
		return len(listener.active) == 0
	})
	requestOnce(t, dialFrom(t, "127.0.0.2", l.Addr().String()))
}

// TestBoundedListenerManyClients checks that all clients together have at most maxActive connections. A new client is admitted if up to 85
// others connect in turns, but not if there are more, or if each takes its maximum before the next.
func TestBoundedListenerManyClients(t *testing.T) {
	const maxClients = maxActive / clientShare
	for clients := 1; clients <= maxClients+1; clients++ {
		c := newBoundedListener(&http.Server{}, nil)
		for i := range maxActive * clients {
			c.admit(&clientConn{TCPConn: &net.TCPConn{}, client: netip.AddrFrom4([4]byte{10, 0, 0, byte(i % clients)})})
		}
		served := len(c.active)
		if ok := c.admit(&clientConn{TCPConn: &net.TCPConn{}, client: netip.AddrFrom4([4]byte{10, 0, 1, 0})}); served > maxActive || ok != (clients <= maxClients) {
			t.Errorf("%d clients: got %d connections, another client is admitted: %t", clients, served, ok)
		}
	}
	c, admitted := newBoundedListener(&http.Server{}, nil), []int{}
	for client := range byte(5) {
		n := 0
		for c.admit(&clientConn{TCPConn: &net.TCPConn{}, client: netip.AddrFrom4([4]byte{10, 0, 0, client})}) {
			n++
		}
		admitted = append(admitted, n)
	}
	if want := []int{192, 48, 12, 3, 1}; !slices.Equal(admitted, want) { // docs/explanation/security.md
		t.Errorf("connections of five clients: got %v, want %v", admitted, want)
	}
}

func TestClientOf(t *testing.T) {
	for remote, want := range map[string]string{
		"10.0.0.1:80": "10.0.0.1", "[::ffff:10.0.0.1]:80": "10.0.0.1", "[fd00::1:2]:80": "fd00::1:2", "": "invalid IP", "@": "invalid IP",
	} {
		if got := clientAddr(remote).String(); got != want {
			t.Errorf("client of %q: got %s, want %s", remote, got, want)
		}
	}
}

// awaitClose waits for the end of a connection.
func awaitClose(conn net.Conn) <-chan struct{} {
	c := make(chan struct{})
	go func() { // ends with the connection
		io.Copy(io.Discard, conn)
		close(c)
	}()
	return c
}

// TestOneProtocol checks that a connection over TLS serves one request at a time, even for an HTTP/2 client.
func TestOneProtocol(t *testing.T) {
	s := newWebSecrets(t, tlsConfig)
	w := newTestApp(t, 1, "--web.config.file="+s.path("web.yaml"))
	w.waitRegistered()
	_, address, _ := strings.Cut(w.url, "://")
	conn, err := tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2", "http/1.1"}})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if got := conn.ConnectionState().NegotiatedProtocol; got == "h2" {
		t.Errorf("protocol: got %q", got)
	}
}
