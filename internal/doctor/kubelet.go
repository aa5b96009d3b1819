package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/podgauge/podgauge/internal/text"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	resourcesapi "k8s.io/kubelet/pkg/apis/podresources/v1"
)

const (
	// maxResponseBytes suits nodes with many pods. The daemon beside needs the
	// container's memory.
	maxResponseBytes = 8 << 20
	// socketPrefix starts the names of podgauge's sockets.
	socketPrefix = "podgauge-"

	kubeletLogFix = "Read the kubelet's log (journalctl -u kubelet)."

	kubeletDirHint = "set --kubelet-dir to its folder (k0s: /var/lib/k0s/kubelet, microk8s: " +
		"/var/snap/microk8s/common/var/lib/kubelet)."
	// The folder of device plugins does not follow the kubelet's --root-dir.
	pluginDirHint = "set --device-plugin-dir to its folder (/var/lib/kubelet/device-plugins for all values of " +
		"--root-dir)."
)

// checkRegistration checks the folder of device-plugin sockets and the
// kubelet's socket.
func checkRegistration(ctx context.Context, e *examination) Finding {
	if !e.DevicePlugin {
		return skipped("not registered (--device-plugin=false)")
	}
	socket := filepath.Join(e.DevicePluginDir, "kubelet.sock")
	if err := e.dialSocket(ctx, socket); err != nil {
		return e.socketFailure(socket, pluginDirHint, err)
	}
	if f := e.checkFolder(e.DevicePluginDir); f.Status != StatusOK {
		return f
	}
	return e.socketOK(socket, "the kubelet listens")
}

// checkOtherPlugins searches for another plugin of the same GPUs.
func checkOtherPlugins(ctx context.Context, e *examination) Finding {
	entries, err := os.ReadDir(e.DevicePluginDir)
	if err != nil {
		return skipped("the folder of device plugins is unreadable")
	}
	var live []string
	others := 0
	for _, entry := range entries {
		name := entry.Name()
		if entry.Type() != fs.ModeSocket || name == "kubelet.sock" || strings.HasPrefix(name, socketPrefix) {
			continue
		}
		others++
		// of NVIDIA's and GKE's plugins
		nvidia := strings.HasPrefix(name, "nvidia-") || strings.HasPrefix(name, "nvidiaGPU-")
		if nvidia && e.dialSocket(ctx, filepath.Join(e.DevicePluginDir, name)) == nil {
			live = append(live, name)
		}
	}
	switch {
	case len(live) > 0 && !e.DevicePlugin:
		return ok("%s serves the GPUs; podgauge registers none", text.JoinFirst(live))
	case len(live) > 0:
		return failure("%s: another plugin for NVIDIA GPUs is running", text.JoinFirst(live))
	}
	return ok("%s, none of a running NVIDIA plugin", text.Plural(others, "other socket"))
}

func checkPodResources(ctx context.Context, e *examination) Finding {
	socket := filepath.Join(e.KubeletDir, "pod-resources", "kubelet.sock")
	if err := e.dialSocket(ctx, socket); err != nil {
		return e.socketFailure(socket, kubeletDirHint, err)
	}
	kubelet, conn, err := connectPodResources(socket)
	if err != nil {
		return failure("%v", err)
	}
	defer conn.Close() //nolint:errcheck // the list was read
	list, err := kubelet.List(ctx, &resourcesapi.ListPodResourcesRequest{})
	switch status.Code(err) {
	case codes.OK:
		e.pods.Store(list)
		return e.socketOK(socket, fmt.Sprintf("the kubelet lists %s", text.Plural(len(list.GetPodResources()), "pod")))
	case codes.DeadlineExceeded: // of the kubelet's clock
		return e.timedOut()
	case codes.ResourceExhausted:
		return failure("%v", err).
			fixedBy("The kubelet limits all clients on the node to 100 requests per second. Find the client that " +
				"exceeds the limit.")
	default:
		return failure("list pod resources at %s: %v", socket, err)
	}
}

func checkPodsAPI(ctx context.Context, e *examination) Finding {
	socket := filepath.Join(e.KubeletDir, "pods-api", "pods-api.sock")
	switch err := e.dialSocket(ctx, socket); {
	case errors.Is(err, fs.ErrNotExist):
		return skipped("the kubelet is older than 1.37, or its folder pods-api is not mounted")
	case err != nil:
		return warning("%v", err)
	}
	return e.socketOK(socket, "the kubelet listens")
}

func connectPodResources(socket string) (resourcesapi.PodResourcesListerClient, *grpc.ClientConn, error) {
	conn, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDisableServiceConfig(),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxResponseBytes)))
	return resourcesapi.NewPodResourcesListerClient(conn), conn, err
}

// dialSocket connects to a socket and closes the connection.
func (e *examination) dialSocket(ctx context.Context, path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if info.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("%s is not a socket", path)
	}
	conn, err := new(net.Dialer).DialContext(ctx, "unix", path)
	if err != nil {
		return err
	}
	return conn.Close()
}

// socketFailure explains the error of a socket.
func (e *examination) socketFailure(socket, hint string, err error) Finding {
	dir := filepath.Dir(socket)
	f := failure("%v", err)
	switch {
	case e.isContainerDir(dir):
		return notOfNode(dir, StatusFailure)
	case errors.Is(err, fs.ErrNotExist):
		return f.fixedBy("Start the kubelet, or " + hint)
	case errors.Is(err, fs.ErrPermission):
		return f.fixedBy("Run as uid 0; no capability is needed. On SELinux, use a container type that may connect " +
			"(spc_t).")
	case errors.Is(err, syscall.ECONNREFUSED) && slices.Contains(e.mounts, socket):
		return f.fixedBy("Mount the folder, not the socket itself: each kubelet start creates a new socket.")
	case errors.Is(err, syscall.ECONNREFUSED):
		return f.fixedBy("The kubelet that created this socket is not running. Start the kubelet (systemctl status " +
			"kubelet).")
	}
	return f
}

// socketOK warns of a mounted socket.
func (e *examination) socketOK(socket, message string) Finding {
	if slices.Contains(e.mounts, socket) {
		return warning("the socket itself is mounted").
			because("Each kubelet start creates a new socket: the mounted socket fails after the next restart.").
			fixedBy("Mount its folder, " + filepath.Dir(socket) + ".")
	}
	return ok("%s", message)
}
