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
	socket, err := c.findSocket()
	if err != nil {
		c.recordFailure(fmt.Errorf("%w: %w", ErrNoPodsAPI, err))
		return retry.Aligned(socketPollInterval)
	}
	begin := time.Now()
	err = c.follow(ctx, socket)
	if ctx.Err() != nil || errors.Is(err, errRenew) {
		return 0
	}
	if c.cache.pods.Synced && time.Since(begin) > maxBackoff {
		c.backoff.Reset()
	}
	c.recordFailure(err)
	return c.backoff.Next()
}

// findSocket returns the kubelet's socket, or the fallback if the kubelet has
// none.
func (c *Client) findSocket() (string, error) {
	_, err := os.Stat(c.socket)
	if err == nil || c.options.FallbackSocket == "" {
		return c.socket, err
	}
	_, err = os.Stat(c.options.FallbackSocket)
	return c.options.FallbackSocket, err
}
