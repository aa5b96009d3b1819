package doctor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/podgauge/podgauge/internal/device"
	"golang.org/x/sys/unix"
)

// driverAnswer is the result of listing the devices.
type driverAnswer struct {
	devices   []device.Device
	err       error
	inTime    bool
	library   Library
	simulated bool
}

// isUp reports whether the driver has listed devices.
func (d driverAnswer) isUp() bool { return d.inTime && (d.err == nil || d.devices != nil) }

func (r *report) queryDriver(ctx context.Context) {
	if r.driver.simulated = r.Driver == nil; r.driver.simulated {
		return
	}
	answer, inTime := withTimeout(ctx, r.Timeout, func(ctx context.Context) (d driverAnswer) {
		d.devices, d.err = r.Driver.Devices(ctx)
		return d
	})
	answer.inTime = inTime && !errors.Is(answer.err, context.DeadlineExceeded)
	answer.library = r.Driver.Library()
	r.driver = answer
}

const (
	noGPUsImpact     = "No GPU is registered, and no GPU has metrics."
	installDriverFix = "Install the driver. In a container, either use NVIDIA's runtime (runtimeClassName: nvidia, NVIDIA_VISIBLE_DEVICES=all, " +
		"NVIDIA_DRIVER_CAPABILITIES=utility), or mount the folder of the driver and set --driver-root-ctr-path to the mount point."
)

func checkDriver(_ context.Context, r *report) Finding {
	d := r.driver
	switch {
	case d.simulated:
		return skipped("simulated")
	case d.library.Path == "" && d.err != nil:
		return failure(d.err.Error(), noGPUsImpact, installDriverFix)
	case !d.inTime:
		return failure(fmt.Sprintf("no answer within %v", r.Timeout),
			"Calls to the driver hang, also in containers. No GPU is registered.",
			"Search the kernel log (dmesg) for NVRM and Xid, and for processes in state D. Reset the GPU that the log names; otherwise reboot the node.")
	case errors.Is(d.err, device.ErrDriverReplaced) || d.err != nil && strings.Contains(d.err.Error(), "LIB_RM_VERSION_MISMATCH"):
		return failure(d.err.Error(), "The library and the kernel module have different versions: all calls fail.",
			"Reboot the node, or reload the kernel module. A container keeps the injected library: recreate the pod.")
	case d.err != nil && d.devices == nil:
		return failure(d.err.Error(), noGPUsImpact,
			"Run nvidia-smi on the node. After an error, load the kernel module (modprobe nvidia) and read dmesg; otherwise give this container access to the device nodes.")
	case d.err != nil:
		return warning(d.summary()+"; "+d.err.Error(), "These GPUs are not registered and have no metrics.",
			"Find the GPU in the kernel log and reset the GPU. After Xid 79 (fallen off the bus) reboot or power-cycle the node.")
	case len(d.devices) == 0:
		return warning(d.summary(), noGPUsImpact,
			"Search lspci for the GPUs and their driver (vfio-pci for virtual machines). On a node without GPUs podgauge is not needed.")
	case len(d.library.MissingFamilies) > 0:
		return warning(d.summary()+"; the library lacks "+joinFirst(d.library.MissingFunctions),
			"Metric families without values: "+strings.Join(d.library.MissingFamilies, ", ")+".", "Install a newer driver for these families.")
	}
	return ok("%s", d.summary())
}

// summary returns the library, the version and the number of devices.
func (d driverAnswer) summary() string {
	gpus := 0
	for i := range d.devices {
		if d.devices[i].WholeGPU() {
			gpus++
		}
	}
	text := plural(gpus, "GPU")
	if migDevices := len(d.devices) - gpus; migDevices > 0 {
		text += " and " + plural(migDevices, "MIG device")
	}
	if d.library.Version != "" {
		text = "version " + d.library.Version + ", " + text
	}
	return d.library.Path + ": " + text
}

