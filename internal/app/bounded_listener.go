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
	// maxConnections is how many connections a listener keeps open. Each takes some 40 KB until its request has come, even
	// without a password: an unbounded number would have the kernel kill the process, and the device plugin with it.
	maxConnections = 128
	// maxActive is how many connections the server may hold, with those that were closed and that it has not released.
	maxActive = 2 * maxConnections
	// clientShare is how many connections a client may have for each of maxActive that is not in use.
	clientShare = 3
)

// boundedListener is a listener with a bounded number of connections. At maxConnections it closes the oldest connection of the client
// that has the most: the kubelet's probe and Prometheus have one or two, and keep them whatever another client opens.
type boundedListener struct {
	net.Listener

	mu   sync.Mutex
	open []*clientConn // the oldest first
	// active counts the connections that the server has not released. A closed connection is among them while its handler
	// runs, and for the half second that net/http sleeps after a request that it has not read to its end.
	active         int
	activeByClient map[netip.Addr]int
}

// clientConn is a connection that is open.
type clientConn struct {
	net.Conn
	client netip.Addr
}

// Write is net.Conn's. What a client has not read in time is dropped with the connection: otherwise the kernel would go on
// to offer it, for minutes, in memory that counts as podgauge's.
func (c *clientConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		c.discardUnsent()
	}
	return n, err
}

// CloseWrite has a client see the end of its answer, which net/http wants where the request is not read to its end.
func (c *clientConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

// discardUnsent has the connection's end drop what was not read.
func (c *clientConn) discardUnsent() {
	if tcp, ok := c.Conn.(*net.TCPConn); ok {
		tcp.SetLinger(0) //nolint:errcheck // it is closed already
	}
}

// Of each connection the kernel keeps at most twice so many bytes that were not sent or not read. Without a bound it takes
// megabytes of a client that asks and does not read.
const (
	sendBuffer    = 64 << 10
	receiveBuffer = 16 << 10 // a request's headers
)

// listenTCP listens for connections with small buffers.
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

// newBoundedListener returns a crowd that learns from the server's ConnState which connections it has released.
func newBoundedListener(server *http.Server, l net.Listener) *boundedListener {
	bounded := &boundedListener{Listener: l, activeByClient: map[netip.Addr]int{}}
	server.ConnState = func(conn net.Conn, state http.ConnState) {
		if state == http.StateClosed || state == http.StateHijacked {
			bounded.release(conn)
		}
	}
	return bounded
}

// Accept returns the next connection of a client that has not used up its share, and closes those of others. It never waits
// for the server to release connections: the kubelet's probe would wait behind all that a hostile client has opened.
func (l *boundedListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		v := &clientConn{conn, clientAddr(conn.RemoteAddr().String())}
		if l.admit(v) {
			return v, nil
		}
		v.discardUnsent()
		v.Close() //nolint:errcheck // the client has too many
	}
}

// admit counts a connection and closes a surplus one. It returns false if the client's connections have reached clientShare of
// the room that is left: a single client gets three quarters of it, and up to 85 clients that connect in turns leave some for others.
func (l *boundedListener) admit(v *clientConn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.activeByClient[v.client] >= clientShare*(maxActive-l.active) {
		return false
	}
	l.active++
	l.activeByClient[v.client]++
	l.open = append(l.open, v)
	if len(l.open) > maxConnections {
		i := l.surplusIndex()
		l.open[i].discardUnsent()
		l.open[i].Close() //nolint:errcheck // it is cut off
		l.open = slices.Delete(l.open, i, i+1)
	}
	return true
}

// surplusIndex is the index of the oldest connection of the client that has the most. The caller holds mu.
func (l *boundedListener) surplusIndex() int {
	perClient, most := map[netip.Addr]int{}, 0
	for _, v := range l.open {
		perClient[v.client]++
		most = max(most, perClient[v.client])
	}
	return slices.IndexFunc(l.open, func(v *clientConn) bool { return perClient[v.client] == most })
}

// clientAddr returns the address by which clients are told apart, without the port. It is zero for what is no such address.
// Networks are not summed up: in a cluster with IPv6 a node's pods, and its kubelet, are of one /64.
func clientAddr(remote string) netip.Addr {
	addrPort, _ := netip.ParseAddrPort(remote)
	return addrPort.Addr().Unmap()
}

// release removes a connection that the server has released.
func (l *boundedListener) release(conn net.Conn) {
	if secure, ok := conn.(*tls.Conn); ok {
		conn = secure.NetConn()
	}
	v := conn.(*clientConn)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.active--
	if l.activeByClient[v.client]--; l.activeByClient[v.client] == 0 {
		delete(l.activeByClient, v.client)
	}
	l.open = slices.DeleteFunc(l.open, func(other *clientConn) bool { return other == v })
}
