package plugin

import (
	"context"
	"net"
	"slices"
	"sync"

	"google.golang.org/grpc/peer"
)

// clientTracker finds the kubelet among the clients of a server.
//
// The kubelet asks for the options from within Register and then calls ListAndWatch on the same connection (Server.connectClient in
// pkg/kubelet/cm/devicemanager/plugin/v1beta1/handler.go). Any program with access to the socket can call ListAndWatch too.
type clientTracker struct {
	mu sync.Mutex
	// All below are guarded by mu.
	registerReturned bool
	optionsClients   []net.Addr  // connections with a call for the options before Register returned
	kubeletStream    *listStream // nil before the first stream
	kubeletConfirmed bool        // the stream's connection asked for the options
}

// listStream is a ListAndWatch stream.
type listStream struct{ _ byte } // not empty, so pointers to different streams differ

// recordOptionsCall records a call of GetDevicePluginOptions.
func (c *clientTracker) recordOptionsCall(ctx context.Context) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.registerReturned && !slices.Contains(c.optionsClients, clientAddr(ctx)) {
		c.optionsClients = append(c.optionsClients, clientAddr(ctx))
	}
}

func (c *clientTracker) recordRegisterReturn() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.registerReturned = true
}

// addStream records a stream and reports whether the stream is the first. The first stream counts as the kubelet's until a stream
// opens on a connection of optionsClients: simulated kubelets may make a connection for each call.
func (c *clientTracker) addStream(ctx context.Context, ls *listStream) (first bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	first = c.kubeletStream == nil
	if confirmed := slices.Contains(c.optionsClients, clientAddr(ctx)); first || confirmed && !c.kubeletConfirmed {
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

// addressedListener gives each connection an address: clients of a unix socket have no address.
type addressedListener struct{ net.Listener }

func (l addressedListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &addressedConn{conn}, nil
}

// addressedConn is a connection with itself as address.
type addressedConn struct{ net.Conn }

func (c *addressedConn) RemoteAddr() net.Addr { return c }
func (c *addressedConn) Network() string      { return "unix" }
func (c *addressedConn) String() string       { return "@" }
