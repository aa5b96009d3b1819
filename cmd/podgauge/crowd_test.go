package main

import (
	"context"
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
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

// TestCrowdThatWaits: a connection that had to go is counted until its request has an end, and
// then others are let in again.
func TestCrowdThatWaits(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	arrived, mayGo := make(chan struct{}), make(chan struct{})
	server := newServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		arrived <- struct{}{}
		<-mayGo
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
		conn.Write([]byte("GET / HTTP/1.0\r\n\r\n")) // it fails where the connection is refused already
		return conn
	}
	for range 2 * mostConnections {
		come()
		<-arrived
	}
	if n, err := come().Read(make([]byte, 1)); n != 0 || err == nil {
		t.Errorf("one more is let in, and told something: %d, %v", n, err)
	}
	close(mayGo)
	until(t, "others are let in again", func() bool {
		conn := come()
		select {
		case <-arrived:
			return true
		case <-closed(conn):
			return false
		}
	})
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
