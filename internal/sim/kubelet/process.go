package kubelet

import (
	"context"
	"fmt"
	"net"
	"path"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/tap"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
	podsapi "k8s.io/kubelet/pkg/apis/pods/v1alpha1"
)

// kubeletProcess is a process of the kubelet. The state ends with the process, except for the checkpoint file.
type kubeletProcess struct {
	pluginapi.UnimplementedRegistrationServer
	podresources.UnimplementedPodResourcesListerServer
	podsapi.UnimplementedPodsServer

	*nodeState
	dir   string          // of the registration socket and the checkpoint
	tasks *errgroup.Group // owns all goroutines of the process
	ctx   context.Context // done when the process ends; ListAndWatch streams outlive the Register call

	// nodeState.mu guards all below.
	deviceManager
	serving bool            // both the registration and the PodResources socket accept connections
	conns   []*pluginClient // all dialed plugins
}

// serve runs a gRPC server until the process ends. The server stops without waiting for calls, like a kubelet, and returns
// after the handlers.
func (kp *kubeletProcess) serve(listener net.Listener, register func(*grpc.Server)) error {
	server := grpc.NewServer(grpc.WaitForHandlers(true), grpc.InTapHandle(func(ctx context.Context, call *tap.Info) (context.Context, error) {
		kp.update(func() { kp.calls[path.Base(call.FullMethodName)]++ })
		return ctx, nil
	}))
	register(server)
	defer context.AfterFunc(kp.ctx, server.Stop)()
	if err := server.Serve(listener); err != nil && kp.ctx.Err() == nil {
		return fmt.Errorf("serve %s: %w", listener.Addr(), err)
	}
	return nil
}

// cutConnections cuts the connections to the plugins of a resource, or to all plugins if resource is empty. mu is held.
func (kp *kubeletProcess) cutConnections(resource string) {
	for _, c := range kp.conns {
		if resource == "" || c.resource == resource {
			c.cutConnections()
		}
	}
}

// crash ends Run with an error. mu is held.
func (kp *kubeletProcess) crash(err error) error {
	kp.cutConnections("")
	kp.tasks.Go(func() error { return err })
	<-kp.ctx.Done() // before the caller returns: err must not become the pod's status
	return err
}
