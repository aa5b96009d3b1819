package doctor

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/text"
	"golang.org/x/sys/unix"
)

// driverAnswer is the result of listing the devices.
type driverAnswer struct {
	devices []device.Device
	err     error
	inTime  bool
	library Library
}

func (r *report) queryDriver(ctx context.Context) {
	if r.Driver == nil {
		return
	}
	r.driver, r.driver.inTime = WithTimeout(ctx, r.Timeout, func(ctx context.Context) (d driverAnswer) {
		d.devices, d.err = r.Driver.Devices(ctx)
		return d
	})
	r.driver.library = r.Driver.Library()
}

const installDriverFix = "Install the driver. In a container, either use NVIDIA's runtime (runtimeClassName: nvidia, NVIDIA_VISIBLE_DEVICES=all, " +
	"NVIDIA_DRIVER_CAPABILITIES=utility), or mount the folder of the driver and set --driver-root-ctr-path to the mount point."

func checkDriver(_ context.Context, r *report) Finding {
	d := r.driver
	switch {
	case r.Driver == nil:
		return skipped("simulated")
	case d.library.Path == "" && d.err != nil:
		return failure(d.err.Error(), installDriverFix)
	case !d.inTime || errors.Is(d.err, context.DeadlineExceeded):
		return r.timedOut().because("Calls to the driver hang, also in containers. No GPU is registered.")
	case errors.Is(d.err, device.ErrDriverReplaced) || d.err != nil && strings.Contains(d.err.Error(), "LIB_RM_VERSION_MISMATCH"):
		return failure(d.err.Error(), "Reboot the node, or reload the kernel module. In a container, recreate the pod: the container keeps the injected library.").
			because("The library and the kernel module have different versions: all calls fail.")
	case d.err != nil && d.devices == nil:
		return failure(d.err.Error(),
			"Run nvidia-smi on the node. If it fails, load the kernel module (modprobe nvidia) and read dmesg. Otherwise, give this container access to the device nodes, or delete the pod if systemctl daemon-reload took them.")
	case d.library.NotReady:
		return failure(d.summary()+"; not ready for confidential computing",
			"Attest the GPUs, then run nvidia-smi conf-compute -srs 1 on the node.").
			because("All GPUs are unhealthy: CUDA does not start on them.")
	case d.err != nil:
		return warning(d.summary()+"; "+d.err.Error(),
			"Find the GPU in the kernel log and reset the GPU. After Xid 79 (fallen off the bus) reboot or power-cycle the node.").
			because("These GPUs are not registered and have no metrics.")
	case d.gpus() < r.ExpectedGPUs:
		return failure(fmt.Sprintf("%s; missing: %d of %d expected GPUs", d.summary(), r.ExpectedGPUs-d.gpus(), r.ExpectedGPUs),
			"Compare lspci -d 10de: with the installed GPUs, and search dmesg for the missing GPU. Reboot or power-cycle the node. If the number is wrong, correct --expected-gpus.").
			because("The missing GPUs are not registered and have no metrics.")
	case len(d.devices) == 0:
		return warning(d.summary(),
			"Find the GPUs and their kernel driver with lspci -k (vfio-pci is for virtual machines). A node without GPUs does not need podgauge.")
	case len(d.withoutMIGDevices()) > 0:
		return warning(d.summary()+"; MIG mode without MIG devices: "+text.JoinFirst(d.withoutMIGDevices()),
			"Create MIG devices (nvidia-smi mig -cgi), or disable MIG mode (nvidia-smi -mig 0).").
			because("These GPUs are not registered.")
	case len(d.library.MissingFamilies) > 0:
		return warning(d.summary()+"; the library lacks "+text.JoinFirst(d.library.MissingFunctions), "Install a newer driver to get these metric families.").
			because("These metric families have no values: " + strings.Join(d.library.MissingFamilies, ", ") + ".")
	}
	return ok("%s", d.summary())
}

// withoutMIGDevices returns the MIG-enabled GPUs without a MIG device.
func (d driverAnswer) withoutMIGDevices() (gpus []string) {
	all := make([]device.Status, len(d.devices))
	for i := range all {
		all[i].Device = d.devices[i]
	}
	for _, s := range all {
		if s.Unallocatable(all) != "" {
			gpus = append(gpus, fmt.Sprintf("GPU %d", s.Index))
		}
	}
	return gpus
}

func (d driverAnswer) gpus() (n int) {
	for i := range d.devices {
		if d.devices[i].WholeGPU() {
			n++
		}
	}
	return n
}

// summary returns the library, the version and the number of devices.
func (d driverAnswer) summary() string {
	gpus := d.gpus()
	summary := d.library.Path + ": "
	if d.library.Version != "" {
		summary += "version " + d.library.Version + ", "
	}
	summary += text.Plural(gpus, "GPU")
	if migDevices := len(d.devices) - gpus; migDevices > 0 {
		summary += " and " + text.Plural(migDevices, "MIG device")
	}
	return summary
}

// checkDeviceNodes opens the device nodes of containers.
func checkDeviceNodes(_ context.Context, r *report) Finding {
	if r.Driver == nil {
		return skipped("simulated")
	}
	names := []string{"nvidiactl"}
	if r.InjectsDeviceNodes { // podgauge does not need nvidia-uvm, containers do
		names = append(names, "nvidia-uvm")
	}
	for i := range r.driver.devices {
		name := fmt.Sprintf("nvidia%d", r.driver.devices[i].Minor)
		if r.driver.devices[i].Minor >= 0 && !slices.Contains(names, name) { // MIG devices share the node of the GPU
			names = append(names, name)
		}
	}
	var failed []string
	for _, name := range names {
		if err := r.Files.Open(filepath.Join(r.DevRoot, "dev", name), unix.O_RDWR); err != nil {
			failed = append(failed, err.Error())
		}
	}
	const fix = "On the node, run nvidia-modprobe -u -c=0. In a container, either use NVIDIA's runtime (nvidia-uvm requires " +
		"NVIDIA_DRIVER_CAPABILITIES=compute,utility), or run privileged and mount the host's /dev. To use another folder, set --dev-root."
	switch {
	case len(failed) == 0:
		return ok("%d in %s", len(names), filepath.Join(r.DevRoot, "dev"))
	case r.driver.inTime && (r.driver.err == nil || r.driver.devices != nil): // the driver has listed devices
		return warning(text.JoinFirst(failed), fix)
	}
	return failure(text.JoinFirst(failed), fix).because("The driver needs these device nodes.")
}
