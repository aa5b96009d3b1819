package podresources

// NewWithDial returns a client of a kubelet in a bubble of testing/synctest, where
// sockets would stop the time.
var NewWithDial = newClient

// Close closes the connection of a client without Run.
func (c *Client) Close() error { return c.kubelet.conn.Close() }
