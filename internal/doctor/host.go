package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

func checkConfig(_ context.Context, r *report) Finding {
	switch {
	case r.ConfigErr != nil:
		return failure(r.ConfigErr.Error(), "podgauge does not start with this file; a running podgauge keeps its settings. The other checks use flags and environment only.",
			"Correct the file. podgauge validate FILE checks it.")
	case r.Config == "":
		return ok("no file: flags and environment only")
	case len(r.UnknownKeys) > 0:
		return warning(joinFirst(r.UnknownKeys), "Unknown keys have no effect. The other settings of the file are used.",
			"Correct the key, or upgrade podgauge if the file needs a newer version.")
	case len(r.Notices) > 0:
		return ok("%s is valid; podgauge validate prints %s", r.Config, plural(len(r.Notices), "note"))
	}
	return ok("%s is valid", r.Config)
}

// checkProcesses checks the sources of process attribution.
func checkProcesses(_ context.Context, r *report) Finding {
	const impact = "nvidia_gpu_container_* needs the folder names there to attribute processes to containers, unless the kubelet has a Pods API."
	if !r.ProcessesVisible {
		return skipped("the node's processes are invisible (hostPID): nvidia_gpu_container_* and nvidia_gpu_unattributed_* are absent")
	}
	entries, err := os.ReadDir(r.PodLogsDir)
	switch {
	case r.isContainerDir(r.PodLogsDir):
		return warning(notOfNode(r.PodLogsDir), impact, hostPathFix(r.PodLogsDir))
	case err != nil:
		return warning(err.Error(), impact, "Run as uid 0; set --pod-logs-dir to the podLogsDir of the kubelet.")
	case len(entries) == 0:
		return warning(r.PodLogsDir+" is empty", impact, "Set --pod-logs-dir to the podLogsDir of the kubelet.")
	}
	return ok("visible; %s is readable", r.PodLogsDir)
}

func checkKernelLog(ctx context.Context, r *report) Finding {
	if r.KernelLog == "" {
		return skipped("not configured (--kernel-log)")
	}
	err, inTime := withTimeout(ctx, r.Timeout, func(context.Context) error { return r.Files.Open(r.KernelLog, unix.O_RDONLY) })
	switch {
	case !inTime:
		err = fmt.Errorf("%s is not open after %v", r.KernelLog, r.Timeout)
	case err == nil:
		return ok("%s is readable", r.KernelLog)
	case errors.Is(err, fs.ErrNotExist):
		return skipped("%s does not exist: Xids come from NVML only", r.KernelLog)
	}
	return warning(err.Error(), "podgauge misses Xids that NVML does not report.",
		"Run as uid 0 with the device; with kernel.dmesg_restrict=1 also with the capability SYSLOG. --kernel-log= disables this source.")
}

func checkState(_ context.Context, r *report) Finding {
	const impact = "A restart of podgauge loses health and incidents."
	switch {
	case r.StateDir == "":
		return skipped("no --state-dir: a restart of podgauge loses health and incidents")
	case r.isContainerDir(r.StateDir):
		return warning(r.StateDir+" belongs to the container and is removed with it", impact, hostPathFix(r.StateDir))
	}
	return r.checkFolder(r.StateDir, impact)
}

func checkCDI(_ context.Context, r *report) Finding {
	const impact = "Containers with a GPU do not start without CDI specs (--device-list-strategy)."
	switch {
	case r.CDIDir == "":
		return skipped("no device list strategy uses CDI")
	case r.isContainerDir(r.CDIDir):
		return failure(notOfNode(r.CDIDir), impact, hostPathFix(r.CDIDir))
	}
	return r.checkFolder(r.CDIDir, impact)
}

func notOfNode(dir string) string { return dir + " belongs to the container, not to the node" }

func hostPathFix(dir string) string {
	return fmt.Sprintf("Mount the folder of the node at %s (hostPath).", dir)
}

// checkFolder checks that podgauge can write to a folder, or create it.
func (r *report) checkFolder(dir, impact string) Finding {
	existing := resolveExisting(dir)
	info, err := os.Stat(existing)
	switch {
	case err != nil:
		return failure(err.Error(), impact, "Give this process access to the folder.")
	case !info.IsDir():
		return failure(existing+" is not a folder", impact, "Set another folder, or remove the file.")
	}
	if err := r.Files.CheckWritable(existing); err != nil {
		return failure(fmt.Sprintf("%v (%s)", err, modeAndUID(info)), impact, "Run as uid 0, and mount the folder without readOnly.")
	}
	return ok("%s is writable", dir)
}

// modeAndUID returns permissions and owner of a file.
func modeAndUID(info fs.FileInfo) string {
	text := info.Mode().Perm().String()
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		text += fmt.Sprintf(", uid %d", stat.Uid)
	}
	return text
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