// checkDeviceNodes opens the device nodes of containers.
func checkDeviceNodes(ctx context.Context, r *report) Finding {
	if r.driver.simulated {
		return skipped("simulated")
	}
	names := r.deviceNodeNames()
	failed, inTime := withTimeout(ctx, r.Timeout, func(context.Context) (failed []string) {
		for _, name := range names {
			if err := r.Files.Open(filepath.Join(r.DevRoot, "dev", name), unix.O_RDWR); err != nil {
				failed = append(failed, err.Error())
			}
		}
		return failed
	})
	const fix = "On the node, run nvidia-modprobe -u -c=0. A container gets them from NVIDIA's runtime (nvidia-uvm with " +
		"NVIDIA_DRIVER_CAPABILITIES=compute,utility), or is privileged and mounts the host's /dev. --dev-root sets another folder."
	switch {
	case !inTime:
		return failure(fmt.Sprintf("not open after %v", r.Timeout), "Opening a device node hangs, also in containers.",
			"Search the kernel log (dmesg) for NVRM and Xid, and reboot the node.")
	case len(failed) == 0:
		return ok("%d in %s", len(names), filepath.Join(r.DevRoot, "dev"))
	case r.driver.isUp():
		return warning(joinFirst(failed), "Containers need these device nodes. CDI specs and device lists only have nodes visible to this process.", fix)
	default:
		return failure(joinFirst(failed), "The driver needs these device nodes.", fix)
	}
}

// deviceNodeNames returns the required device nodes.
func (r *report) deviceNodeNames() []string {
	var names []string
	for i := range r.driver.devices {
		if minor := r.driver.devices[i].Minor; minor >= 0 {
			names = append(names, fmt.Sprintf("nvidia%d", minor))
		}
	}
	if len(r.driver.devices) == 0 {
		names = gpuNodes(filepath.Join(r.DevRoot, "dev"))
	}
	slices.Sort(names)
	names = slices.Compact(names) // MIG devices share the node of the GPU
	if r.InjectsDeviceNodes {     // podgauge does not need nvidia-uvm, containers do
		names = slices.Insert(names, 0, "nvidia-uvm")
	}
	return slices.Insert(names, 0, "nvidiactl")
}

// gpuNodes returns the device nodes of GPUs in a folder.
func gpuNodes(dir string) (names []string) {
	entries, _ := os.ReadDir(dir) // the check of nvidiactl reports the error
	for _, entry := range entries {
		if number, found := strings.CutPrefix(entry.Name(), "nvidia"); found && number != "" && strings.Trim(number, "0123456789") == "" {
			names = append(names, entry.Name())
		}
	}
	return names
}

// checkRuntime examines the variable of NVIDIA's container runtime.
func checkRuntime(_ context.Context, r *report) Finding {
	path := r.driver.library.Path
	visible, _ := r.LookupEnv("NVIDIA_VISIBLE_DEVICES")
	unset := visible == "" || visible == "void" || visible == "none"
	switch {
	case r.driver.simulated:
		return skipped("simulated")
	case !r.inContainer():
		return skipped("not in a container")
	case path != "" && r.MountedDriverRoot != "" && strings.HasPrefix(path, strings.TrimSuffix(r.MountedDriverRoot, "/")+"/"):
		return ok("not needed: the driver is mounted")
	case path == "":
		return warning(fmt.Sprintf("NVIDIA_VISIBLE_DEVICES is %q, and no library was injected", visible),
			"The container has no driver: another runtime started it, or the variables do not request the driver.", installDriverFix)
	case unset:
		return ok("not requested by a variable: the library is injected by CDI or part of the image")
	case visible != "all":
		return warning(fmt.Sprintf("NVIDIA_VISIBLE_DEVICES is %q", visible), "Other GPUs of the node are invisible: they are not registered and have no metrics.",
			"Set NVIDIA_VISIBLE_DEVICES=all, and select devices in the config.")
	}
	return ok("NVIDIA_VISIBLE_DEVICES is all")
}
