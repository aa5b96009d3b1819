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

const folderFix = "Run as uid 0, and mount the folder without readOnly."

func checkConfig(_ context.Context, e *examination) Finding {
	switch {
	case e.ConfigErr != nil:
		return failure("%v", e.ConfigErr)
	case e.RetiredErr != nil:
		return failure("%v", e.RetiredErr).
			because("podgauge keeps the previous list of retired devices.").
			fixedBy("Correct the file's ConfigMap (docs/how-to/retire.md).")
	case e.Config == "":
		return ok("no file: flags and environment only")
	case len(e.UnknownKeys) > 0:
		return warning("%s", text.JoinFirst(e.UnknownKeys)).
			because("Unknown keys have no effect. The other settings of the file are used.").
			fixedBy("Correct the key, or upgrade podgauge if the file needs a newer version.")
	}
	return ok("%s is valid", e.Config)
}

// checkDCGMCounters names what dcgm-exporter's counters file has in vain.
func checkDCGMCounters(_ context.Context, e *examination) Finding {
	problems := e.DCGMCounters.Problems()
	switch {
	case e.DCGMCountersFile == "":
		return ok("no file (--metrics.dcgm-counters)")
	case len(problems) > 0:
		return warning("%s", strings.Join(problems, "; "))
	}
	return ok("%s: each of %s is served", e.DCGMCountersFile, text.Plural(len(e.DCGMCounters.Families), "field"))
}

// checkProcesses checks the sources of process attribution.
func checkProcesses(_ context.Context, e *examination) Finding {
	if !e.ProcessesVisible {
		return skipped("the node's processes are not visible (hostPID): nvidia_gpu_container_* and " +
			"nvidia_gpu_unattributed_* are absent")
	}
	entries, err := os.ReadDir(e.PodLogsDir)
	switch {
	case e.isContainerDir(e.PodLogsDir):
		return notOfNode(e.PodLogsDir, StatusWarning)
	case err != nil:
		return warning("%v", err).fixedBy("Run as uid 0; set --pod-logs-dir to the podLogsDir of the kubelet.")
	case len(entries) == 0:
		return warning("%s is empty", e.PodLogsDir)
	}
	return ok("visible; %s is readable", e.PodLogsDir)
}

func checkKernelLog(_ context.Context, e *examination) Finding {
	if e.KernelLog == "" {
		return skipped("not configured (--kernel-log)")
	}
	switch err := e.Files.Open(e.KernelLog, unix.O_RDONLY); {
	case err == nil:
		return ok("%s is readable", e.KernelLog)
	case errors.Is(err, fs.ErrNotExist):
		return skipped("%s does not exist: podgauge receives Xids from NVML only", e.KernelLog)
	default:
		return warning("%v", err)
	}
}

func checkState(_ context.Context, e *examination) Finding {
	switch {
	case e.StateDir == "":
		return skipped("no --state-dir: a restart of podgauge loses health and incidents")
	case e.isContainerDir(e.StateDir):
		return warning("%s belongs to the container and is removed with it", e.StateDir).
			fixedBy(hostPathFix(e.StateDir))
	}
	return e.checkFolder(e.StateDir)
}

func checkCDI(_ context.Context, e *examination) Finding {
	switch {
	case e.CDIDir == "":
		return skipped("no device list strategy uses CDI")
	case e.isContainerDir(e.CDIDir):
		return notOfNode(e.CDIDir, StatusFailure)
	}
	return e.checkFolder(e.CDIDir)
}

func notOfNode(dir string, status CheckStatus) Finding {
	return Finding{Status: status, Message: dir + " belongs to the container, not to the node", Fix: hostPathFix(dir)}
}

func hostPathFix(dir string) string {
	return fmt.Sprintf("Mount the folder of the node at %s (hostPath).", dir)
}

// checkFolder checks that podgauge can write to a folder, or create it.
func (e *examination) checkFolder(dir string) Finding {
	existing := resolveExisting(dir)
	info, err := os.Stat(existing)
	switch {
	case err != nil:
		return failure("%v", err).fixedBy("Give this process access to the folder.")
	case !info.IsDir():
		return failure("%s is not a folder", existing).fixedBy("Set another folder, or remove the file.")
	}
	if err := e.Files.CheckWritable(existing); err != nil {
		return failure("%v", err).fixedBy(folderFix)
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

// readMounts returns the mount points of this process from mountinfo
// (proc_pid_mountinfo(5)).
func readMounts(proc string) (points []string) {
	text, _ := os.ReadFile(filepath.Join(proc, "self", "mountinfo")) // unreadable: none is known
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) > 4 {
			points = append(points, mountinfoUnescaper.Replace(fields[4]))
		}
	}
	return points
}

// inContainer reports whether this process runs in a container: the kubelet
// mounts a termination log, other engines set a variable.
func (e *examination) inContainer() bool {
	kubernetes, _ := e.LookupEnv("KUBERNETES_SERVICE_HOST")
	engine, _ := e.LookupEnv("container")
	return slices.Contains(e.mounts, "/dev/termination-log") || kubernetes != "" || engine != ""
}

// isContainerDir reports whether a folder belongs to the container: only the
// container's root is mounted above it.
func (e *examination) isContainerDir(path string) bool {
	path = resolveExisting(path) + "/"
	mounted := slices.ContainsFunc(e.mounts, func(point string) bool {
		return point != "/" && strings.HasPrefix(path, point+"/")
	})
	return e.inContainer() && slices.Contains(e.mounts, "/") && !mounted
}

// resolveExisting returns the path or the nearest existing parent, without
// links.
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
