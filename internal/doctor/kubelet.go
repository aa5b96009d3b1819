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

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	resourcesapi "k8s.io/kubelet/pkg/apis/podresources/v1"
	podsapi "k8s.io/kubelet/pkg/apis/pods/v1alpha1"
)

const (
	// maxResponseBytes suits nodes with many pods; the default of gRPC is 4 MiB.
	maxResponseBytes = 64 << 20
	// socketPrefix starts the names of podgauge's sockets.
	socketPrefix = "podgauge-"
	// missingPodUID belongs to no pod: a working API answers NotFound.
	missingPodUID = "podgauge-doctor"

	kubeletDirHint = "set --kubelet-dir to its folder (k0s: /var/lib/k0s/kubelet, microk8s: /var/snap/microk8s/common/var/lib/kubelet)."
	// The folder of device plugins does not follow the kubelet's --root-dir.
	pluginDirHint = "set --device-plugin-dir to its folder (/var/lib/kubelet/device-plugins for all values of --root-dir)."
	notRegistered = "not registered (--device-plugin=false)"
)

// otherPluginPrefixes start the socket names of the plugins of NVIDIA and GKE.
var otherPluginPrefixes = [...]string{"nvidia-", "nvidiaGPU-"}

// checkRegistration checks the folder of device-plugin sockets and the kubelet's socket.
func checkRegistration(ctx context.Context, r *report) Finding {
	const impact = "podgauge cannot register: the kubelet has no devices to allocate."
	if !r.DevicePlugin {
		return skipped(notRegistered)
	}
	socket := filepath.Join(r.DevicePluginDir, "kubelet.sock")
	if err := r.dialSocket(ctx, socket); err != nil {
		return r.socketFailure(socket, pluginDirHint, impact, err)
	}
	if f := r.checkFolder(r.DevicePluginDir, impact); f.Status != StatusOK {
		return f
	}
	return r.socketOK(socket, "the kubelet listens")
}

// checkOtherPlugins searches for another plugin of the same GPUs.
func checkOtherPlugins(ctx context.Context, r *report) Finding {
	entries, err := os.ReadDir(r.DevicePluginDir)
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
		nvidia := slices.ContainsFunc(otherPluginPrefixes[:], func(prefix string) bool { return strings.HasPrefix(name, prefix) })
		if nvidia && r.dialSocket(ctx, filepath.Join(r.DevicePluginDir, name)) == nil {
			live = append(live, name)
		}
	}
	switch {
	case len(live) > 0 && !r.DevicePlugin:
		return ok("%s serves the GPUs; podgauge registers none", joinFirst(live))
	case len(live) > 0:
		return failure(joinFirst(live)+": another plugin for NVIDIA GPUs is running",
			"Two plugins of one resource overwrite each other's device list. With two resources, two pods can get the same GPU.",
			"Remove one plugin from this node: NVIDIA's DaemonSet (GPU operator: devicePlugin.enabled=false), or set --device-plugin=false for podgauge.")
	}
	return ok("%s, none of a running NVIDIA plugin", plural(others, "other socket"))
}

func checkPodResources(ctx context.Context, r *report) Finding {
	const impact = "Metrics have no pod labels: only the kubelet knows which container has which device."
	socket := filepath.Join(r.KubeletDir, "pod-resources", "kubelet.sock")
	if err := r.dialSocket(ctx, socket); err != nil {
		return r.socketFailure(socket, kubeletDirHint, impact, err)
	}
	ctx, cancel := context.WithTimeout(ctx, r.Timeout)
	defer cancel()
	pods := 0
	err := withConn(socket, func(conn *grpc.ClientConn) error {
		list, err := resourcesapi.NewPodResourcesListerClient(conn).List(ctx, &resourcesapi.ListPodResourcesRequest{})
		pods = len(list.GetPodResources())
		return err
	})
	switch status.Code(err) {
	case codes.OK:
		return r.socketOK(socket, fmt.Sprintf("the kubelet lists %s", plural(pods, "pod")))
	case codes.DeadlineExceeded:
		return failure(fmt.Sprintf("no answer to List within %v", r.Timeout), impact, "Read the kubelet's log (journalctl -u kubelet), and check the load of the node.")
	case codes.ResourceExhausted:
		return failure(err.Error(), impact, "The kubelet limits all clients of the node to 100 requests a second: find the client with more requests.")
	}
	return failure(fmt.Sprintf("list pod resources at %s: %v", socket, err), impact, "Read the kubelet's log (journalctl -u kubelet).")
}

