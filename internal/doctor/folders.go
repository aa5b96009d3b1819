package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

func config(_ context.Context, e *examination) Finding {
	switch {
	case e.ConfigErr != nil:
		return failure(e.ConfigErr.Error(), "podgauge does not start with it; one that runs keeps the settings that it has. The other checks are of the flags alone.",
			"Change what is named; podgauge validate FILE tells when it is right.")
	case e.Config == "":
		return ok("none: flags and environment say all")
	case len(e.UnknownKeys) > 0:
		return warning(few(e.UnknownKeys), "Unknown keys have no effect. The other settings of the file hold.",
			"Correct the key, or upgrade podgauge if the file is written for a newer version.")
	case len(e.Notices) > 0:
		return ok("%s is valid; podgauge validate has %s", e.Config, number(len(e.Notices), "note"))
	}
	return ok("%s is valid", e.Config)
}

// processes tells whether containers that share a GPU can be told apart.
func processes(_ context.Context, e *examination) Finding {
	if !e.ProcessesSeen {
		return skipped("the node's cannot be seen (hostPID): nvidia_gpu_container_* and nvidia_gpu_unattributed_* are absent")
	}
	return ok("the node's are seen; %s", cgroups(e.mounts))
}

// cgroups says which version the node has.
func cgroups(all mounts) string {
	if all.has("/sys/fs/cgroup/memory") || all.has("/sys/fs/cgroup/devices") {
		return "cgroup v1"
	}
	return "cgroup v2"
}

func podLogs(_ context.Context, e *examination) Finding {
	const why = "Processes are told apart by the folders' names: without them the shares of containers that share a GPU are nobody's, but where the Pods API tells."
	if !e.ProcessesSeen {
		return skipped("not needed without the node's processes")
	}
	entries, err := os.ReadDir(e.PodLogsDir)
	switch {
	case e.ownFolder(e.PodLogsDir):
		return warning(e.PodLogsDir+" is the container's own folder, and not the node's", why, "Mount the node's with a hostPath volume, readOnly.")
	case err != nil:
		return warning(err.Error(), why, "Run as uid 0; --pod-logs-dir names the folder where the kubelet has another podLogsDir.")
	case len(entries) == 0:
		return warning(e.PodLogsDir+" is empty", why, "A node with pods has folders there: let --pod-logs-dir name the kubelet's podLogsDir.")
	}
	return ok("%s can be read", e.PodLogsDir)
}

func kernelLog(ctx context.Context, e *examination) Finding {
	if e.KernelLog == "" {
		return skipped("not asked for (--kernel-log)")
	}
	err, answered := within(ctx, e.Patience, func(context.Context) error { return e.Files.Open(e.KernelLog, unix.O_RDONLY) })
	switch {
	case !answered:
		err = fmt.Errorf("%s does not open within %v", e.KernelLog, e.Patience)
	case err == nil:
		return ok("%s can be read", e.KernelLog)
	case errors.Is(err, fs.ErrNotExist):
		return skipped("%s is not there: the driver's events alone tell of Xids", e.KernelLog)
	}
	return warning(err.Error(), "It is the second witness of Xids: those that the driver tells nobody of are missed.",
		"Run as uid 0 with the device given; where kernel.dmesg_restrict is 1, it takes the capability SYSLOG. --kernel-log= goes without.")
}

// spare is how much should be left where something is kept, in bytes.
const spare = 16 << 20

func state(_ context.Context, e *examination) Finding {
	const why = "Health and incidents are forgotten when podgauge is restarted."
	switch {
	case e.StateDir == "":
		return skipped("no --state-dir: health and incidents are forgotten when podgauge is restarted")
	case e.ownFolder(e.StateDir):
		return warning(e.StateDir+" is the container's own folder, and goes with it", why, "Mount a folder of the node there (hostPath, DirectoryOrCreate).")
	}
	return e.writable(e.StateDir, why)
}

func cdi(_ context.Context, e *examination) Finding {
	const why = "Without the specs no container with a GPU can be started (--device-list-strategy asks for CDI)."
	switch {
	case e.CDIDir == "":
		return skipped("no strategy asks for it")
	case e.ownFolder(e.CDIDir):
		return failure(e.CDIDir+" is the container's own folder, and not the node's", why, fmt.Sprintf("Mount the node's with a hostPath volume at %s.", e.CDIDir))
	}
	return e.writable(e.CDIDir, why)
}

// writable tells whether a folder, or the one in which it would be made, can be written to.
func (e *examination) writable(dir, why string) Finding {
	on := existing(dir)
	info, err := os.Stat(on)
	switch {
	case err != nil:
		return failure(err.Error(), why, "Give this process access to the folder.")
	case !info.IsDir():
		return failure(on+" is no folder", why, "Name a folder, or remove what is in its place.")
	}
	if err := e.Files.Access(on, unix.W_OK|unix.X_OK); err != nil {
		return failure(err.Error()+" ("+owner(info)+")", why, "Run as uid 0, and mount the folder without readOnly.")
	}
	switch free, err := e.Files.Free(on); {
	case err != nil:
		return failure(err.Error(), why, "Give this process access to the folder.")
	case free < spare:
		return failure(fmt.Sprintf("%d MiB are left where %s is", free>>20, on), why, "Make room on that disk.")
	case on != dir && !sameFile(on, dir):
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
