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

// driverFindings are what the driver says.
type driverFindings struct {
	devices  []device.Device
	err      error
	answered bool
	library  Library
}

// isUp tells whether the driver has said which devices there are.
func (d driverFindings) isUp() bool { return d.answered && (d.err == nil || d.devices != nil) }

func (r *report) queryDriver(ctx context.Context) {
	if r.Driver == nil {
		return
	}
	r.driver, r.driver.answered = withTimeout(ctx, r.Timeout, func(ctx context.Context) (d driverFindings) {
		d.devices, d.err = r.Driver.Devices(ctx)
		return d
	})
	r.driver.answered = r.driver.answered && !errors.Is(r.driver.err, context.DeadlineExceeded)
	r.driver.library = r.Driver.Library()
}

const (
	noGPUsImpact     = "No GPU is offered, and none has metrics."
	installDriverFix = "Install the driver. In a container, either start it by NVIDIA's runtime (runtimeClassName: nvidia, NVIDIA_VISIBLE_DEVICES=all, " +
		"NVIDIA_DRIVER_CAPABILITIES=utility), or mount the folder in which the driver is installed, and name that with --driver-root-ctr-path."
)

func checkLibrary(_ context.Context, r *report) Finding {
	l := r.driver.library
	switch {
	case r.Driver == nil:
		return skipped("simulated")
	case l.Path == "" && r.driver.err != nil:
		return failure(r.driver.err.Error(), noGPUsImpact, installDriverFix)
	case l.Path == "":
		return failure("none was loaded in time", noGPUsImpact, installDriverFix)
	}
	return ok("%s", l.Path)
}

func checkDriver(_ context.Context, r *report) Finding {
	d := r.driver
	switch {
	case r.Driver == nil:
		return skipped("simulated")
	case d.library.Path == "":
		return skipped("there is no library to ask by")
	case !d.answered:
		return failure(fmt.Sprintf("does not answer within %v", r.Timeout),
			"What hangs in the driver hangs for whoever asks it, containers included; no GPU can be offered.",
			"Look for NVRM and Xid in the kernel's log (dmesg), and for processes in state D. Reset the GPU that it names; else reboot the node.")
	case errors.Is(d.err, device.ErrDriverReplaced) || d.err != nil && strings.Contains(d.err.Error(), "LIB_RM_VERSION_MISMATCH"):
		return failure(d.err.Error(), "The library and the kernel's module are of different versions; each call is refused.",
			"Reboot the node, or unload the old module and load the new one. An injected library is the one of the container's creation: start the pod anew.")
	case d.err != nil && d.devices == nil:
		return failure(d.err.Error(), noGPUsImpact,
			"See whether nvidia-smi works on the node: if not, load the kernel's module (modprobe nvidia) and read dmesg; if so, give this container access to the device nodes.")
	case d.err != nil:
		return warning(driverSummary(d)+"; "+d.err.Error(), "What is left out is neither offered nor measured.",
			"Look for the GPU that is named in the kernel's log and reset it. One that has fallen off the bus (Xid 79) cannot be reset: reboot or power-cycle the node.")
	case len(d.devices) == 0:
		return warning(driverSummary(d), noGPUsImpact,
			"See whether lspci has the GPUs, and whether another driver has them (vfio-pci for virtual machines). On a node without GPUs podgauge has nothing to do.")
	}
	return ok("%s", driverSummary(d))
}

// driverSummary says which driver it is, and how many devices it has.
func driverSummary(d driverFindings) string {
	gpus := 0
	for i := range d.devices {
		if d.devices[i].WholeGPU() {
			gpus++
		}
	}
	text := plural(gpus, "GPU")
	if d.library.Version != "" {
		text = "version " + d.library.Version + ", " + text
	}
	if migDevices := len(d.devices) - gpus; migDevices > 0 {
		text += " and " + plural(migDevices, "MIG slice")
	}
	return text
}

func checkSymbols(_ context.Context, r *report) Finding {
	switch l := r.driver.library; {
	case r.Driver == nil:
		return skipped("simulated")
	case !r.driver.isUp():
		return skipped("not looked for: the driver does not answer")
	case len(l.MissingFunctions) == 0:
		return ok("the library has all that is asked for")
	case len(l.MissingFamilies) == 0:
		return ok("none that is missed; %s", joinFirst(l.MissingFunctions))
	default:
		return warning("the library lacks "+joinFirst(l.MissingFunctions),
			"Absent or not whole: "+strings.Join(l.MissingFamilies, ", ")+".", "A newer driver has them. Nothing else depends on it.")
	}
}

// checkMIG looks for GPUs of which nothing can be allocated.
func checkMIG(_ context.Context, r *report) Finding {
	switch {
	case r.Driver == nil:
		return skipped("simulated")
	case !r.driver.isUp():
		return skipped("not looked for: the driver does not answer")
	}
	all := make([]device.Status, len(r.driver.devices))
	for i, d := range r.driver.devices {
		all[i].Device = d
	}
	enabled, empty := 0, []string(nil)
	for _, s := range all {
		if s.MIGEnabled {
			enabled++
		}
		if s.Unallocatable(all) == device.NoMIGDevices {
			empty = append(empty, fmt.Sprintf("GPU %d (%s)", s.Index, s.ID))
		}
	}
	switch {
	case len(empty) > 0:
		return warning("MIG mode is on and there is no MIG device: "+joinFirst(empty), "Nothing of such a GPU is registered with the kubelet.",
			"Create MIG devices (nvidia-smi mig -cgi <profile> -C), or turn MIG mode off (nvidia-smi -mig 0). If there are some, the container needs SYS_ADMIN to see them.")
	case enabled == 0:
		return ok("no GPU has MIG mode on")
	}
	return ok("each of %s has MIG devices", plural(enabled, "MIG-enabled GPU"))
}