func checkPodsAPI(ctx context.Context, r *report) Finding {
	socket := filepath.Join(r.KubeletDir, "pods-api", "pods-api.sock")
	err := r.dialSocket(ctx, socket)
	if errors.Is(err, fs.ErrNotExist) {
		return skipped("the kubelet is older than 1.37, or its folder pods-api is not mounted")
	}
	if err == nil {
		ctx, cancel := context.WithTimeout(ctx, r.Timeout)
		defer cancel()
		err = withConn(socket, func(conn *grpc.ClientConn) error {
			_, err := podsapi.NewPodsClient(conn).GetPod(ctx, &podsapi.GetPodRequest{PodUID: missingPodUID})
			if status.Code(err) == codes.NotFound {
				return nil
			}
			return err
		})
	}
	if err != nil {
		return warning(err.Error(), "Incidents lack the termination of pods; labels and UIDs of pods are absent.",
			"Read the kubelet's log. If the socket denies access, run as uid 0.")
	}
	return r.socketOK(socket, "the kubelet answers")
}

// withConn runs call with a new connection.
func withConn(socket string, call func(*grpc.ClientConn) error) (err error) {
	conn, err := grpc.NewClient("passthrough:///kubelet",
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithAuthority("localhost"),
		grpc.WithDisableServiceConfig(), grpc.WithDisableRetry(),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxResponseBytes)))
	if err != nil {
		return fmt.Errorf("create a client of %s: %w", socket, err)
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	return call(conn)
}

// dialSocket connects to a socket and closes the connection.
func (r *report) dialSocket(ctx context.Context, path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if info.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("%s is not a socket", path)
	}
	ctx, cancel := context.WithTimeout(ctx, r.Timeout)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "unix", path)
	switch {
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w (this process has uid %d, the socket %s)", err, os.Geteuid(), modeAndUID(info))
	case err != nil:
		return err
	}
	return conn.Close()
}

// socketFailure explains the error of a socket.
func (r *report) socketFailure(socket, hint, impact string, err error) Finding {
	dir := filepath.Dir(socket)
	fix := "Read the kubelet's log (journalctl -u kubelet)."
	switch {
	case r.isContainerDir(dir):
		return failure(notOfNode(dir), impact, hostPathFix(dir))
	case errors.Is(err, fs.ErrNotExist):
		fix = "Start the kubelet, or " + hint
	case errors.Is(err, fs.ErrPermission):
		fix = "Run as uid 0; no capability is needed. On SELinux, use a container type that may connect (spc_t)."
	case errors.Is(err, syscall.ECONNREFUSED) && r.mounts.has(socket):
		fix = "The socket itself is mounted, and each kubelet creates a new one: mount its folder."
	case errors.Is(err, syscall.ECONNREFUSED):
		fix = "The kubelet of this socket has ended. Start the kubelet (systemctl status kubelet)."
	}
	return failure(err.Error(), impact, fix)
}

// socketOK warns of a mounted socket.
func (r *report) socketOK(socket, message string) Finding {
	if r.mounts.has(socket) {
		return warning("the socket itself is mounted", "Each kubelet creates a new socket: this one ends at the next restart.", "Mount its folder, "+filepath.Dir(socket)+".")
	}
	return ok("%s", message)
}
