package main

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
)

// TestCrowd: whoever comes in numbers, and stays after an answer, has the process keep so many
// connections and no more, and others are answered meanwhile, with and without TLS.
func TestCrowd(t *testing.T) {
	for name, config := range map[string]string{"plain": "", "passwords": users, "TLS": usesTLS + users} {
		t.Run(name, func(t *testing.T) {
			s := newSecrets(t, config)
			w := newWorld(t, 1, "--web.config.file="+s.path("web.yaml"), "--web.probe-address=127.0.0.1:0")
			w.untilRegistered()
			secure := strings.HasPrefix(config, usesTLS)
			url := w.url
			if secure {
				url = "https" + strings.TrimPrefix(w.url, "http")
			}
			asking := client(t)
			for _, at := range []string{w.url, w.probes} {
				var ended atomic.Int32
				for range 3 * mostConnections {
					stays(t, at, secure && at == w.url, &ended)
				}
				until(t, "the oldest have gone", func() bool { return ended.Load() >= 2*mostConnections })
				if got, err := fetch(t, asking, url+"/healthz", password); err != nil || got.status != http.StatusOK {
					t.Errorf("amid them: %d, %v", got.status, err)
				}
				if got, err := fetch(t, asking, w.probes+"/healthz", ""); err != nil || got.status != http.StatusOK {
					t.Errorf("a probe amid them: %d, %v", got.status, err)
				}
				if got := ended.Load(); got > 2*mostConnections+2 {
					t.Errorf("%d of %d had to go", got, 3*mostConnections)
				}
			}
		})
	}
}

// stays asks once on a connection of its own, and counts it when it has ended.
func stays(t *testing.T, url string, secure bool, ended *atomic.Int32) {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if secure {
		conn = tls.Client(conn, &tls.Config{InsecureSkipVerify: true})
	}
	if _, err := conn.Write([]byte("GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	go func() {
		<-closed(conn)
		ended.Add(1)
	}()
}

// TestCrowdSparesOthers: a client that opens any number of connections has its own oldest closed, and no other's.
func TestCrowdSparesOthers(t *testing.T) {
	w := newWorld(t, 1, "--web.probe-address=127.0.0.1:0")
	for _, at := range []string{w.url, w.probes} {
		address := strings.TrimPrefix(at, "http://")
		kept, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer kept.Close()
		hostile := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}
		var ended atomic.Int32
		for range 3 * mostConnections {
			conn, err := hostile.DialContext(t.Context(), "tcp", address)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { conn.Close() })
			go func() {
				<-closed(conn)
				ended.Add(1)
			}()
		}
		until(t, "the oldest have gone", func() bool { return ended.Load() > 2*mostConnections })
		if _, err := kept.Write([]byte("GET /healthz HTTP/1.0\r\n\r\n")); err != nil {
			t.Fatal(err)
		}
		if answer, err := io.ReadAll(kept); err != nil || !strings.HasSuffix(string(answer), "ok\n") {
			t.Errorf("on the oldest connection, of another client: %q, %v", answer, err)
		}
	}
}

// TestCrowdThatWaits: a connection that had to go is counted until its request has an end. Until then others wait, and then
// they are answered.
func TestCrowdThatWaits(t *testing.T) {
	l, err := listenTCP("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	arrived, mayGo := make(chan struct{}), make(chan struct{})
	server := newServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		select {
		case arrived <- struct{}{}:
			<-mayGo
		case <-mayGo:
		}
	}), slog.New(slog.DiscardHandler))
	listener := crowded(server, l)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- serveHTTP(ctx, server, "this", func() error { return server.Serve(listener) }) }()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	come := func() net.Conn {
		conn, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		if _, err := conn.Write([]byte("GET / HTTP/1.0\r\n\r\n")); err != nil {
			t.Fatal(err)
		}
		return conn
	}
	for range 2 * mostConnections {
		come()
		<-arrived
	}
	more := come()
	close(mayGo)
	if answer, err := io.ReadAll(more); err != nil || !strings.HasPrefix(string(answer), "HTTP/1.0 200 OK") {
		t.Errorf("one more: %q, %v", answer, err)
	}
}

// TestCrowdThatEnds: a server that is told to end does not wait for room.
func TestCrowdThatEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		listener := crowded(&http.Server{}, one{ours})
		listener.served = 2 * mostConnections
		accepted := make(chan error)
		go func() {
			_, err := listener.Accept()
			accepted <- err
		}()
		synctest.Wait()
		select {
		case err := <-accepted:
			t.Fatalf("Accept does not wait, and returns %v", err)
		default:
		}
		if err := listener.Close(); err != nil {
			t.Error(err)
		}
		if err := <-accepted; !errors.Is(err, net.ErrClosed) {
			t.Errorf("Accept returns %v", err)
		}
		<-closed(theirs)
	})
}

// one is a listener that has a connection.
type one struct{ net.Conn }

func (o one) Accept() (net.Conn, error) { return o.Conn, nil }
func (one) Close() error                { return nil }
func (one) Addr() net.Addr              { return &net.TCPAddr{} }

func TestClientOf(t *testing.T) {
	for remote, want := range map[string]string{
		"10.0.0.1:80": "10.0.0.1", "[::ffff:10.0.0.1]:80": "10.0.0.1", "[fd00::1:2]:80": "fd00::1:2", "": "invalid IP", "@": "invalid IP",
	} {
		if got := clientOf(remote).String(); got != want {
			t.Errorf("%q is of %s, want %s", remote, got, want)
		}
	}
}

// closed tells of the end of a connection.
func closed(conn net.Conn) <-chan struct{} {
	c := make(chan struct{})
	go func() { // ends with the connection
		io.Copy(io.Discard, conn)
		close(c)
	}()
	return c
}

// TestOneProtocol: a connection over TLS has one request at a time, whatever the client would like.
func TestOneProtocol(t *testing.T) {
	s := newSecrets(t, usesTLS)
	w := newWorld(t, 1, "--web.config.file="+s.path("web.yaml"))
	w.untilRegistered()
	_, address, _ := strings.Cut(w.url, "://")
	conn, err := tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2", "http/1.1"}})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if got := conn.ConnectionState().NegotiatedProtocol; got == "h2" {
		t.Errorf("the protocol is %q", got)
	}
}
