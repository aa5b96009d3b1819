package api

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"time"
)

// route is a path with its parameters.
type route struct {
	params []string
	handle func(n *Node, q Query, now time.Time) response
	source Source
}

// Source returns the published state, and channels of which the next change
// closes one.
type Source func() (Node, []<-chan struct{})

// newest returns the response of the newest state, and channels of which the
// next change of the state closes one. An error is one of the parameters.
func (e *route) newest(r *http.Request) (response, []<-chan struct{}, error) {
	now := time.Now()
	q, err := ParseQuery(r.URL.RawQuery, slices.Concat(e.params, []string{"watch"}), now)
	if err != nil {
		return nil, nil, err
	}
	if IsWatch(r) { // sends all incidents again with each change
		q.Limit = min(q.Limit, DefaultLimit)
	}
	n, changes := e.source()
	return e.handle(&n, q.resolveIndex(n.Statuses), now), changes, nil
}

// IsWatch reports whether the request asks for a stream.
func IsWatch(r *http.Request) bool { return r.URL.Query().Has("watch") }

// encode returns v in JSON as one line.
func encode(v any) ([]byte, error) {
	var body bytes.Buffer
	encoder := json.NewEncoder(&body)
	encoder.SetEscapeHTML(false) // browsers honor Content-Type because of nosniff
	if err := encoder.Encode(v); err != nil {
		return nil, fmt.Errorf("encode response: %w", err)
	}
	return body.Bytes(), nil
}
