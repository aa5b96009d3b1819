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

// devices are what the driver says.
type devices struct {
	listed   []device.Device
	err      error
	answered bool
	library  Library
}

// up tells whether the driver has said which devices there are.
func (d devices) up() bool { return d.answered && (d.err == nil || d.listed != nil) }

func (e *examination) askDriver(ctx context.Context) {
	if e.Driver == nil {
		return
	}
	e.devices, e.devices.answered = within(ctx, e.Patience, func(ctx context.Context) (d devices) {
		d.listed, d.err = e.Driver.Devices(ctx)
		return d
	})
	e.devices.answered = e.devices.answered && !errors.Is(e.devices.err, context.DeadlineExceeded)
	e.devices.library = e.Driver.Library()
}

const (
	noGPUs     = "No GPU is offered, and none has metrics."
	getLibrary = "Install the driver. In a container, either start it by NVIDIA's runtime (runtimeClassName: nvidia, NVIDIA_VISIBLE_DEVICES=all, " +
		"NVIDIA_DRIVER_CAPABILITIES=utility), or mount the folder in which the driver is installed, and name that with --driver-root-ctr-path."
)

func library(_ context.Context, e *examination) Finding {
	l := e.devices.library
	switch {
	case e.Driver == nil:
		return skipped("simulated")
	case l.Path == "" && e.devices.err != nil:
		return failure(e.devices.err.Error(), noGPUs, getLibrary)
	case l.Path == "":
		return failure("none was loaded in time", noGPUs, getLibrary)
	}
	return ok("%s", l.Path)
}

func driver(_ context.Context, e *examination) Finding {
	d := e.devices
	switch {
	case e.Driver == nil:
		return skipped("simulated")
	case d.library.Path == "":
		return skipped("there is no library to ask by")
	case !d.answered:
		return failure(fmt.Sprintf("does not answer within %v", e.Patience),
			"What hangs in the driver hangs for whoever asks it, containers included; no GPU can be offered.",
			"Look for NVRM and Xid in the kernel's log (dmesg), and for processes in state D. Reset the GPU that it names; else reboot the node.")
	case errors.Is(d.err, device.ErrReplaced) || d.err != nil && strings.Contains(d.err.Error(), "LIB_RM_VERSION_MISMATCH"):
		return failure(d.err.Error(), "The library and the kernel's module are of different versions; each call is refused.",
			"Reboot the node, or unload the old module and load the new one. An injected library is the one of the container's creation: start the pod anew.")
	case d.err != nil && d.listed == nil:
		return failure(d.err.Error(), noGPUs,
			"See whether nvidia-smi works on the node: if not, load the kernel's module (modprobe nvidia) and read dmesg; if so, give this container access to the device nodes.")
	case d.err != nil:
		return warning(counted(d)+"; "+d.err.Error(), "What is left out is neither offered nor measured.",
			"Look for the GPU that is named in the kernel's log and reset it. One that has fallen off the bus (Xid 79) cannot be reset: reboot or power-cycle the node.")
	case len(d.listed) == 0:
		return warning(counted(d), noGPUs,
			"See whether lspci has the GPUs, and whether another driver has them (vfio-pci for virtual machines). On a node without GPUs podgauge has nothing to do.")
	}
	return ok("%s", counted(d))
}

// counted says which driver it is, and how many devices it has.
func counted(d devices) string {
	gpus := 0
	for i := range d.listed {
		if d.listed[i].WholeGPU() {
			gpus++
		}
	}
	text := number(gpus, "GPU")
	if d.library.Version != "" {
		text = "version " + d.library.Version + ", " + text
	}
	if slices := len(d.listed) - gpus; slices > 0 {
		text += " and " + number(slices, "MIG slice")
	}
	return text
}

func symbols(_ context.Context, e *examination) Finding {
	switch l := e.devices.library; {
	case e.Driver == nil:
		return skipped("simulated")
	case !e.devices.up():
		return skipped("not looked for: the driver does not answer")
	case len(l.Lacks) == 0:
		return ok("the library has all that is asked for")
	case len(l.Costs) == 0:
		return ok("none that is missed; %s", few(l.Lacks))
	default:
		return warning("the library lacks "+few(l.Lacks),
			"Absent or not whole: "+strings.Join(l.Costs, ", ")+".", "A newer driver has them. Nothing else depends on it.")
	}
}

// mig looks for GPUs of which nothing can be allocated.
func mig(_ context.Context, e *examination) Finding {
	switch {
	case e.Driver == nil:
		return skipped("simulated")
	case !e.devices.up():
		return skipped("not looked for: the driver does not answer")
	}
	all := make([]device.Status, len(e.devices.listed))
	for i, d := range e.devices.listed {
		all[i].Device = d
	}
	enabled, empty := 0, []string(nil)
	for _, s := range all {
		if s.MIG {
			enabled++
		}
		if s.Unallocatable(all) == device.NoMIGDevices {
			empty = append(empty, fmt.Sprintf("GPU %d (%s)", s.Index, s.ID))
		}
	}
	switch {
	case len(empty) > 0:
		return warning("MIG mode is on and there is no MIG device: "+few(empty), "Nothing of such a GPU is registered with the kubelet.",
			"Create MIG devices (nvidia-smi mig -cgi <profile> -C), or turn MIG mode off (nvidia-smi -mig 0). If there are some, the container needs SYS_ADMIN to see them.")
	case enabled == 0:
		return ok("no GPU has MIG mode on")
	}
	return ok("each of %s has MIG devices", number(enabled, "MIG-enabled GPU"))
}

