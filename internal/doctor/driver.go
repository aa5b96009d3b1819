package doctor

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/retry"
	"github.com/podgauge/podgauge/internal/text"
	"golang.org/x/sys/unix"
)

func (e *examination) queryDriver(ctx context.Context) {
	if e.Driver == nil {
		return
	}
	e.driver, e.driver.inTime = retry.WithTimeout(ctx, e.Timeout, func(ctx context.Context) (d driverAnswer) {
		d.devices, d.err = e.Driver.Devices(ctx)
		return d
	})
	e.driver.library = e.Driver.Library()
}

func checkDriver(_ context.Context, e *examination) Finding {
	d := e.driver
	switch {
	case e.Driver == nil:
		return skipped("simulated")
	case d.library.Path == "" && d.err != nil:
		return failure("%v", d.err).
			fixedBy("Install the driver. In a container, either use NVIDIA's runtime (runtimeClassName: nvidia, " +
				"NVIDIA_VISIBLE_DEVICES=all, NVIDIA_DRIVER_CAPABILITIES=utility), or mount the folder of the driver " +
				"and set --driver-root-ctr-path to the mount point.")
	case !d.inTime || errors.Is(d.err, context.DeadlineExceeded):
		return e.timedOut().because("Calls to the driver hang, also in containers. No GPU is registered.")
	case errors.Is(d.err, device.ErrDriverReplaced),
		d.err != nil && strings.Contains(d.err.Error(), "LIB_RM_VERSION_MISMATCH"):
		return failure("%v", d.err).
			because("The library and the kernel module have different versions: all calls fail.").
			fixedBy("Reboot the node, or reload the kernel module. In a container, recreate the pod: the container " +
				"keeps the injected library.")
	case d.err != nil && d.devices == nil:
		return failure("%v", d.err)
	case d.library.NotReady:
		return failure("%s; not ready for confidential computing", d.summary()).
			because("All GPUs are unhealthy: CUDA does not start on them.").
			fixedBy("Attest the GPUs, then run nvidia-smi conf-compute -srs 1 on the node.")
	case d.err != nil:
		return warning("%s; %v", d.summary(), d.err).
			because("These GPUs are not registered and have no metrics.").
			fixedBy("Find the GPU in the kernel log and reset the GPU. After Xid 79 (fallen off the bus) reboot or " +
				"power-cycle the node.")
	case d.gpus() < e.ExpectedGPUs:
		missing := e.ExpectedGPUs - d.gpus()
		return failure("%s; missing: %d of %d expected GPUs", d.summary(), missing, e.ExpectedGPUs).
			because("The missing GPUs are not registered and have no metrics.").
			fixedBy("Compare lspci -d 10de: with the installed GPUs, and search dmesg for the missing GPU. Reboot or " +
				"power-cycle the node. If the number is wrong, correct --expected-gpus.")
	case len(d.devices) == 0:
		return warning("%s", d.summary()).
			fixedBy("Find the GPUs and their kernel driver with lspci -k (vfio-pci is for virtual machines). A node " +
				"without GPUs does not need podgauge.")
	case len(d.withoutMIGDevices()) > 0:
		return warning("%s; MIG mode without MIG devices: %s", d.summary(), text.JoinFirst(d.withoutMIGDevices())).
			because("These GPUs are not registered.").
			fixedBy("Create MIG devices (nvidia-smi mig -cgi), or disable MIG mode (nvidia-smi -mig 0).")
	case len(d.library.MissingFamilies) > 0:
		return warning("%s; the library lacks %s", d.summary(), text.JoinFirst(d.library.MissingFunctions)).
			because("These metric families have no values: " + strings.Join(d.library.MissingFamilies, ", ") + ".").
			fixedBy("Install a newer driver to get these metric families.")
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
func checkDeviceNodes(_ context.Context, e *examination) Finding {
	if e.Driver == nil {
		return skipped("simulated")
	}
	names := []string{"nvidiactl"}
	if e.InjectsDeviceNodes { // podgauge does not need nvidia-uvm, containers do
		names = append(names, "nvidia-uvm")
	}
	for i := range e.driver.devices {
		name := fmt.Sprintf("nvidia%d", e.driver.devices[i].Minor)
		if e.driver.devices[i].Minor >= 0 && !slices.Contains(names, name) { // MIG devices share the node of the GPU
			names = append(names, name)
		}
	}
	var failed []string
	for _, name := range names {
		if err := e.Files.Open(filepath.Join(e.DevRoot, "dev", name), unix.O_RDWR); err != nil {
			failed = append(failed, err.Error())
		}
	}
	answered := e.driver.inTime && (e.driver.err == nil || e.driver.devices != nil)
	switch {
	case len(failed) == 0:
		return ok("%d in %s", len(names), filepath.Join(e.DevRoot, "dev"))
	case answered:
		return warning("%s", text.JoinFirst(failed))
	}
	return failure("%s", text.JoinFirst(failed)).because("The driver needs these device nodes.")
}
