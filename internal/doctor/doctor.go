// Package doctor examines a node and reports problems with impact and fix.
//
// Doctor changes nothing: no registration, no file, no socket. A driver or a
// kubelet that hangs costs Options.Timeout.
package doctor

import (
	"cmp"
	"context"
	"strings"
	"time"

	"github.com/podgauge/podgauge/internal/retry"
)

// check is a question about the node. Impact and fix are those of a problem
// without its own.
type check struct {
	name        string
	run         func(context.Context, *examination) Finding
	impact, fix string
}

func row(name string, run func(context.Context, *examination) Finding, impact, fix string) check {
	return check{name, run, impact, fix}
}

// checks are the answers of the running podgauge, and then those of the node in
// the order of dependencies.
var checks = [...]check{
	row("ready", checkReady,
		"A rollout stops at this node.",
		"Follow the fixes of the other checks. For a GPU that was removed on purpose, run podgauge device forget "+
			"UUID."),
	row("config", checkConfig,
		"podgauge does not start with this file; a running podgauge keeps its settings. The other checks use flags "+
			"and environment only.",
		"Correct the file, and check it with podgauge validate FILE."),
	row("dcgm counters", checkDCGMCounters,
		"Families that a dashboard of dcgm-exporter may query are absent.",
		"Correct the lines of the file, or query podgauge's own families: docs/reference/dcgm.md."),
	row("driver", checkDriver,
		"No GPU is registered, and no GPU has metrics.",
		"Run nvidia-smi on the node. If it fails, load the kernel module (modprobe nvidia) and read dmesg. "+
			"Otherwise, give this container access to the device nodes, or delete the pod if systemctl daemon-reload "+
			"took them."),
	row("device nodes", checkDeviceNodes,
		"Containers need these device nodes. CDI specs and device lists contain only the nodes that this process can "+
			"see.",
		"On the node, run nvidia-modprobe -u -c=0. In a container, either use NVIDIA's runtime (nvidia-uvm requires "+
			"NVIDIA_DRIVER_CAPABILITIES=compute,utility), or run privileged and mount the host's /dev. To use "+
			"another folder, set --dev-root."),
	row("runtime", checkRuntime,
		"A container with NVIDIA_VISIBLE_DEVICES=all uses all GPUs of the node. Usage and energy are charged to the "+
			"containers that have the GPUs.",
		"Use CDI or volume-mounts (--device-list-strategy), and set "+
			"accept-nvidia-visible-devices-envvar-when-unprivileged = false."),
	row("registration", checkRegistration,
		"podgauge cannot register: the kubelet has no devices to allocate.",
		kubeletLogFix),
	row("other plugins", checkOtherPlugins,
		"Two plugins for the same resource overwrite each other's device list. With different resources, two pods can "+
			"receive the same GPU.",
		"Run only one plugin on this node: remove NVIDIA's DaemonSet (GPU operator: devicePlugin.enabled=false), or "+
			"set --device-plugin=false for podgauge."),
	row("pod resources", checkPodResources,
		"Metrics have no pod labels: podgauge reads the allocations from the kubelet.",
		kubeletLogFix),
	row("allocators", checkAllocators,
		"A device plugin and a DRA driver do not know each other's allocations: two pods can receive the same GPU.",
		"Let one of them allocate this node's GPUs: set devicePlugin.enabled=false for podgauge "+
			"(--device-plugin=false), remove the other plugin's DaemonSet, or set resources.gpus.enabled=false for "+
			"the DRA driver."),
	row("pods api", checkPodsAPI,
		"Incidents do not record how pods ended. Labels and UIDs of pods are absent.",
		"Read the kubelet's log. If the socket denies access, run as uid 0."),
	row("processes", checkProcesses,
		"Without the folder names, podgauge cannot attribute processes to containers (nvidia_gpu_container_*), "+
			"unless the kubelet has the Pods API.",
		"Set --pod-logs-dir to the podLogsDir of the kubelet."),
	row("kernel log", checkKernelLog,
		"podgauge misses Xids that NVML does not report.",
		"Run as uid 0 with access to the device. With kernel.dmesg_restrict=1, add the capability SYSLOG. To disable "+
			"this source, set --kernel-log=."),
	row("state", checkState,
		"A restart of podgauge loses health and incidents.",
		folderFix),
	row("cdi", checkCDI,
		"Containers with a GPU do not start without CDI specs (--device-list-strategy).",
		folderFix),
}

// Run runs all checks in order.
func Run(ctx context.Context, o Options) []Finding {
	if o.Files == nil {
		o.Files = hostFiles{}
	}
	o.Proc = cmp.Or(o.Proc, "/proc")
	o.Timeout = cmp.Or(o.Timeout, 10*time.Second)
	e := &examination{Options: o, mounts: readMounts(o.Proc)}
	e.queryDriver(ctx)
	findings := make([]Finding, len(checks))
	for i, c := range checks {
		run := func(ctx context.Context) Finding { return c.run(ctx, e) }
		f, inTime := retry.WithTimeout(ctx, o.Timeout, run)
		if !inTime {
			f = e.timedOut()
		}
		f = f.orElse(c.impact, c.fix)
		f.Check = c.name
		f.Message = strings.ReplaceAll(f.Message, "\n", "; ") // of joined errors
		findings[i] = f
	}
	return findings
}