// mostNames is how many names a line has.
const mostNames = 3

func number(n int, of string) string {
	if n == 1 {
		return "1 " + of
	}
	return fmt.Sprintf("%d %ss", n, of)
}

func few(names []string) string {
	if more := len(names) - mostNames; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:mostNames], ", "), more)
	}
	return strings.Join(names, ", ")
}

// deviceNodes looks for what containers are given, and opens it.
func deviceNodes(ctx context.Context, e *examination) Finding {
	if e.Driver == nil {
		return skipped("simulated")
	}
	names := e.nodeNames()
	wrong, answered := within(ctx, e.Patience, func(context.Context) (wrong []string) {
		for _, name := range names {
			if err := e.Files.Open(filepath.Join(e.DevRoot, "dev", name), unix.O_RDWR); err != nil {
				wrong = append(wrong, err.Error())
			}
		}
		return wrong
	})
	const mend = "On the node, nvidia-modprobe -u -c=0 makes them. In a container they come with NVIDIA's runtime (nvidia-uvm with NVIDIA_DRIVER_CAPABILITIES=compute,utility), or it is privileged and has the host's /dev; " +
		"--dev-root says where they are otherwise."
	switch {
	case !answered:
		return failure(fmt.Sprintf("opening them takes longer than %v", e.Patience), "Whoever opens one hangs, containers included.",
			"Look for NVRM and Xid in the kernel's log (dmesg), and reboot the node.")
	case len(wrong) == 0:
		return ok("%d below %s", len(names), filepath.Join(e.DevRoot, "dev"))
	case e.devices.up():
		return warning(few(wrong), "The driver answers, but containers need these: CDI specs and device lists can have only what is seen from here.", mend)
	default:
		return failure(few(wrong), "The driver cannot be asked without them.", mend)
	}
}

// nodeNames are the nodes that there should be.
func (e *examination) nodeNames() []string {
	var names []string
	for i := range e.devices.listed {
		if minor := e.devices.listed[i].Minor; minor >= 0 {
			names = append(names, fmt.Sprintf("nvidia%d", minor))
		}
	}
	if len(e.devices.listed) == 0 {
		names = append(names, numbered(filepath.Join(e.DevRoot, "dev"))...)
	}
	slices.Sort(names)
	names = slices.Compact(names) // slices have their GPU's
	if e.AnswersNodes {           // podgauge itself has no use for it, and NVIDIA's runtime gives it to who asks for compute
		names = slices.Insert(names, 0, "nvidia-uvm")
	}
	return slices.Insert(names, 0, "nvidiactl")
}

// numbered are the GPUs' nodes in a folder.
func numbered(dir string) (names []string) {
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

// runtime looks at what NVIDIA's container runtime was asked for.
func runtime(_ context.Context, e *examination) Finding {
	path := e.devices.library.Path
	visible, asked := e.LookupEnv("NVIDIA_VISIBLE_DEVICES")
	switch {
	case e.Driver == nil:
		return skipped("simulated")
	case !e.inContainer():
		return skipped("not in a container")
	case path != "" && e.MountedDriverRoot != "" && strings.HasPrefix(path, strings.TrimSuffix(e.MountedDriverRoot, "/")+"/"):
		return ok("not needed: the library is the mounted one")
	case path == "" && (!asked || visible == "" || visible == "void" || visible == "none"):
		return warning(fmt.Sprintf("NVIDIA_VISIBLE_DEVICES is %q, and nothing was injected", visible), "The runtime gives a driver to whoever asks for one.", getLibrary)
	case path == "":
		return warning(fmt.Sprintf("NVIDIA_VISIBLE_DEVICES is %q, and no library was injected", visible),
			"The container was started by another runtime, or was not given the library.",
			"Set runtimeClassName: nvidia, or make NVIDIA's the default runtime; NVIDIA_DRIVER_CAPABILITIES must have utility.")
	case visible == "all":
		return ok("NVIDIA_VISIBLE_DEVICES is all")
	case !asked || visible == "" || visible == "void" || visible == "none":
		return ok("not asked by variable; the library came by CDI or with the image")
	default:
		return warning(fmt.Sprintf("NVIDIA_VISIBLE_DEVICES is %q", visible), "Other GPUs of the node, and such as come later, are not seen: they are neither offered nor measured.",
			"Set NVIDIA_VISIBLE_DEVICES=all, and choose what is offered by the config.")
	}
}
