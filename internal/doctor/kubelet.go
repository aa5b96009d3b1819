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

// mostAnswerBytes is for nodes with many pods; gRPC's own limit is 4 MiB.
const mostAnswerBytes = 64 << 20

// nobody is a pod that there is not. To ask for it is to hear that the kubelet knows the
// question.
const nobody = "podgauge-doctor"

// Where the kubelet's folders are. That of the plugins does not follow its --root-dir.
const (
	kubeletDirNamed = "--kubelet-dir names its folder (k0s has /var/lib/k0s/kubelet, microk8s /var/snap/microk8s/common/var/lib/kubelet)."
	pluginDirNamed  = "--device-plugin-dir names its folder (/var/lib/kubelet/device-plugins, whatever its --root-dir)."
)

// resources are what PodResources answers.
type resources struct {
	pods        int
	age         time.Duration // of the socket, which each kubelet makes anew
	allocatable map[string][]string
	countErr    error // of the question for what is allocatable
	getErr      error
	err         error // no answer at all
}

func (e *examination) podResourcesSocket() string {
	return filepath.Join(e.KubeletDir, "pod-resources", "kubelet.sock")
}

// askKubelet asks each question once: the kubelet counts them.
func (e *examination) askKubelet(ctx context.Context) {
	k := &e.kubelet
	socket := e.podResourcesSocket()
	if k.age, k.err = e.reach(ctx, socket); k.err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, e.Patience)
	defer cancel()
	k.err = asked(socket, func(conn *grpc.ClientConn) error {
		client := resourcesapi.NewPodResourcesListerClient(conn)
		// List is what podgauge lives on, and so what has to be seen to work; one more is nothing
		// beside those of the exporters.
		list, err := client.List(ctx, &resourcesapi.ListPodResourcesRequest{})
		if err != nil {
			return fmt.Errorf("list pod resources at %s: %w", socket, err)
		}
		k.pods = len(list.GetPodResources())
		_, k.getErr = client.Get(ctx, &resourcesapi.GetPodResourcesRequest{PodNamespace: nobody, PodName: nobody})
		free, err := client.GetAllocatableResources(ctx, &resourcesapi.AllocatableResourcesRequest{})
		k.countErr = err
		k.allocatable = map[string][]string{}
		for _, d := range free.GetDevices() {
			k.allocatable[d.GetResourceName()] = append(k.allocatable[d.GetResourceName()], d.GetDeviceIds()...)
		}
		return nil
	})
}

// asked asks over a connection of its own.
func asked(socket string, ask func(*grpc.ClientConn) error) (err error) {
	conn, err := grpc.NewClient("passthrough:///kubelet",
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithAuthority("localhost"),
		grpc.WithDisableServiceConfig(), grpc.WithDisableRetry(),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(mostAnswerBytes)))
	if err != nil {
		return fmt.Errorf("make a client of %s: %w", socket, err)
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	return ask(conn)
}

// reach connects to a socket and says nothing there. The age is the socket's.
func (e *examination) reach(ctx context.Context, path string) (age time.Duration, err error) {
	info, err := os.Stat(path)
	if err != nil {
		return 0, err
	}
	if info.Mode().Type() != fs.ModeSocket {
		return 0, fmt.Errorf("%s is no socket", path)
	}
	ctx, cancel := context.WithTimeout(ctx, e.Patience)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "unix", path)
	if err != nil {
		if errors.Is(err, fs.ErrPermission) {
			return 0, fmt.Errorf("%w (this process is of uid %d, the socket %s)", err, os.Geteuid(), owner(info))
		}
		return 0, err
	}
	return max(0, e.Now().Sub(info.ModTime())), conn.Close()
}

// owner is who may do what with a file.
func owner(info fs.FileInfo) string {
	text := info.Mode().Perm().String()
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		text += fmt.Sprintf(" of uid %d", stat.Uid)
	}
	return text
}

// unreachable says what a socket's error is a sign of.
func (e *examination) unreachable(socket, named, why string, err error) Finding {
	dir := filepath.Dir(socket)
	mend := "Look into the kubelet's log (journalctl -u kubelet)."
	switch {
	case e.ownFolder(dir):
		return failure(dir+" is the container's own folder, and not the node's", why,
			fmt.Sprintf("Mount the node's with a hostPath volume at %s.", dir))
	case errors.Is(err, fs.ErrNotExist):
		mend = "See that the kubelet runs, and that " + named
	case errors.Is(err, fs.ErrPermission):
		mend = "Run as uid 0; no capability is needed for it. On SELinux, the container's type must be one that may connect (spc_t)."
	case errors.Is(err, syscall.ECONNREFUSED):
		mend = "The kubelet that made it is gone. Start it (systemctl status kubelet)."
		if e.mounts.has(socket) {
			mend = "The socket itself is mounted, and each kubelet makes another one: mount its folder."
		}
	}
	return failure(err.Error(), why, mend)
}

