package app

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"sync"
	"syscall"
)

const (
	// maxConnections limits the open connections of a listener. A connection takes 40 KB before its request arrives, also without a
	// password. Without a limit, the kernel would kill the process, device plugin included.
	maxConnections = 128
	// maxActive limits the connections held by the server, including closed connections before their release.
	maxActive = 2 * maxConnections
	// clientShare is the number of connections of a client per unused connection of maxActive.
	clientShare = 3
	// The kernel keeps at most twice as many unsent or unread bytes of a connection. The default is megabytes.
	sendBuffer    = 64 << 10
	receiveBuffer = 16 << 10 // the headers of a request
)

// boundedListener limits connections. At the limit, it closes the oldest connection of the client with the most connections. The
// kubelet's probe and Prometheus have few connections, and keep them.
type boundedListener struct {
	net.Listener

	mu   sync.Mutex
	open []*clientConn // guarded by mu; oldest first
	// active counts the connections before their release by the server. A closed connection counts while its handler runs, and for
	// half a second if net/http has not read the whole request.
	active         int                // guarded by mu
	activeByClient map[netip.Addr]int // guarded by mu
}

// clientConn is an open connection.
type clientConn struct {
	net.Conn
	client netip.Addr
}

// Write implements net.Conn. At the deadline, unread bytes are dropped: otherwise the kernel keeps the bytes for minutes, in
// podgauge's memory.
func (c *clientConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		c.discardUnsent()
	}
	return n, err
}

// CloseWrite ends the response. net/http calls CloseWrite before a request was read completely.
func (c *clientConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

// discardUnsent makes Close drop unread bytes.
func (c *clientConn) discardUnsent() {
	if tcp, ok := c.Conn.(*net.TCPConn); ok {
		tcp.SetLinger(0) //nolint:errcheck // the connection may be closed
	}
}

// listenTCP listens with small socket buffers.
func listenTCP(address string) (net.Listener, error) {
	config := net.ListenConfig{Control: func(_, _ string, socket syscall.RawConn) (err error) {
		controlErr := socket.Control(func(fd uintptr) {
			err = cmp.Or(
				syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_SNDBUF, sendBuffer),
				syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, receiveBuffer),
			)
		})
		return cmp.Or(controlErr, err)
	}}
	return config.Listen(context.Background(), "tcp", address)
}

// newBoundedListener returns a listener, and sets the server's ConnState to count released connections.
func newBoundedListener(server *http.Server, l net.Listener) *boundedListener {
	bounded := &boundedListener{Listener: l, activeByClient: map[netip.Addr]int{}}
	server.ConnState = func(conn net.Conn, state http.ConnState) {
		if state == http.StateClosed || state == http.StateHijacked {
			bounded.release(conn)
		}
	}
	return bounded
}

// Accept returns the next connection of a client within the client's share, and closes surplus connections. Accept never waits for
// the server: the kubelet's probe would wait behind all connections of a hostile client.
func (l *boundedListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		c := &clientConn{conn, clientAddr(conn.RemoteAddr().String())}
		if l.admit(c) {
			return c, nil
		}
		c.discardUnsent()
		c.Close() //nolint:errcheck // rejected
	}
}

// admit counts a connection, and closes a surplus one. admit returns false if the client has clientShare connections per unused
// connection: a single client gets three quarters, and up to 85 clients in turns leave a remainder.
func (l *boundedListener) admit(c *clientConn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.activeByClient[c.client] >= clientShare*(maxActive-l.active) {
		return false
	}
	l.active++
	l.activeByClient[c.client]++
	l.open = append(l.open, c)
	if len(l.open) > maxConnections {
		i := l.surplusIndex()
		l.open[i].discardUnsent()
		l.open[i].Close() //nolint:errcheck // cut off
		l.open = slices.Delete(l.open, i, i+1)
	}
	return true
}

// surplusIndex returns the index of the oldest connection of the client with the most. The caller holds mu.
func (l *boundedListener) surplusIndex() int {
	perClient, most := map[netip.Addr]int{}, 0
	for _, c := range l.open {
		perClient[c.client]++
		most = max(most, perClient[c.client])
	}
	return slices.IndexFunc(l.open, func(c *clientConn) bool { return perClient[c.client] == most })
}

// release removes a connection after its release by the server.
func (l *boundedListener) release(conn net.Conn) {
	if secure, ok := conn.(*tls.Conn); ok {
		conn = secure.NetConn()
	}
	c := conn.(*clientConn)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.active--
	if l.activeByClient[c.client]--; l.activeByClient[c.client] == 0 {
		delete(l.activeByClient, c.client)
	}
	l.open = slices.DeleteFunc(l.open, func(other *clientConn) bool { return other == c })
}

// clientAddr returns the address of a client without the port; zero: remote has a different form. Networks are not merged: a
// node's pods and kubelet share a /64 in an IPv6 cluster.
func clientAddr(remote string) netip.Addr {
	addrPort, _ := netip.ParseAddrPort(remote)
	return addrPort.Addr().Unmap()
}
