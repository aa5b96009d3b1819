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
	// maxConnections limits the open connections of a listener. Each takes 40 KB until its request has arrived, also without a
	// password. Without a limit, the kernel would kill the process, and the device plugin with it.
	maxConnections = 128
	// maxActive limits the connections that the server holds, including closed ones that it has not released.
	maxActive = 2 * maxConnections
	// clientShare is the number of connections of a client for each unused one of maxActive.
	clientShare = 3
	// The kernel keeps at most twice as many unsent or unread bytes of a connection. The default is megabytes for a client that
	// does not read.
	sendBuffer    = 64 << 10
	receiveBuffer = 16 << 10 // the headers of a request
)

// boundedListener limits connections. At the limit it closes the oldest connection of the client with the most, so that the
// kubelet's probe and Prometheus, with one or two connections, keep theirs.
type boundedListener struct {
	net.Listener

	mu   sync.Mutex
	open []*clientConn // guarded by mu; oldest first
	// active counts the connections that the server has not released: a closed one counts while its handler runs, and for the
	// half second that net/http sleeps after a request that it has not read to its end.
	active         int                // guarded by mu
	activeByClient map[netip.Addr]int // guarded by mu
}

// clientConn is an open connection.
type clientConn struct {
	net.Conn
	client netip.Addr
}

// Write implements net.Conn. Bytes that the client has not read in time are dropped: otherwise the kernel keeps them for minutes,
// in memory that counts as podgauge's.
func (c *clientConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		c.discardUnsent()
	}
	return n, err
}

// CloseWrite ends the response. net/http calls it if the request is not read to its end.
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

// newBoundedListener returns a listener that uses the server's ConnState to count released connections.
func newBoundedListener(server *http.Server, l net.Listener) *boundedListener {
	bounded := &boundedListener{Listener: l, activeByClient: map[netip.Addr]int{}}
	server.ConnState = func(conn net.Conn, state http.ConnState) {
		if state == http.StateClosed || state == http.StateHijacked {
			bounded.release(conn)
		}
	}
	return bounded
}

// Accept returns the next connection of a client that has not used up its share, and closes connections of other clients. Accept
// never waits for the server: the kubelet's probe would wait behind all connections of a hostile client.
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

// admit counts a connection, and closes a surplus one. It returns false if the client has clientShare connections for each unused
// one: a single client gets three quarters, and up to 85 clients that connect in turns leave some for others.
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

// release removes a connection that the server has released.
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

// clientAddr returns the address of a client without the port; zero: remote has another form. Networks are not merged: the pods
// of a node in an IPv6 cluster, and its kubelet, are in one /64.
func clientAddr(remote string) netip.Addr {
	addrPort, _ := netip.ParseAddrPort(remote)
	return addrPort.Addr().Unmap()
}