// maxNames is how many names a line has.
const maxNames = 3

func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

func joinFirst(names []string) string {
	if more := len(names) - maxNames; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:maxNames], ", "), more)
	}
	return strings.Join(names, ", ")
}

// checkDeviceNodes looks for what containers are given, and opens it.
func checkDeviceNodes(ctx context.Context, r *report) Finding {
	if r.Driver == nil {
		return skipped("simulated")
	}
	names := r.deviceNodeNames()
	failed, answered := withTimeout(ctx, r.Timeout, func(context.Context) (failed []string) {
		for _, name := range names {
			if err := r.Files.Open(filepath.Join(r.DevRoot, "dev", name), unix.O_RDWR); err != nil {
				failed = append(failed, err.Error())
			}
		}
		return failed
	})
	const fix = "On the node, nvidia-modprobe -u -c=0 makes them. In a container they come with NVIDIA's runtime (nvidia-uvm with NVIDIA_DRIVER_CAPABILITIES=compute,utility), or it is privileged and has the host's /dev; " +
		"--dev-root says where they are otherwise."
	switch {
	case !answered:
		return failure(fmt.Sprintf("opening them takes longer than %v", r.Timeout), "Whoever opens one hangs, containers included.",
			"Look for NVRM and Xid in the kernel's log (dmesg), and reboot the node.")
	case len(failed) == 0:
		return ok("%d below %s", len(names), filepath.Join(r.DevRoot, "dev"))
	case r.driver.isUp():
		return warning(joinFirst(failed), "The driver answers, but containers need these: CDI specs and device lists can have only what is seen from here.", fix)
	default:
		return failure(joinFirst(failed), "The driver cannot be asked without them.", fix)
	}
}

// deviceNodeNames are the nodes that there should be.
func (r *report) deviceNodeNames() []string {
	var names []string
	for i := range r.driver.devices {
		if minor := r.driver.devices[i].Minor; minor >= 0 {
			names = append(names, fmt.Sprintf("nvidia%d", minor))
		}
	}
	if len(r.driver.devices) == 0 {
		names = append(names, gpuNodes(filepath.Join(r.DevRoot, "dev"))...)
	}
	slices.Sort(names)
	names = slices.Compact(names) // slices have their GPU's
	if r.InjectsDeviceNodes {     // podgauge itself has no use for it, and NVIDIA's runtime gives it to who asks for compute
		names = slices.Insert(names, 0, "nvidia-uvm")
	}
	return slices.Insert(names, 0, "nvidiactl")
}

// gpuNodes are the GPUs' nodes in a folder.
func gpuNodes(dir string) (names []string) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	for _, entry := range entries {
		if number, found := strings.CutPrefix(entry.Name(), "nvidia"); found && number != "" && strings.Trim(number, "0123456789") == "" {
			names = append(names, entry.Name())
		}
	}
	return names
}

// checkRuntime looks at what NVIDIA's container runtime was asked for.
func checkRuntime(_ context.Context, r *report) Finding {
	path := r.driver.library.Path
	visible, isSet := r.LookupEnv("NVIDIA_VISIBLE_DEVICES")
	switch {
	case r.Driver == nil:
		return skipped("simulated")
	case !r.inContainer():
		return skipped("not in a container")
	case path != "" && r.MountedDriverRoot != "" && strings.HasPrefix(path, strings.TrimSuffix(r.MountedDriverRoot, "/")+"/"):
		return ok("not needed: the library is the mounted one")
	case path == "" && (!isSet || visible == "" || visible == "void" || visible == "none"):
		return warning(fmt.Sprintf("NVIDIA_VISIBLE_DEVICES is %q, and nothing was injected", visible), "The runtime gives a driver to whoever asks for one.", installDriverFix)
	case path == "":
		return warning(fmt.Sprintf("NVIDIA_VISIBLE_DEVICES is %q, and no library was injected", visible),
			"The container was started by another runtime, or was not given the library.",
			"Set runtimeClassName: nvidia, or make NVIDIA's the default runtime; NVIDIA_DRIVER_CAPABILITIES must have utility.")
	case visible == "all":
		return ok("NVIDIA_VISIBLE_DEVICES is all")
	case !isSet || visible == "" || visible == "void" || visible == "none":
		return ok("not asked by variable; the library came by CDI or with the image")
	default:
		return warning(fmt.Sprintf("NVIDIA_VISIBLE_DEVICES is %q", visible), "Other GPUs of the node, and such as come later, are not seen: they are neither offered nor measured.",
			"Set NVIDIA_VISIBLE_DEVICES=all, and choose what is offered by the config.")
	}
}
