// Package conntrack replaces github.com/mwitkow/go-conntrack, a dependency of prometheus/common/config. The functions are the same, without
// metrics and traces. The original imports golang.org/x/net/trace and therefore html/template. Reflection in html/template keeps the linker
// from dropping unused methods: 3.3 MB of the binary (docs/contributing/adr/0014-web-config.md).
package conntrack

import (
	"context"
	"net"
)

// DialContextFunc dials a connection.
type DialContextFunc = func(ctx context.Context, network, address string) (net.Conn, error)

// Option changes the function that dials.
type Option func(DialContextFunc) DialContextFunc

// DialWithDialContextFunc dials with a given function.
func DialWithDialContextFunc(dial DialContextFunc) Option {
	return func(DialContextFunc) DialContextFunc { return dial }
}

// DialWithTracing has no effect: connections have no traces.
func DialWithTracing() Option { return keep }

// DialWithName has no effect: connections have no metrics.
func DialWithName(string) Option { return keep }

func keep(dial DialContextFunc) DialContextFunc { return dial }

// NewDialContextFunc returns a function that dials.
func NewDialContextFunc(options ...Option) DialContextFunc {
	dial := (&net.Dialer{}).DialContext
	for _, option := range options {
		dial = option(dial)
	}
	return dial
}
