package kubelet

import (
	"context"
	"errors"
	"os"
	"path/filepath"
)

// Trouble is what goes wrong with a Kubelet, as long as it is set. The zero value is a kubelet
// in good health. A channel holds something up until its owner closes it; one that is nil holds
// nothing up.
type Trouble struct {
	// Register is the answer to registrations. An error without a gRPC status becomes code
	// Unknown, like the kubelet's own.
	Register error
	// HoldRegister holds up registrations that come in.
	HoldRegister <-chan struct{}

	// List is the answer to List.
	List error
	// HoldList holds up the answers to List.
	HoldList <-chan struct{}
	// Get is the answer to Get: that of a kubelet that does not know it, say.
	Get error
	// ListBytes is the size to which the answers to List are padded, with a pod "padding".
	ListBytes int

	// Pods is the answer of the Pods API to any question.
	Pods error

	// The rest is for starts to come. HoldListen holds one up where the registration socket is
	// bound and does not listen yet: connections to it are refused.
	HoldListen <-chan struct{}
	// HoldStatic holds it up where the node's pods are not known yet: List is empty.
	HoldStatic <-chan struct{}
	// HoldRest holds it up where the static pods are known, and the API server's are not: the API
	// server is away. Static pods come and go as ever, and nothing is freed.
	HoldRest <-chan struct{}
}

// Trouble sets what goes wrong from now on, in place of what went wrong before.
func (k *Kubelet) Trouble(t Trouble) { k.update(func() { k.trouble = t }) }

func (k *Kubelet) troubles() Trouble {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.trouble
}

// pass waits until a hold is released; nil is no hold.
func pass(ctx context.Context, hold <-chan struct{}) error {
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
	if k.life == nil {
		return
	}
	for _, c := range k.life.conns {
		if c.resource == resource {
			c.cut()
		}
	}
}

// WipeSockets removes every file of the socket folder but the kubelet's own: what somebody does
// who cleans up in the wrong place.
func (k *Kubelet) WipeSockets() error {
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
