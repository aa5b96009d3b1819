package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

func checkConfig(_ context.Context, r *report) Finding {
	switch {
	case r.ConfigErr != nil:
		return failure(r.ConfigErr.Error(), "podgauge does not start with it; one that runs keeps the settings that it has. The other checks are of the flags alone.",
			"Change what is named; podgauge validate FILE tells when it is right.")
	case r.Config == "":
		return ok("none: flags and environment say all")
	case len(r.UnknownKeys) > 0:
		return warning(joinFirst(r.UnknownKeys), "Unknown keys have no effect. The other settings of the file hold.",
			"Correct the key, or upgrade podgauge if the file is written for a newer version.")
	case len(r.Notices) > 0:
		return ok("%s is valid; podgauge validate has %s", r.Config, plural(len(r.Notices), "note"))
	}
	return ok("%s is valid", r.Config)
}

// checkProcesses tells whether containers that share a GPU can be told apart.
func checkProcesses(_ context.Context, r *report) Finding {
	if !r.ProcessesVisible {
		return skipped("the node's cannot be seen (hostPID): nvidia_gpu_container_* and nvidia_gpu_unattributed_* are absent")
	}
	return ok("the node's are seen; %s", cgroupVersion(r.mounts))
}

// cgroupVersion says which version the node has.
func cgroupVersion(mounts mountPoints) string {
	if mounts.has("/sys/fs/cgroup/memory") || mounts.has("/sys/fs/cgroup/devices") {
		return "cgroup v1"
	}
	return "cgroup v2"
}

func checkPodLogs(_ context.Context, r *report) Finding {
	const impact = "Processes are told apart by the folders' names: without them the shares of containers that share a GPU are nobody's, but where the Pods API tells."
	if !r.ProcessesVisible {
		return skipped("not needed without the node's processes")
	}
	entries, err := os.ReadDir(r.PodLogsDir)
	switch {
	case r.isContainerDir(r.PodLogsDir):
		return warning(r.PodLogsDir+" is the container's own folder, and not the node's", impact, "Mount the node's with a hostPath volume, readOnly.")
	case err != nil:
		return warning(err.Error(), impact, "Run as uid 0; --pod-logs-dir names the folder where the kubelet has another podLogsDir.")
	case len(entries) == 0:
		return warning(r.PodLogsDir+" is empty", impact, "A node with pods has folders there: let --pod-logs-dir name the kubelet's podLogsDir.")
	}
	return ok("%s can be read", r.PodLogsDir)
}

func checkKernelLog(ctx context.Context, r *report) Finding {
	if r.KernelLog == "" {
		return skipped("not asked for (--kernel-log)")
	}
	err, answered := withTimeout(ctx, r.Timeout, func(context.Context) error { return r.Files.Open(r.KernelLog, unix.O_RDONLY) })
	switch {
	case !answered:
		err = fmt.Errorf("%s does not open within %v", r.KernelLog, r.Timeout)
	case err == nil:
		return ok("%s can be read", r.KernelLog)
	case errors.Is(err, fs.ErrNotExist):
		return skipped("%s is not there: the driver's events alone tell of Xids", r.KernelLog)
	}
	return warning(err.Error(), "It is the second witness of Xids: those that the driver tells nobody of are missed.",
		"Run as uid 0 with the device given; where kernel.dmesg_restrict is 1, it takes the capability SYSLOG. --kernel-log= goes without.")
}

// minFreeBytes is how much should be left where something is kept, in bytes.
const minFreeBytes = 16 << 20

func checkState(_ context.Context, r *report) Finding {
	const impact = "Health and incidents are forgotten when podgauge is restarted."
	switch {
	case r.StateDir == "":
		return skipped("no --state-dir: health and incidents are forgotten when podgauge is restarted")
	case r.isContainerDir(r.StateDir):
		return warning(r.StateDir+" is the container's own folder, and goes with it", impact, "Mount a folder of the node there (hostPath, DirectoryOrCreate).")
	}
	return r.checkWritable(r.StateDir, impact)
}

func checkCDI(_ context.Context, r *report) Finding {
	const impact = "Without the specs no container with a GPU can be started (--device-list-strategy asks for CDI)."
	switch {
	case r.CDIDir == "":
		return skipped("no strategy asks for it")
	case r.isContainerDir(r.CDIDir):
		return failure(r.CDIDir+" is the container's own folder, and not the node's", impact, fmt.Sprintf("Mount the node's with a hostPath volume at %s.", r.CDIDir))
	}
	return r.checkWritable(r.CDIDir, impact)
}

// checkWritable tells whether a folder, or the one in which it would be made, can be written to.
func (r *report) checkWritable(dir, impact string) Finding {
	existingDir := resolveExisting(dir)
	info, err := os.Stat(existingDir)
	switch {
	case err != nil:
		return failure(err.Error(), impact, "Give this process access to the folder.")
	case !info.IsDir():
		return failure(existingDir+" is no folder", impact, "Name a folder, or remove what is in its place.")
	}
	if err := r.Files.Access(existingDir, unix.W_OK|unix.X_OK); err != nil {
		return failure(err.Error()+" ("+modeAndUID(info)+")", impact, "Run as uid 0, and mount the folder without readOnly.")
	}
	switch free, err := r.Files.FreeBytes(existingDir); {
	case err != nil:
		return failure(err.Error(), impact, "Give this process access to the folder.")
	case free < minFreeBytes:
		return failure(fmt.Sprintf("%d MiB are left where %s is", free>>20, existingDir), impact, "Make room on that disk.")
	case existingDir != dir && !sameFile(existingDir, dir):
		return ok("%s can be made", dir)
	}
	return ok("%s can be written to", dir)
}

// sameFile tells whether two paths lead to the same file.
func sameFile(a, b string) bool {
	one, err := os.Stat(a)
	if err != nil {
		return false
	}
	other, err := os.Stat(b)
	return err == nil && os.SameFile(one, other)
}
