package plugin

import (
	"context"
	"net"
	"sync"

	"google.golang.org/grpc/peer"
)

// clientTracker are the clients of a life, of which one is the kubelet. The kubelet asks for the
// options from within Register and then calls ListAndWatch on the same connection
// (Server.connectClient in pkg/kubelet/cm/devicemanager/plugin/v1beta1/handler.go); any other
// program that may open the socket can call ListAndWatch too.
type clientTracker struct {
	mu sync.Mutex
	// All below are guarded by mu.
	registerReturned bool              // Register has returned: the kubelet has asked for the options
	optionsClients   map[net.Addr]bool // connections that asked for the options before that
	kubeletStream    *listStream       // the kubelet's stream; nil before it opens
	kubeletConfirmed bool              // it is on a connection that asked for the options
}

// listStream is a ListAndWatch stream.
type listStream struct{ _ byte } // not empty: pointers to two of them differ

// recordOptionsCall notes that a connection asks for the options.
func (c *clientTracker) recordOptionsCall(ctx context.Context) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.registerReturned {
		if c.optionsClients == nil {
			c.optionsClients = map[net.Addr]bool{}
		}
		c.optionsClients[clientAddr(ctx)] = true
	}
}

// recordRegisterReturn notes that Register has returned.
func (c *clientTracker) recordRegisterReturn() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.registerReturned = true
}

// addStream notes that a stream opens, and reports whether it is the first. Until the kubelet's
// opens, the first one counts as the kubelet's: programs that play a kubelet may make a
// connection for each call.
func (c *clientTracker) addStream(ctx context.Context, ls *listStream) (first bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	first = c.kubeletStream == nil
	if confirmed := c.optionsClients[clientAddr(ctx)]; first || confirmed && !c.kubeletConfirmed {
		c.kubeletStream, c.kubeletConfirmed = ls, confirmed
	}
	return first
}

func (c *clientTracker) isKubeletStream(ls *listStream) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.kubeletStream == ls
}

// clientAddr identifies the connection of a call.
func clientAddr(ctx context.Context) net.Addr {
	if p, ok := peer.FromContext(ctx); ok {
		return p.Addr
	}
	return nil
}

// addressedListener are a listener's. Clients of a unix socket have no address, so each connection
// gets one.
type addressedListener struct{ net.Listener }

func (l addressedListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &addressedConn{conn}, nil
}

// addressedConn is its own address.
type addressedConn struct{ net.Conn }

func (c *addressedConn) RemoteAddr() net.Addr { return c }
func (c *addressedConn) Network() string      { return "unix" }
func (c *addressedConn) String() string       { return "@" }
