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
	maxQPS   = 100
	maxBurst = 10
)

// rateLimit is the interceptor of pkg/kubelet/apis/grpc/ratelimit.go.
func (kp *kubeletProcess) rateLimit(ctx context.Context, request any, method *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	return kp.limitCall(ctx, &kp.limiter, request, method, handle)
}

func (kp *kubeletProcess) limitCall(ctx context.Context, limit *tokenBucket, request any, method *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	admitted := limit.take(time.Now())
	kp.k.update(func() {
		if admitted {
			kp.k.calls[path.Base(method.FullMethod)]++
		} else {
			kp.k.rateLimited++
		}
	})
	if !admitted {
		return nil, status.Error(codes.ResourceExhausted, "rejected by rate limit")
	}
	return handle(ctx, request)
}

// tokenBucket is a token bucket that a call empties by one and time refills.
type tokenBucket struct {
	mu         sync.Mutex // guards both
	tokens     float64
	refilledAt time.Time // when tokens was right
}

func (b *tokenBucket) fill() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.tokens, b.refilledAt = maxBurst, time.Now()
}

func (b *tokenBucket) take(now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.tokens = min(maxBurst, b.tokens+maxQPS*now.Sub(b.refilledAt).Seconds())
	b.refilledAt = now
	if b.tokens < 1 {
		return false
	}
	b.tokens--
	return true
}
