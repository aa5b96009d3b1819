package kubelet

import (
	"context"
	"path"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// The limit that PodResources puts on all its clients and methods together, and the Pods API
// as well (pkg/kubelet/apis/podresources/constants.go:27).
const (
	qps   = 100
	burst = 10
)

// rateLimit is the interceptor of pkg/kubelet/apis/grpc/ratelimit.go.
func (l *life) rateLimit(ctx context.Context, request any, method *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	return l.limited(ctx, &l.limit, request, method, handle)
}

func (l *life) limited(ctx context.Context, limit *bucket, request any, method *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	admitted := limit.take(time.Now())
	l.k.update(func() {
		if admitted {
			l.k.calls[path.Base(method.FullMethod)]++
		} else {
			l.k.limited++
		}
	})
	if !admitted {
		return nil, status.Error(codes.ResourceExhausted, "rejected by rate limit")
	}
	return handle(ctx, request)
}

// bucket is a token bucket that a call empties by one and time refills.
type bucket struct {
	mu     sync.Mutex // guards both
	tokens float64
	last   time.Time // when tokens was right
}

func (b *bucket) fill() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.tokens, b.last = burst, time.Now()
}

func (b *bucket) take(now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.tokens = min(burst, b.tokens+qps*now.Sub(b.last).Seconds())
	b.last = now
	if b.tokens < 1 {
		return false
	}
	b.tokens--
	return true
}
