package nodes

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"github.com/podgauge/podgauge/internal/loglimit"
	"github.com/podgauge/podgauge/internal/pubsub"
	"github.com/podgauge/podgauge/internal/retry"
	"github.com/podgauge/podgauge/internal/web/api"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

const (
	minBackoff, maxBackoff = 500 * time.Millisecond, 10 * time.Second
	// rejectedDelay is the delay after a rejected request.
	rejectedDelay = 30 * time.Second
	// changeInterval collects changes, and limits the calls of a Reporter.
	changeInterval = 100 * time.Millisecond
)

// IsRejected reports whether the API server rejects a request as such: a
// repetition soon will not help. Admission webhooks choose the status of a
// rejection.
func IsRejected(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false
	}
	switch code := status.Status().Code; code {
	case http.StatusUnauthorized, http.StatusRequestTimeout, http.StatusConflict, http.StatusTooManyRequests:
		return false
	default:
		return code/100 == 4
	}
}

// report calls a Reporter for a node until ctx is done, or the node is gone and
// forgotten.
func (e *entry) report(ctx context.Context, r Reporter, outages *outages) {
	backoff := retry.Backoff{Min: minBackoff, Max: maxBackoff}
	for ctx.Err() == nil {
		s, changed := e.state.Get()
		next, err := time.Duration(0), error(nil)
		switch {
		case s.gone:
			err = r.Forget(ctx, e.name)
		case s.response != nil:
			next, err = r.Report(ctx, e.name, s.response)
		}
		if ctx.Err() != nil || s.gone && err == nil {
			return
		}
		if err != nil {
			_ = retry.Sleep(ctx, outages.failed(e.name, err, &backoff))
			continue
		}
		backoff.Reset()
		var due <-chan time.Time
		if next > 0 && s.reachable { // nothing is known about an unreachable node
			due = time.After(next)
		}
		select {
		case <-ctx.Done():
		case <-changed:
			_ = retry.Sleep(ctx, changeInterval)
		case <-due:
		}
	}
}

// outages limits the messages about the API server.
type outages struct {
	*loglimit.Limiter[string]
	log *slog.Logger
}

// failed logs the failure of a Reporter, and returns the delay before the next
// call. An outage of the API server fails for all nodes at once, so the limit
// of messages is by cause.
func (o *outages) failed(node string, err error, b *retry.Backoff) time.Duration {
	if o.Allow(string(apierrors.ReasonForError(err)), time.Now()) {
		o.log.Warn("cannot report to the API server", "node", node, "err", err)
	}
	if IsRejected(err) {
		return retry.Spread(rejectedDelay)
	}
	return retry.Spread(b.Next())
}

// state is what is known about a node.
type state struct {
	response  *api.NodeResponse // newest; nil: unknown
	reachable bool              // the response is current
	gone      bool              // from the cluster; it stays so
}

// entry is a node with a pod of podgauge now or lately.
type entry struct {
	name  string
	state pubsub.Value[state]
	// done is closed when all Reporters have forgotten the node.
	done chan struct{}

	// The two below belong to Run's goroutine.
	target target
	stop   func() // ends the follower of target
}
