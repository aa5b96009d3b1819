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

	mu sync.Mutex
	// active are the connections before their release by the server, oldest first. A closed connection counts while its handler runs,
	// and for half a second if net/http has not read the whole request.
	active []*clientConn // guarded by mu
}

// clientConn is a connection.
type clientConn struct {
	*net.TCPConn
	client netip.Addr
	closed bool // as surplus; guarded by the listener's mu
}

// drop closes the connection without unread bytes.
func (c *clientConn) drop() {
	c.SetLinger(0) //nolint:errcheck // the connection may be closed
	c.Close()      //nolint:errcheck // cut off
}

// Write implements net.Conn. At the deadline, unread bytes are dropped: otherwise the kernel keeps the bytes for minutes, in
// podgauge's memory.
func (c *clientConn) Write(b []byte) (int, error) {
	n, err := c.TCPConn.Write(b)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		c.SetLinger(0) //nolint:errcheck // the connection may be closed
	}
	return n, err
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
	bounded := &boundedListener{Listener: l}
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
		c := &clientConn{TCPConn: conn.(*net.TCPConn), client: clientAddr(conn.RemoteAddr().String())}
		if l.admit(c) {
			return c, nil
		}
		c.drop()
	}
}

// admit counts a connection, and closes a surplus one. admit returns false if the client has clientShare connections per unused
// connection: a single client gets three quarters, and up to 85 clients in turns leave a remainder.
func (l *boundedListener) admit(c *clientConn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	active, open, mostOpen := map[netip.Addr]int{}, map[netip.Addr]int{c.client: 1}, 1
	total := 1
	for _, other := range l.active {
		active[other.client]++
		if !other.closed {
			open[other.client]++
			mostOpen = max(mostOpen, open[other.client])
			total++
		}
	}
	if active[c.client] >= clientShare*(maxActive-len(l.active)) {
		return false
	}
	l.active = append(l.active, c)
	if total > maxConnections {
		oldest := slices.IndexFunc(l.active, func(other *clientConn) bool { return !other.closed && open[other.client] == mostOpen })
		l.active[oldest].closed = true
		l.active[oldest].drop()
	}
	return true
}

// release removes a connection after its release by the server.
func (l *boundedListener) release(conn net.Conn) {
	if secure, ok := conn.(*tls.Conn); ok {
		conn = secure.NetConn()
	}
	c := conn.(*clientConn)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.active = slices.DeleteFunc(l.active, func(other *clientConn) bool { return other == c })
}

// clientAddr returns the address of a client without the port; zero: remote has a different form. Networks are not merged: a
// node's pods and kubelet share a /64 in an IPv6 cluster.
func clientAddr(remote string) netip.Addr {
	addrPort, _ := netip.ParseAddrPort(remote)
	return addrPort.Addr().Unmap()
}