// devicePlugins looks at the folder in which our sockets would be.
func devicePlugins(_ context.Context, e *examination) Finding {
	dir := e.DevicePluginDir
	const why = "A device plugin is a socket in this folder: without it the kubelet is offered nothing."
	if !e.Offers {
		return skipped("the devices are not offered (--device-plugin=false)")
	}
	info, err := os.Stat(dir)
	switch {
	case e.ownFolder(dir):
		return failure(dir+" is the container's own folder, and not the node's", why, fmt.Sprintf("Mount the node's with a hostPath volume at %s.", dir))
	case err != nil:
		return failure(err.Error(), why, "The kubelet makes it when it starts: see that it runs, and that "+pluginDirNamed)
	case !info.IsDir():
		return failure(dir+" is no folder", why, "Let --device-plugin-dir name the kubelet's folder.")
	}
	if err := e.Files.Access(dir, unix.W_OK|unix.X_OK); err != nil {
		return failure(err.Error()+" ("+owner(info)+")", why, "Run as uid 0, and mount the folder without readOnly.")
	}
	return ok("%s can be written to", dir)
}

func registration(ctx context.Context, e *examination) Finding {
	if !e.Offers {
		return skipped("the devices are not offered (--device-plugin=false)")
	}
	socket := filepath.Join(e.DevicePluginDir, "kubelet.sock")
	age, err := e.reach(ctx, socket)
	if err != nil {
		return e.unreachable(socket, pluginDirNamed, "The kubelet takes no registration: it is offered nothing.", err)
	}
	return e.living(socket, fmt.Sprintf("the kubelet listens, for %s", rounded(age)))
}

// living is for a socket behind which somebody is, now.
func (e *examination) living(socket, found string) Finding {
	if e.mounts.has(socket) {
		return warning("the socket itself is mounted", "Each kubelet makes another one: after its next restart this one is dead.", "Mount its folder, "+filepath.Dir(socket)+".")
	}
	return ok("%s", found)
}

func podResources(_ context.Context, e *examination) Finding {
	k := e.kubelet
	const why = "Nobody else on the node knows which container has which device: metrics have no pods."
	socket := e.podResourcesSocket()
	switch code := status.Code(k.err); {
	case k.err == nil:
	case code == codes.DeadlineExceeded:
		return failure(fmt.Sprintf("List is not answered within %v", e.Patience), why, "The kubelet hangs. Look into its log (journalctl -u kubelet), and at the load of the node.")
	case code == codes.ResourceExhausted:
		return failure(k.err.Error(), why, "The kubelet answers 100 questions a second, for all who ask on the node: find who asks so often.")
	default:
		return e.unreachable(socket, kubeletDirNamed, why, k.err)
	}
	if status.Code(k.getErr) == codes.Unimplemented {
		return warning("the kubelet is older than 1.27", "podgauge is not tested with it.", "Upgrade the node.")
	}
	return e.living(socket, fmt.Sprintf("List has %s; the kubelet is %s, and up for %s", number(k.pods, "pod"), k.version(), rounded(k.age)))
}

// version is what can be told of it: 1.34 answers Get, and 1.27 knows that there is such a
// question.
func (k resources) version() string {
	if k.getErr != nil && strings.Contains(k.getErr.Error(), "disabled") {
		return "1.27 to 1.33"
	}
	return "1.34 or newer"
}

func podsAPI(ctx context.Context, e *examination) Finding {
	socket := filepath.Join(e.KubeletDir, "pods-api", "pods-api.sock")
	_, err := e.reach(ctx, socket)
	if errors.Is(err, fs.ErrNotExist) {
		return skipped("not there: the kubelet is older than 1.37, or its folder pods-api is not mounted")
	}
	if err == nil {
		ctx, cancel := context.WithTimeout(ctx, e.Patience)
		defer cancel()
		err = asked(socket, func(conn *grpc.ClientConn) error {
			_, err := podsapi.NewPodsClient(conn).GetPod(ctx, &podsapi.GetPodRequest{PodUID: nobody})
			if status.Code(err) == codes.NotFound {
				return nil
			}
			return err
		})
	}
	if err != nil {
		return warning(err.Error(), "Incidents do not say how pods ended, and pods' labels and UIDs are not shown.", "Look into the kubelet's log; where the socket is refused, run as uid 0.")
	}
	return e.living(socket, "the kubelet answers; it is 1.37 or newer, or 1.36 with the gate PodsAPI")
}

// rounded is a time as people say it.
func rounded(d time.Duration) string {
	const day = 24 * time.Hour
	for _, u := range []struct {
		unit time.Duration
		name string
	}{{day, "day"}, {time.Hour, "hour"}, {time.Minute, "minute"}} {
		if d >= 2*u.unit {
			return number(int(d/u.unit), u.name)
		}
	}
	return number(int(max(d/time.Second, 1)), "second")
}
