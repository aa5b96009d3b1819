package nodes

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	"github.com/podgauge/podgauge/internal/web/api"
	"k8s.io/client-go/kubernetes"
)

// Reporter writes what follows from the state of nodes to the API server. Calls
// for a node come one after the other; calls for different nodes are concurrent.
type Reporter interface {
	// Report writes what follows from a node's newest response, which is
	// read-only. It returns the delay after which it wants to be called without
	// a change; 0: only after a change. An error is a reason to call it again
	// soon.
	Report(ctx context.Context, node string, r *api.NodeResponse) (next time.Duration, err error)
	// Forget drops the state of a node that is gone from the cluster.
	Forget(ctx context.Context, node string) error
}

// Options of Nodes.
type Options struct {
	Kubernetes kubernetes.Interface
	Namespace  string // of podgauge's pods; empty: all
	Selector   string // of podgauge's pods
	Port       int    // 0: the container port named metrics, or 9400
	Scheme     string // http or https
	// HTTP is the client of podgauge's API, as returned by NewHTTPClient.
	HTTP                   *http.Client
	Username, PasswordFile string // empty: no password
	Reporters              []Reporter
	Log                    *slog.Logger
}
