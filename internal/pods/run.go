package pods

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/podgauge/podgauge/internal/retry"
)

// socketPollInterval is the interval between checks for the socket, if the
// kubelet has no Pods API. A check costs one stat.
const socketPollInterval = 2 * time.Second

// Run follows the pods until ctx is done.
func (c *Client) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		c.Beat()
		_ = retry.Sleep(ctx, c.runStream(ctx)) // an error ends the loop
	}
	return nil
}

// runStream follows one stream, and returns the delay before the next stream.
func (c *Client) runStream(ctx context.Context) (delay time.Duration) {
	if err := c.findSocket(); err != nil {
		c.recordFailure(fmt.Errorf("%w: %w", ErrNoPodsAPI, err))
		return retry.Aligned(socketPollInterval)
	}
	begin := time.Now()
	err := c.follow(ctx)
	if ctx.Err() != nil || errors.Is(err, errRenew) {
		return 0
	}
	if c.cache.pods.Synced && time.Since(begin) > maxBackoff {
		c.backoff.Reset()
	}
	c.recordFailure(err)
	return c.backoff.Next()
}

// findSocket returns an error if neither the kubelet's socket nor the fallback
// exists.
func (c *Client) findSocket() error {
	_, err := os.Stat(c.socket)
	if err != nil && c.options.FallbackSocket != "" {
		_, err = os.Stat(c.options.FallbackSocket)
	}
	return err
}
