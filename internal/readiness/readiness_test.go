package readiness_test

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/readiness"
	"github.com/podgauge/podgauge/test/bubble"
)

// TestReadinessTimes checks that a check counts at once in a new process, and later only after a time.
func TestReadinessTimes(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var err error
		var log bytes.Buffer
		checks := map[string]func() error{"devices": func() error { return err }}
		r := readiness.New(checks, 5*time.Minute, slog.New(slog.NewTextHandler(&log, nil)))
		missing := errors.New("missing")
		for i, s := range []struct {
			after time.Duration
			err   error
			ready bool
			lines int // of the log
		}{
			{0, missing, false, 0},
			{10 * time.Second, missing, false, 1},
			{time.Hour, missing, false, 1},
			{0, nil, true, 2},
			{time.Second, missing, true, 2},
			{5*time.Minute - time.Second, missing, true, 2},
			{time.Second, missing, false, 3},
			{time.Hour, missing, false, 3},
			{time.Second, nil, true, 4},
			{time.Hour, missing, true, 4},
		} {
			time.Sleep(s.after)
			err = s.err
			got, lines := r.Failures()["devices"], strings.Count(log.String(), "\n")
			if (got == nil) != s.ready || lines != s.lines {
				t.Errorf("step %d: got %v and %d log lines, want ready %t and %d lines\n%s", i, got, lines, s.ready, s.lines, log.String())
			}
		}
	})
}
