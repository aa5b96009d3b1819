package kubestatus

import (
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"time"

	"github.com/podgauge/podgauge/internal/kubeapi"
	"github.com/podgauge/podgauge/internal/retry"
)

const (
	minBackoff, maxBackoff = 500 * time.Millisecond, 10 * time.Second
	// rejectedDelay is the delay after a rejected request.
	rejectedDelay = 30 * time.Second
)

// requestState logs begin and end of an outage of the API server, and delays
// the requests between.
type requestState struct {
	log     *slog.Logger
	backoff retry.Backoff
	outage  bool
}

func newRequestState(log *slog.Logger) requestState {
	return requestState{log: log, backoff: retry.Backoff{Min: minBackoff, Max: maxBackoff}}
}

// failed returns the delay after a failed request.
func (s *requestState) failed(err error) time.Duration {
	if !s.outage {
		s.log.Warn("cannot report to the API server", "err", err)
		s.outage = true
	}
	if isRejected(err) {
		return retry.Spread(rejectedDelay)
	}
	return max(retry.Spread(s.backoff.Next()), min(kubeapi.RetryAfter(err), rejectedDelay))
}

func (s *requestState) succeeded() {
	s.backoff.Reset()
	if s.outage {
		s.log.Info("reports to the API server resumed")
		s.outage = false
	}
}

// isRejected reports whether the API server rejects a request as such: a
// repetition soon will not help. Admission webhooks choose the status of a
// rejection.
func isRejected(err error) bool {
	temporary := []int{
		http.StatusUnauthorized, http.StatusRequestTimeout, http.StatusConflict,
		http.StatusTooManyRequests,
	}
	e, ok := errors.AsType[*kubeapi.StatusError](err)
	return ok && e.Code/100 == 4 && !slices.Contains(temporary, e.Code)
}
