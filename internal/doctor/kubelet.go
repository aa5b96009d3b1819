package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	resourcesapi "k8s.io/kubelet/pkg/apis/podresources/v1"
	podsapi "k8s.io/kubelet/pkg/apis/pods/v1alpha1"
)

// maxResponseBytes is for nodes with many pods; gRPC's own limit is 4 MiB.
const maxResponseBytes = 64 << 20

// probePodName is a pod that there is not. To ask for it is to hear that the kubelet knows the
// question.
const probePodName = "podgauge-doctor"

// Where the kubelet's folders are. That of the plugins does not follow its --root-dir.
const (
	kubeletDirHint = "--kubelet-dir names its folder (k0s has /var/lib/k0s/kubelet, microk8s /var/snap/microk8s/common/var/lib/kubelet)."
	pluginDirHint  = "--device-plugin-dir names its folder (/var/lib/kubelet/device-plugins, whatever its --root-dir)."
)

// kubeletFindings are what PodResources answers.
type kubeletFindings struct {
	pods           int
	socketAge      time.Duration // of the socket, which each kubelet makes anew
	allocatable    map[string][]string
	allocatableErr error // of the question for what is allocatable
	getErr         error
	err            error // no answer at all
}

func (r *report) podResourcesSocket() string {
	return filepath.Join(r.KubeletDir, "pod-resources", "kubelet.sock")
}

// queryKubelet asks each question once: the kubelet counts them.
func (r *report) queryKubelet(ctx context.Context) {
	k := &r.kubelet
	socket := r.podResourcesSocket()
	if k.socketAge, k.err = r.dialSocket(ctx, socket); k.err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, r.Timeout)
	defer cancel()
	k.err = withConn(socket, func(conn *grpc.ClientConn) error {
		client := resourcesapi.NewPodResourcesListerClient(conn)
		// List is what podgauge lives on, and so what has to be seen to work; one more is nothing
		// beside those of the exporters.
		list, err := client.List(ctx, &resourcesapi.ListPodResourcesRequest{})
		if err != nil {
			return fmt.Errorf("list pod resources at %s: %w", socket, err)
		}
		k.pods = len(list.GetPodResources())
		_, k.getErr = client.Get(ctx, &resourcesapi.GetPodResourcesRequest{PodNamespace: probePodName, PodName: probePodName})
		free, err := client.GetAllocatableResources(ctx, &resourcesapi.AllocatableResourcesRequest{})
		k.allocatableErr = err
		k.allocatable = map[string][]string{}
		for _, d := range free.GetDevices() {
			k.allocatable[d.GetResourceName()] = append(k.allocatable[d.GetResourceName()], d.GetDeviceIds()...)
		}
		return nil
	})
}

// withConn asks over a connection of its own.
func withConn(socket string, call func(*grpc.ClientConn) error) (err error) {
	conn, err := grpc.NewClient("passthrough:///kubelet",
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithAuthority("localhost"),
		grpc.WithDisableServiceConfig(), grpc.WithDisableRetry(),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxResponseBytes)))
	if err != nil {
		return fmt.Errorf("make a client of %s: %w", socket, err)
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	return call(conn)
}

// dialSocket connects to a socket and says nothing there. The age is the socket's.
func (r *report) dialSocket(ctx context.Context, path string) (age time.Duration, err error) {
	info, err := os.Stat(path)
	if err != nil {
		return 0, err
	}
	if info.Mode().Type() != fs.ModeSocket {
		return 0, fmt.Errorf("%s is no socket", path)
	}
	ctx, cancel := context.WithTimeout(ctx, r.Timeout)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "unix", path)
	if err != nil {
		if errors.Is(err, fs.ErrPermission) {
			return 0, fmt.Errorf("%w (this process is of uid %d, the socket %s)", err, os.Geteuid(), modeAndUID(info))
		}
		return 0, err
	}
	return max(0, r.Now().Sub(info.ModTime())), conn.Close()
}

// modeAndUID is who may do what with a file.
func modeAndUID(info fs.FileInfo) string {
	text := info.Mode().Perm().String()
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		text += fmt.Sprintf(" of uid %d", stat.Uid)
	}
	return text
}

// socketFailure says what a socket's error is a sign of.
func (r *report) socketFailure(socket, hint, impact string, err error) Finding {
	dir := filepath.Dir(socket)
	fix := "Look into the kubelet's log (journalctl -u kubelet)."
	switch {
	case r.isContainerDir(dir):
		return failure(dir+" is the container's own folder, and not the node's", impact,
			fmt.Sprintf("Mount the node's with a hostPath volume at %s.", dir))
	case errors.Is(err, fs.ErrNotExist):
		fix = "See that the kubelet runs, and that " + hint
	case errors.Is(err, fs.ErrPermission):
		fix = "Run as uid 0; no capability is needed for it. On SELinux, the container's type must be one that may connect (spc_t)."
	case errors.Is(err, syscall.ECONNREFUSED):
		fix = "The kubelet that made it is gone. Start it (systemctl status kubelet)."
		if r.mounts.has(socket) {
			fix = "The socket itself is mounted, and each kubelet makes another one: mount its folder."
		}
	}
	return failure(err.Error(), impact, fix)
}

