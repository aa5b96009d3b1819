package pods

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/podgauge/podgauge/internal/retry"
)

const (
	// socketPollInterval is the interval between checks for the socket, if the
	// kubelet has no Pods API. A check costs one stat.
	socketPollInterval = 2 * time.Second
	// maxAPIServerBackoff limits the delay after a failed list or watch: all
	// nodes of a cluster return to the API server at once.
	maxAPIServerBackoff = 10 * time.Second
)

// Run follows the pods until ctx is done.
func (c *Client) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		c.Beat()
		_ = retry.Sleep(ctx, c.runStream(ctx)) // an error ends the loop
	}
	return nil
}

// runStream follows one stream of the kubelet, or of the API server if the
// kubelet has no Pods API, and returns the delay before the next stream.
func (c *Client) runStream(ctx context.Context) (delay time.Duration) {
	follow := c.followKubelet
	c.backoff.Max = maxBackoff
	if _, err := os.Stat(c.socket); err != nil && c.options.APIServer == nil {
		c.recordFailure(fmt.Errorf("%w: %w", ErrNoPodsAPI, err))
		return retry.Aligned(socketPollInterval)
	} else if err != nil {
		follow = c.followAPIServer
		c.backoff.Max = maxAPIServerBackoff
	}
	begin := time.Now()
	err := follow(ctx)
	if ctx.Err() != nil || errors.Is(err, errRenew) {
		return 0
	}
	if c.cache.pods.Synced && time.Since(begin) > maxBackoff {
		c.backoff.Reset()
	}
	if err == nil { // a watch that ends at once must not be renewed without a pause
		return max(0, time.Until(begin.Add(maxBackoff)))
	}
	c.recordFailure(err)
	delay = c.backoff.Next()
	if c.backoff.Max == maxAPIServerBackoff {
		delay = retry.Spread(delay)
	}
	return delay
}
