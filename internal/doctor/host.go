package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/podgauge/podgauge/internal/text"
	"golang.org/x/sys/unix"
)

func checkConfig(_ context.Context, r *report) Finding {
	switch {
	case r.ConfigErr != nil:
		return failure(r.ConfigErr.Error(), "Correct the file, and check it with podgauge validate FILE.")
	case r.Config == "":
		return ok("no file: flags and environment only")
	case len(r.UnknownKeys) > 0:
		return warning(text.JoinFirst(r.UnknownKeys), "Correct the key, or upgrade podgauge if the file needs a newer version.").
			because("Unknown keys have no effect. The other settings of the file are used.")
	}
	return ok("%s is valid", r.Config)
}

// checkProcesses checks the sources of process attribution.
func checkProcesses(_ context.Context, r *report) Finding {
	if !r.ProcessesVisible {
		return skipped("the node's processes are not visible (hostPID): nvidia_gpu_container_* and nvidia_gpu_unattributed_* are absent")
	}
	entries, err := os.ReadDir(r.PodLogsDir)
	switch {
	case r.isContainerDir(r.PodLogsDir):
		return warning(notOfNode(r.PodLogsDir), hostPathFix(r.PodLogsDir))
	case err != nil:
		return warning(err.Error(), "Run as uid 0; set --pod-logs-dir to the podLogsDir of the kubelet.")
	case len(entries) == 0:
		return warning(r.PodLogsDir+" is empty", "Set --pod-logs-dir to the podLogsDir of the kubelet.")
	}
	return ok("visible; %s is readable", r.PodLogsDir)
}

func checkKernelLog(_ context.Context, r *report) Finding {
	if r.KernelLog == "" {
		return skipped("not configured (--kernel-log)")
	}
	switch err := r.Files.Open(r.KernelLog, unix.O_RDONLY); {
	case err == nil:
		return ok("%s is readable", r.KernelLog)
	case errors.Is(err, fs.ErrNotExist):
		return skipped("%s does not exist: podgauge receives Xids from NVML only", r.KernelLog)
	default:
		return warning(err.Error(), "Run as uid 0 with access to the device. With kernel.dmesg_restrict=1, add the capability SYSLOG. To disable this source, set --kernel-log=.")
	}
}

func checkState(_ context.Context, r *report) Finding {
	switch {
	case r.StateDir == "":
		return skipped("no --state-dir: a restart of podgauge loses health and incidents")
	case r.isContainerDir(r.StateDir):
		return warning(r.StateDir+" belongs to the container and is removed with it", hostPathFix(r.StateDir))
	}
	return r.checkFolder(r.StateDir)
}

func checkCDI(_ context.Context, r *report) Finding {
	switch {
	case r.CDIDir == "":
		return skipped("no device list strategy uses CDI")
	case r.isContainerDir(r.CDIDir):
		return failure(notOfNode(r.CDIDir), hostPathFix(r.CDIDir))
	}
	return r.checkFolder(r.CDIDir)
}

func notOfNode(dir string) string { return dir + " belongs to the container, not to the node" }

func hostPathFix(dir string) string {
	return fmt.Sprintf("Mount the folder of the node at %s (hostPath).", dir)
}

// checkFolder checks that podgauge can write to a folder, or create it.
func (r *report) checkFolder(dir string) Finding {
	existing := resolveExisting(dir)
	info, err := os.Stat(existing)
	switch {
	case err != nil:
		return failure(err.Error(), "Give this process access to the folder.")
	case !info.IsDir():
		return failure(existing+" is not a folder", "Set another folder, or remove the file.")
	}
	if err := r.Files.CheckWritable(existing); err != nil {
		return failure(err.Error(), "Run as uid 0, and mount the folder without readOnly.")
	}
	return ok("%s is writable", dir)
}

// hostFiles is the NodeFiles of this machine.
type hostFiles struct{}

func (hostFiles) Open(path string, flags int) error {
	fd, err := unix.Open(path, flags|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd) //nolint:errcheck // read only
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err == nil && stat.Mode&unix.S_IFMT != unix.S_IFCHR {
		return fmt.Errorf("%s is not a device node", path)
	}
	return nil
}

func (hostFiles) CheckWritable(dir string) error {
	if err := unix.Access(dir, unix.W_OK|unix.X_OK); err != nil {
		return &os.PathError{Op: "access", Path: dir, Err: err}
	}
	return nil
}

// mountinfoUnescaper decodes the octal escapes of mountinfo.
var mountinfoUnescaper = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

// readMounts returns the mount points of this process from mountinfo (proc_pid_mountinfo(5)). An unreadable file returns nil.
func readMounts(proc string) (points []string) {
	text, err := os.ReadFile(filepath.Join(proc, "self", "mountinfo"))
	if err != nil {
		return nil
	}
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) > 4 {
			points = append(points, mountinfoUnescaper.Replace(fields[4]))
		}
	}
	return points
}

// inContainer reports whether this process runs in a container: the kubelet mounts a termination log, other engines set a variable.
func (r *report) inContainer() bool {
	kubernetes, _ := r.LookupEnv("KUBERNETES_SERVICE_HOST")
	engine, _ := r.LookupEnv("container")
	return slices.Contains(r.mounts, "/dev/termination-log") || kubernetes != "" || engine != ""
}

// isContainerDir reports whether a folder belongs to the container: only the container's root is mounted above it.
func (r *report) isContainerDir(path string) bool {
	path = resolveExisting(path) + "/"
	mounted := slices.ContainsFunc(r.mounts, func(point string) bool { return point != "/" && strings.HasPrefix(path, point+"/") })
	return r.inContainer() && slices.Contains(r.mounts, "/") && !mounted
}

// resolveExisting returns the path or the nearest existing parent, without links.
func resolveExisting(path string) string {
	for {
		resolved, err := filepath.EvalSymlinks(path)
		if err == nil {
			return resolved
		}
		parent := filepath.Dir(path)
		if parent == path {
			return path
		}
		path = parent
	}
}
