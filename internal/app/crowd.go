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
	// mostConnections is how many connections a listener keeps open. Each takes some 40 KB until its request has come, even
	// without a password: an unbounded number would have the kernel kill the process, and the device plugin with it.
	mostConnections = 128
	// maxServed is how many connections the server may hold, with those that were closed and that it has not released.
	maxServed = 2 * mostConnections
	// servedShare is how many connections a client may have for each of maxServed that is not in use.
	servedShare = 3
)

// crowd is a listener with a bounded number of connections. At mostConnections it closes the oldest connection of the client
// that has the most: the kubelet's probe and Prometheus have one or two, and keep them whatever another client opens.
type crowd struct {
	net.Listener

	mu   sync.Mutex
	open []*visitor // the oldest first
	// served counts the connections that the server has not released. A closed connection is among them while its handler
	// runs, and for the half second that net/http sleeps after a request that it has not read to its end.
	served   int
	servedOf map[netip.Addr]int
}

// visitor is a connection that is open.
type visitor struct {
	net.Conn
	from netip.Addr
}

// Write is net.Conn's. What a client has not read in time is dropped with the connection: otherwise the kernel would go on
// to offer it, for minutes, in memory that counts as podgauge's.
func (v *visitor) Write(b []byte) (int, error) {
	n, err := v.Conn.Write(b)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		v.forget()
	}
	return n, err
}

// CloseWrite has a client see the end of its answer, which net/http wants where the request is not read to its end.
func (v *visitor) CloseWrite() error {
	if half, ok := v.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

// forget has the connection's end drop what was not read.
func (v *visitor) forget() {
	if tcp, ok := v.Conn.(*net.TCPConn); ok {
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
		outer := socket.Control(func(fd uintptr) {
			err = cmp.Or(
				syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_SNDBUF, sendBuffer),
				syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, receiveBuffer),
			)
		})
		return cmp.Or(outer, err)
	}}
	return config.Listen(context.Background(), "tcp", address)
}

// crowded returns a crowd that learns from the server's ConnState which connections it has released.
func crowded(server *http.Server, l net.Listener) *crowd {
	c := &crowd{Listener: l, servedOf: map[netip.Addr]int{}}
	server.ConnState = func(conn net.Conn, state http.ConnState) {
		if state == http.StateClosed || state == http.StateHijacked {
			c.leave(conn)
		}
	}
	return c
}

// Accept returns the next connection of a client that has not used up its share, and closes those of others. It never waits
// for the server to release connections: the kubelet's probe would wait behind all that a hostile client has opened.
func (c *crowd) Accept() (net.Conn, error) {
	for {
		conn, err := c.Listener.Accept()
		if err != nil {
			return nil, err
		}
		v := &visitor{conn, clientOf(conn.RemoteAddr().String())}
		if c.admit(v) {
			return v, nil
		}
		v.forget()
		v.Close() //nolint:errcheck // the client has too many
	}
}

// admit counts a connection and closes a surplus one. It returns false if the client's connections have reached servedShare of
// the room that is left: a single client gets three quarters of it, and up to 85 clients that connect in turns leave some for others.
func (c *crowd) admit(v *visitor) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.servedOf[v.from] >= servedShare*(maxServed-c.served) {
		return false
	}
	c.served++
	c.servedOf[v.from]++
	c.open = append(c.open, v)
	if len(c.open) > mostConnections {
		i := c.surplus()
		c.open[i].forget()
		c.open[i].Close() //nolint:errcheck // it is cut off
		c.open = slices.Delete(c.open, i, i+1)
	}
	return true
}

// surplus is the index of the oldest connection of the client that has the most. The caller holds mu.
func (c *crowd) surplus() int {
	of, most := map[netip.Addr]int{}, 0
	for _, v := range c.open {
		of[v.from]++
		most = max(most, of[v.from])
	}
	return slices.IndexFunc(c.open, func(v *visitor) bool { return of[v.from] == most })
}

// clientOf returns the address by which clients are told apart, without the port. It is zero for what is no such address.
// Networks are not summed up: in a cluster with IPv6 a node's pods, and its kubelet, are of one /64.
func clientOf(remote string) netip.Addr {
	from, _ := netip.ParseAddrPort(remote)
	return from.Addr().Unmap()
}

// leave removes a connection that the server has released.
func (c *crowd) leave(conn net.Conn) {
	if secure, ok := conn.(*tls.Conn); ok {
		conn = secure.NetConn()
	}
	v := conn.(*visitor)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.served--
	if c.servedOf[v.from]--; c.servedOf[v.from] == 0 {
		delete(c.servedOf, v.from)
	}
	c.open = slices.DeleteFunc(c.open, func(other *visitor) bool { return other == v })
}
