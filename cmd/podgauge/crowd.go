package main

import (
	"crypto/tls"
	"net"
	"net/http"
	"slices"
	"sync"
)

// mostConnections is how many connections a listener keeps open. One takes some 40 KB until its
// request has come, of whoever it is: without a bound, whoever reaches the port could have the
// process killed for its memory, and the device plugin with it.
const mostConnections = 128

// crowd is a listener whose connections are bounded. Who comes is let in, and the oldest has to
// go: the kubelet's probe is answered, however many others say nothing.
type crowd struct {
	net.Listener

	mu   sync.Mutex
	open []net.Conn // the oldest first
	// served are those that the server has not let go of. One that had to go is among them
	// for as long as its request waits for something.
	served int
}

// crowded has the server tell a new crowd whom it has let go of.
func crowded(server *http.Server, l net.Listener) *crowd {
	c := &crowd{Listener: l}
	server.ConnState = func(conn net.Conn, state http.ConnState) {
		if state == http.StateClosed || state == http.StateHijacked {
			c.leave(conn)
		}
	}
	return c
}

// Accept is net.Listener's. Who comes is turned away when as many as are open were closed and
// are being served still.
func (c *crowd) Accept() (net.Conn, error) {
	for {
		conn, err := c.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if c.admit(conn) {
			return conn, nil
		}
		conn.Close() //nolint:errcheck // nobody has written to it
	}
}

func (c *crowd) admit(conn net.Conn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.served >= 2*mostConnections {
		return false
	}
	c.served++
	c.open = append(c.open, conn)
	if len(c.open) > mostConnections {
		c.open[0].Close() //nolint:errcheck // it is cut off
		c.open = slices.Delete(c.open, 0, 1)
	}
	return true
}

func (c *crowd) leave(conn net.Conn) {
	if secure, ok := conn.(*tls.Conn); ok {
		conn = secure.NetConn()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.served--
	c.open = slices.DeleteFunc(c.open, func(other net.Conn) bool { return other == conn })
}
