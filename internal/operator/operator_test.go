package operator_test

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/operator"
	"github.com/podgauge/podgauge/test/helpers/program"
	"github.com/podgauge/podgauge/test/helpers/require"
)

// FuzzParseRequest checks that an accepted request has an action, a
// name, and a reason that can be printed and stored.
func FuzzParseRequest(f *testing.F) {
	for _, seed := range []string{
		`{"action":"retire","device":"0","reason":"fan"}`, `{"action":"trust","device":"GPU-1"}`, `{"action":"release"}`,
		`{"action":"trust","device":"\ud800"}`, "{", "null", "[1]",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		r, err := operator.ParseRequest(bytes.NewReader(content))
		if err != nil {
			if strings.ContainsAny(err.Error(), "\n\r\x1b") {
				t.Errorf("error with control characters: got %q", err)
			}
			return
		}
		if r.Action == operator.Release || r.Action == operator.Resume {
			return
		}
		hasReason := r.Reason != ""
		if r.Device == "" || len(r.Device) > 128 || len(r.Reason) > 256 || (r.Action == operator.Retire) != hasReason {
			t.Errorf("got %+v", r)
		}
		encoded, err := json.Marshal(device.Retirement{Note: r.Reason})
		var stored device.Retirement
		if err != nil || json.Unmarshal(encoded, &stored) != nil || stored.Note != r.Reason {
			t.Errorf("stored reason: got %[2]q, want %[1]q", r.Reason, stored.Note)
		}
	})
}

// TestTakeOverRejected checks that an older process without a hand-over costs a log line with the reason.
func TestTakeOverRejected(t *testing.T) {
	dir := program.ShortDir(t)
	l, err := net.Listen("unix", filepath.Join(dir, operator.SocketName))
	require.NoError(t, err)
	older := &http.Server{Handler: http.NotFoundHandler()}
	go older.Serve(l)
	defer older.Close()
	var log bytes.Buffer
	conn := operator.TakeOver(dir, slog.New(slog.NewTextHandler(&log, nil)))
	if conn == nil || conn.Close() != nil || !strings.Contains(log.String(), `err="404 Not Found"`) {
		t.Errorf("got connection %v, log %s", conn, log.String())
	}
}
