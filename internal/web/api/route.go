package api

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/podgauge/podgauge/internal/pubsub"
	"github.com/podgauge/podgauge/internal/retry"
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

const (
	// minLineInterval limits the lines of a stream: Xids change counts hundreds of
	// times a second.
	minLineInterval = 200 * time.Millisecond
	// maxLineInterval is the longest silence of a stream. A client that receives no
	// line for longer knows that the node hangs.
	maxLineInterval = 15 * time.Second
	// lineTimeout limits the time for which a client that does not read keeps a
	// line in memory.
	lineTimeout = 20 * time.Second
)

// stream writes responses, one per line: the newest now, and again after changes
// and after maxLineInterval, until the client or the server ends the request. A
// line is the whole state, so a client that reads slowly skips states.
func (e *route) stream(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/x-ndjson")
	if r.Method == http.MethodHead {
		return
	}
	conn := http.NewResponseController(w)
	// After the server's ReadTimeout, the request would end.
	conn.SetReadDeadline(time.Time{}) //nolint:errcheck // only connections of tests lack deadlines
	var sent [sha256.Size]byte
	var sentAt time.Time
	for r.Context().Err() == nil {
		newest, changes, err := e.newest(r)
		if err != nil {
			return // the parameters were valid before
		}
		state, err := encode(newest.withoutTimes())
		if sum := sha256.Sum256(state); err == nil && (sum != sent || time.Since(sentAt) >= maxLineInterval) {
			sent, sentAt = sum, time.Now()
			err = writeLine(w, conn, newest)
		}
		if err != nil {
			return
		}
		retry.Sleep(r.Context(), minLineInterval) //nolint:errcheck // the loop ends
		ctx, cancel := context.WithDeadline(r.Context(), sentAt.Add(maxLineInterval))
		pubsub.Wait(ctx, changes...)
		cancel()
	}
}

// writeLine writes a line within lineTimeout.
func writeLine(w http.ResponseWriter, conn *http.ResponseController, v any) error {
	line, err := encode(v)
	if err != nil {
		return err
	}
	conn.SetWriteDeadline(time.Now().Add(lineTimeout)) //nolint:errcheck // only connections of tests lack deadlines
	if _, err := w.Write(line); err != nil {
		return err
	}
	return conn.Flush()
}
