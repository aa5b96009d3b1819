package pods

import (
	"errors"
	"time"
)

// said is what the log has already: of a kubelet that comes and goes, each is said
// once.
type said uint8

const (
	nothing  said = iota
	followed      // that the pods are followed
	unsure        // that something was not understood
	lost          // that they are not followed
)

// quietFor is how long a kubelet that starts may take before a line is spent on it.
const quietFor = 10 * time.Second

func (c *Client) sayFollowed() {
	if c.said != followed {
		c.log.Info("the kubelet says which pods it has", "pods", c.known.pods.Len())
		c.said = followed
	}
}

func (c *Client) sayUnsure() {
	if c.said != unsure {
		c.log.Warn("the kubelet said something of a pod that is not understood; what is known of pods may lack something", "err", c.known.doubt)
		c.said = unsure
	}
}

// sayLost says so of a kubelet that has said which pods it has, or should do so. One
// that never had a Pods API is in order.
func (c *Client) sayLost(err error) {
	switch {
	case c.said == followed || c.said == unsure:
		c.log.Info("the kubelet does not say any more which pods it has; the last ones stand for a while", "err", err)
		c.said = lost
	case c.said == nothing && !errors.Is(err, ErrAbsent) && time.Since(c.began) > quietFor:
		c.log.Warn("the kubelet does not say which pods it has", "err", err)
		c.said = lost
	default:
		c.log.Debug("the kubelet does not say which pods it has", "err", err)
	}
}
