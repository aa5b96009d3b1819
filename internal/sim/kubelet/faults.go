package kubelet

import (
	"context"
	"errors"
	"os"
	"path/filepath"
)

// Faults is what goes wrong with a Kubelet, as long as it is set. The zero value is a kubelet
// in good health. A channel holds something up until its owner closes it; one that is nil holds
// nothing up.
type Faults struct {
	// RegisterErr is the answer to registrations. An error without a gRPC status becomes code
	// Unknown, like the kubelet's own.
	RegisterErr error
	// HoldRegister holds up registrations that come in.
	HoldRegister <-chan struct{}

	// ListErr is the answer to List.
	ListErr error
	// HoldList holds up the answers to List.
	HoldList <-chan struct{}
	// GetErr is the answer to Get: that of a kubelet that does not know it, say.
	GetErr error
	// ListBytes is the size to which the answers to List are padded, with a pod "padding".
	ListBytes int

	// PodsErr is the answer of the Pods API to any question.
	PodsErr error

	// The rest is for starts to come. HoldListen holds one up where the registration socket is
	// bound and does not listen yet: connections to it are refused.
	HoldListen <-chan struct{}
	// HoldStaticPods holds it up where the node's pods are not known yet: List is empty.
	HoldStaticPods <-chan struct{}
	// HoldAPIPods holds it up where the static pods are known, and the API server's are not: the API
	// server is away. Static pods come and go as ever, and nothing is freed.
	HoldAPIPods <-chan struct{}
}

// SetFaults sets what goes wrong from now on, in place of what went wrong before.
func (k *Kubelet) SetFaults(t Faults) { k.update(func() { k.faults = t }) }

func (k *Kubelet) currentFaults() Faults {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.faults
}

// waitRelease waits until a hold is released; nil is no hold.
func waitRelease(ctx context.Context, hold <-chan struct{}) error {
	if hold == nil {
		return nil
	}
	select {
	case <-hold:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// CutStreams cuts the connections to a resource's plugins, as if the network between them
// broke.
func (k *Kubelet) CutStreams(resource string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.process == nil {
		return
	}
	for _, c := range k.process.conns {
		if c.resource == resource {
			c.cutConnections()
		}
	}
}

// RemoveSockets removes every file of the socket folder but the kubelet's own: what somebody does
// who cleans up in the wrong place.
func (k *Kubelet) RemoveSockets() error {
	dir := filepath.Dir(k.RegistrationSocket())
	entries, err := os.ReadDir(dir)
	errs := []error{err}
	for _, entry := range entries {
		if path := filepath.Join(dir, entry.Name()); path != k.RegistrationSocket() {
			errs = append(errs, os.RemoveAll(path))
		}
	}
	return errors.Join(errs...)
}
