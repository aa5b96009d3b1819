package main

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

// mostConnections is how many connections a listener keeps open. One takes some 40 KB until its
// request has come, of whoever it is: without a bound, whoever reaches the port could have the
// process killed for its memory, and the device plugin with it.
const mostConnections = 128

// crowd is a listener whose connections are bounded. At the limit it closes the oldest connection of the client that has the
// most: the kubelet's probe and Prometheus have one or two, and keep them whatever another client opens.
type crowd struct {
	net.Listener

	mu   sync.Mutex
	open []*visitor // the oldest first
	// served are those that the server has not let go of. One that had to go is among them
	// for as long as its request waits for something.
	served int
	room   sync.Cond // served has fallen, or the listener is closed
	closed bool
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

// crowded has the server tell a new crowd whom it has let go of.
func crowded(server *http.Server, l net.Listener) *crowd {
	c := &crowd{Listener: l}
	c.room.L = &c.mu
	server.ConnState = func(conn net.Conn, state http.ConnState) {
		if state == http.StateClosed || state == http.StateHijacked {
			c.leave(conn)
		}
	}
	return c
}

// Accept is net.Listener's. It waits while as many connections as are open were closed and are
// being served still: refused, the kubelet's probe would fail for the requests of others.
func (c *crowd) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.served >= 2*mostConnections && !c.closed {
		c.room.Wait()
	}
	if c.closed {
		return nil, errors.Join(net.ErrClosed, conn.Close())
	}
	v := &visitor{conn, clientOf(conn.RemoteAddr().String())}
	c.admit(v)
	return v, nil
}

// Close is net.Listener's.
func (c *crowd) Close() error {
	c.mu.Lock()
	c.closed = true
	c.room.Broadcast()
	c.mu.Unlock()
	return c.Listener.Close()
}

// admit counts a connection, and closes one that is too many. The caller holds mu.
func (c *crowd) admit(v *visitor) {
	c.served++
	c.open = append(c.open, v)
	if len(c.open) > mostConnections {
		i := c.surplus()
		c.open[i].forget()
		c.open[i].Close() //nolint:errcheck // it is cut off
		c.open = slices.Delete(c.open, i, i+1)
	}
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

func (c *crowd) leave(conn net.Conn) {
	if secure, ok := conn.(*tls.Conn); ok {
		conn = secure.NetConn()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.served--
	c.room.Signal()
	c.open = slices.DeleteFunc(c.open, func(v *visitor) bool { return v == conn })
}