// checkDevicePluginDir looks at the folder in which our sockets would be.
func checkDevicePluginDir(_ context.Context, r *report) Finding {
	dir := r.DevicePluginDir
	const impact = "A device plugin is a socket in this folder: without it the kubelet is offered nothing."
	if !r.DevicePlugin {
		return skipped("the devices are not offered (--device-plugin=false)")
	}
	info, err := os.Stat(dir)
	switch {
	case r.isContainerDir(dir):
		return failure(dir+" is the container's own folder, and not the node's", impact, fmt.Sprintf("Mount the node's with a hostPath volume at %s.", dir))
	case err != nil:
		return failure(err.Error(), impact, "The kubelet makes it when it starts: see that it runs, and that "+pluginDirHint)
	case !info.IsDir():
		return failure(dir+" is no folder", impact, "Let --device-plugin-dir name the kubelet's folder.")
	}
	if err := r.Files.Access(dir, unix.W_OK|unix.X_OK); err != nil {
		return failure(err.Error()+" ("+modeAndUID(info)+")", impact, "Run as uid 0, and mount the folder without readOnly.")
	}
	return ok("%s can be written to", dir)
}

func checkRegistration(ctx context.Context, r *report) Finding {
	if !r.DevicePlugin {
		return skipped("the devices are not offered (--device-plugin=false)")
	}
	socket := filepath.Join(r.DevicePluginDir, "kubelet.sock")
	age, err := r.dialSocket(ctx, socket)
	if err != nil {
		return r.socketFailure(socket, pluginDirHint, "The kubelet takes no registration: it is offered nothing.", err)
	}
	return r.socketOK(socket, fmt.Sprintf("the kubelet listens, for %s", formatAge(age)))
}

// socketOK is for a socket behind which somebody is, now.
func (r *report) socketOK(socket, message string) Finding {
	if r.mounts.has(socket) {
		return warning("the socket itself is mounted", "Each kubelet makes another one: after its next restart this one is dead.", "Mount its folder, "+filepath.Dir(socket)+".")
	}
	return ok("%s", message)
}

func checkPodResources(_ context.Context, r *report) Finding {
	k := r.kubelet
	const impact = "Nobody else on the node knows which container has which device: metrics have no pods."
	socket := r.podResourcesSocket()
	switch code := status.Code(k.err); {
	case k.err == nil:
	case code == codes.DeadlineExceeded:
		return failure(fmt.Sprintf("List is not answered within %v", r.Timeout), impact, "The kubelet hangs. Look into its log (journalctl -u kubelet), and at the load of the node.")
	case code == codes.ResourceExhausted:
		return failure(k.err.Error(), impact, "The kubelet answers 100 questions a second, for all who ask on the node: find who asks so often.")
	default:
		return r.socketFailure(socket, kubeletDirHint, impact, k.err)
	}
	if status.Code(k.getErr) == codes.Unimplemented {
		return warning("the kubelet is older than 1.27", "podgauge is not tested with it.", "Upgrade the node.")
	}
	return r.socketOK(socket, fmt.Sprintf("List has %s; the kubelet is %s, and up for %s", plural(k.pods, "pod"), k.kubeletVersion(), formatAge(k.socketAge)))
}

// kubeletVersion is what can be told of it: 1.34 answers Get, and 1.27 knows that there is such a
// question.
func (k kubeletFindings) kubeletVersion() string {
	if k.getErr != nil && strings.Contains(k.getErr.Error(), "disabled") {
		return "1.27 to 1.33"
	}
	return "1.34 or newer"
}

func checkPodsAPI(ctx context.Context, r *report) Finding {
	socket := filepath.Join(r.KubeletDir, "pods-api", "pods-api.sock")
	_, err := r.dialSocket(ctx, socket)
	if errors.Is(err, fs.ErrNotExist) {
		return skipped("not there: the kubelet is older than 1.37, or its folder pods-api is not mounted")
	}
	if err == nil {
		ctx, cancel := context.WithTimeout(ctx, r.Timeout)
		defer cancel()
		err = withConn(socket, func(conn *grpc.ClientConn) error {
			_, err := podsapi.NewPodsClient(conn).GetPod(ctx, &podsapi.GetPodRequest{PodUID: probePodName})
			if status.Code(err) == codes.NotFound {
				return nil
			}
			return err
		})
	}
	if err != nil {
		return warning(err.Error(), "Incidents do not say how pods ended, and pods' labels and UIDs are not shown.", "Look into the kubelet's log; where the socket is refused, run as uid 0.")
	}
	return r.socketOK(socket, "the kubelet answers; it is 1.37 or newer, or 1.36 with the gate PodsAPI")
}

// formatAge is a time as people say it.
func formatAge(d time.Duration) string {
	const day = 24 * time.Hour
	for _, u := range []struct {
		unit time.Duration
		name string
	}{{day, "day"}, {time.Hour, "hour"}, {time.Minute, "minute"}} {
		if d >= 2*u.unit {
			return plural(int(d/u.unit), u.name)
		}
	}
	return plural(int(max(d/time.Second, 1)), "second")
}
