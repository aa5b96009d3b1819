package plugin

import (
	"context"
	"net"
	"sync"

	"google.golang.org/grpc/peer"
)

// callers are the clients of a life, of which one is the kubelet. The kubelet asks for the
// options from within Register and then calls ListAndWatch on the same connection
// (Server.connectClient in pkg/kubelet/cm/devicemanager/plugin/v1beta1/handler.go); any other
// program that may open the socket can call ListAndWatch too.
type callers struct {
	mu sync.Mutex
	// All below are guarded by mu.
	settled bool              // Register has returned: the kubelet has asked for the options
	asked   map[net.Addr]bool // connections that asked for the options before that
	kubelet *watcher          // the kubelet's stream; nil before it opens
	sure    bool              // it is on a connection that asked for the options
}

// watcher is a ListAndWatch stream.
type watcher struct{ _ byte } // not empty: pointers to two of them differ

// askedBy notes that a connection asks for the options.
func (c *callers) askedBy(ctx context.Context) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.settled {
		if c.asked == nil {
			c.asked = map[net.Addr]bool{}
		}
		c.asked[address(ctx)] = true
	}
}

// answered notes that Register has returned.
func (c *callers) answered() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.settled = true
}

// watches notes that a stream opens, and reports whether it is the first. Until the kubelet's
// opens, the first one counts as the kubelet's: programs that play a kubelet may make a
// connection for each call.
func (c *callers) watches(ctx context.Context, w *watcher) (first bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	first = c.kubelet == nil
	if asked := c.asked[address(ctx)]; first || asked && !c.sure {
		c.kubelet, c.sure = w, asked
	}
	return first
}

func (c *callers) isKubelets(w *watcher) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.kubelet == w
}

// address identifies the connection of a call.
func address(ctx context.Context) net.Addr {
	if p, ok := peer.FromContext(ctx); ok {
		return p.Addr
	}
	return nil
}

// connections are a listener's. Clients of a unix socket have no address, so each connection
// gets one.
type connections struct{ net.Listener }

func (c connections) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &connection{conn}, nil
}

// connection is its own address.
type connection struct{ net.Conn }

func (c *connection) RemoteAddr() net.Addr { return c }
func (c *connection) Network() string      { return "unix" }
func (c *connection) String() string       { return "@" }
