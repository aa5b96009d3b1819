package pods

import (
	"errors"
	"time"
)

// syncLogState is what the log has already: of a kubelet that comes and goes, each is said
// once.
type syncLogState uint8

const (
	loggedNothing    syncLogState = iota
	loggedSynced                  // that the pods are followed
	loggedIncomplete              // that something was not understood
	loggedOutage                  // that they are not followed
)

// startupGracePeriod is how long a kubelet that starts may take before a line is spent on it.
const startupGracePeriod = 10 * time.Second

func (c *Client) logSynced() {
	if c.logged != loggedSynced {
		c.log.Info("the kubelet says which pods it has", "pods", c.cache.pods.Len())
		c.logged = loggedSynced
	}
}

func (c *Client) logIncomplete() {
	if c.logged != loggedIncomplete {
		c.log.Warn("the kubelet said something of a pod that is not understood; what is known of pods may lack something", "err", c.cache.incompleteErr)
		c.logged = loggedIncomplete
	}
}

// logOutage says so of a kubelet that has said which pods it has, or should do so. One
// that never had a Pods API is in order.
func (c *Client) logOutage(err error) {
	switch {
	case c.logged == loggedSynced || c.logged == loggedIncomplete:
		c.log.Info("the kubelet does not say any more which pods it has; the last ones stand for a while", "err", err)
		c.logged = loggedOutage
	case c.logged == loggedNothing && !errors.Is(err, ErrNoPodsAPI) && time.Since(c.startedAt) > startupGracePeriod:
		c.log.Warn("the kubelet does not say which pods it has", "err", err)
		c.logged = loggedOutage
	default:
		c.log.Debug("the kubelet does not say which pods it has", "err", err)
	}
}
