package kubelet

import (
	"context"
	"fmt"
	"path"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
	podsapi "k8s.io/kubelet/pkg/apis/pods/v1alpha1"
)

// kubeletProcess is a process of the kubelet. The state ends with the process,
// except for the checkpoint file.
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

// serve serves a socket until the process ends. The server stops without
// waiting for calls, like a kubelet, and ends after the handlers.
func (kp *kubeletProcess) serve(socket string, register func(*grpc.Server)) error {
	listener, err := listenUnix(socket)
	if err != nil {
		return fmt.Errorf("serve %s: %w", socket, err)
	}
	count := func(method string) { kp.update(func() { kp.calls[path.Base(method)]++ }) }
	server := grpc.NewServer(grpc.WaitForHandlers(true),
		grpc.UnaryInterceptor(func(
			ctx context.Context, request any, call *grpc.UnaryServerInfo, handle grpc.UnaryHandler,
		) (any, error) {
			count(call.FullMethod)
			return handle(ctx, request)
		}),
		grpc.StreamInterceptor(func(
			server any, stream grpc.ServerStream, call *grpc.StreamServerInfo, handle grpc.StreamHandler,
		) error {
			count(call.FullMethod)
			return handle(server, stream)
		}))
	register(server)
	kp.tasks.Go(func() error {
		defer context.AfterFunc(kp.ctx, server.Stop)()
		if err := server.Serve(listener); err != nil && kp.ctx.Err() == nil {
			return fmt.Errorf("serve %s: %w", socket, err)
		}
		return nil
	})
	return nil
}

// crash ends Run with an error. mu is held.
func (kp *kubeletProcess) crash(err error) error {
	kp.tasks.Go(func() error { return err })
	<-kp.ctx.Done() // before the caller returns: err must not become the pod's status
	return err
}
