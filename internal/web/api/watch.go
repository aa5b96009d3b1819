package api

import (
	"context"
	"crypto/sha256"
	"net/http"
	"time"

	"github.com/podgauge/podgauge/internal/pubsub"
	"github.com/podgauge/podgauge/internal/retry"
)

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
