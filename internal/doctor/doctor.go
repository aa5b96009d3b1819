// Package doctor examines a node and reports problems with impact and fix.
//
// Doctor changes nothing: no registration, no file, no socket. A driver or a kubelet that hangs costs Options.Timeout.
package doctor

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/podgauge/podgauge/internal/device"
)

// CheckStatus is the outcome of a check.
type CheckStatus string

// The outcomes.
const (
	StatusOK      CheckStatus = "ok"
	StatusWarning CheckStatus = "warning" // podgauge works with restrictions
	StatusFailure CheckStatus = "failure" // devices are not registered, or metrics lack pods
	StatusSkipped CheckStatus = "skipped" // does not concern the node, or a failure hides the result
)

// Finding is the result of a check. The texts contain untrusted names.
type Finding struct {
	Check   string      `json:"check"`
	Status  CheckStatus `json:"status"`
	Message string      `json:"message"`
	Impact  string      `json:"impact,omitempty"` // of a warning or a failure
	Fix     string      `json:"fix,omitempty"`    // of a warning or a failure
}

// Library describes the driver's library.
type Library struct {
	Path             string   // of the loaded file; empty: not loaded
	Version          string   // of the driver; empty before the driver answers
	MissingFunctions []string // used by podgauge
	MissingFamilies  []string // metric families of missing functions
	NotReady         bool     // the GPUs do not accept work yet, with confidential computing
}

// DriverProbe queries the driver.
type DriverProbe interface {
	// Devices may hang.
	Devices(ctx context.Context) ([]device.Device, error)
	// Library makes no calls to the driver, and may run beside Devices.
	Library() Library
}

// NodeFiles opens files of the node. Open may hang in a driver.
type NodeFiles interface {
	// Open opens and closes a device node.
	Open(path string, flags int) error
	// CheckWritable returns an error if this process may not create files in a folder.
	CheckWritable(dir string) error
}

// Options of Run. Paths are as seen by this process.
type Options struct {
	Config      string   // path of the config file; empty: no file
	ConfigErr   error    // of parsing the config file
	UnknownKeys []string // lines of the config file

	Driver             DriverProbe // nil: simulated
	ExpectedGPUs       int         // 0: any number
	DevRoot            string      // parent folder of dev/nvidia*
	HostRoots          []string    // folders that may be the node's root
	InjectsDeviceNodes bool        // containers get the device nodes of this process

	KubeletDir, DevicePluginDir string
	DevicePlugin                bool // whether podgauge registers devices
	DeviceListStrategies        []string
	PodLogsDir                  string
	ProcessesVisible            bool   // whether this process sees the node's processes
	KernelLog                   string // empty: not read
	StateDir                    string // empty: no state is stored
	CDIDir                      string // empty: no CDI specs are written
	ReadyURL                    string // of a running podgauge; empty: unknown

	LookupEnv func(string) (string, bool)
	Files     NodeFiles     // nil: the node's
	Proc      string        // mount point of procfs; empty: /proc
	Timeout   time.Duration // of each query; 0: ten seconds
}

// check is a question about the node. Impact is that of a warning or failure without one of its own.
type check struct {
	name   string
	impact string
	run    func(context.Context, *report) Finding
}

// checks in the order of dependencies.
var checks = [...]check{
	{"config", "podgauge does not start with this file; a running podgauge keeps its settings. The other checks use flags and environment only.", checkConfig},
	{"driver", "No GPU is registered, and no GPU has metrics.", checkDriver},
	{"device nodes", "Containers need these device nodes. CDI specs and device lists contain only the nodes that this process can see.", checkDeviceNodes},
	{"runtime", "A container with NVIDIA_VISIBLE_DEVICES=all uses all GPUs of the node. Usage and energy are charged to the containers that have the GPUs.", checkRuntime},
	{"registration", "podgauge cannot register: the kubelet has no devices to allocate.", checkRegistration},
	{"other plugins", "Two plugins for the same resource overwrite each other's device list. With different resources, two pods can receive the same GPU.", checkOtherPlugins},
	{"pod resources", "Metrics have no pod labels: podgauge reads the allocations from the kubelet.", checkPodResources},
	{"pods api", "Incidents do not record how pods ended. Labels and UIDs of pods are absent.", checkPodsAPI},
	{
		"processes", "Without the folder names, podgauge cannot attribute processes to containers (nvidia_gpu_container_*), unless the kubelet has the Pods API.",
		checkProcesses,
	},
	{"kernel log", "podgauge misses Xids that NVML does not report.", checkKernelLog},
	{"state", "A restart of podgauge loses health and incidents.", checkState},
	{"cdi", "Containers with a GPU do not start without CDI specs (--device-list-strategy).", checkCDI},
	{"ready", "A rollout stops at this node.", checkReady},
}

// report is the shared state of checks.
type report struct {
	Options
	mounts []string // mount points of this process
	driver driverAnswer
}

// Run runs all checks in order.
func Run(ctx context.Context, o Options) []Finding {
	if o.Files == nil {
		o.Files = hostFiles{}
	}
	o.Proc = cmp.Or(o.Proc, "/proc")
	o.Timeout = cmp.Or(o.Timeout, 10*time.Second)
	r := &report{Options: o, mounts: readMounts(o.Proc)}
	r.queryDriver(ctx)
	findings := make([]Finding, len(checks))
	for i, c := range checks {
		f, inTime := WithTimeout(ctx, o.Timeout, func(ctx context.Context) Finding { return c.run(ctx, r) })
		if !inTime {
			f = r.timedOut()
		}
		if f.Status == StatusWarning || f.Status == StatusFailure {
			f.Impact = cmp.Or(f.Impact, c.impact)
		}
		f.Check = c.name
		f.Message = strings.ReplaceAll(f.Message, "\n", "; ") // of joined errors
		findings[i] = f
	}
	return findings
}

func (r *report) timedOut() Finding {
	return failure(fmt.Sprintf("no response within %v", r.Timeout), "Search the kernel log (dmesg) for NVRM and Xid. Look for processes in state D (ps) and for a "+
		"kubelet that hangs (journalctl -u kubelet). Reset the GPU that the log names; otherwise reboot the node.")
}

func ok(format string, args ...any) Finding {
	return Finding{Status: StatusOK, Message: fmt.Sprintf(format, args...)}
}

func skipped(format string, args ...any) Finding {
	return Finding{Status: StatusSkipped, Message: fmt.Sprintf(format, args...)}
}

func warning(message, fix string) Finding {
	return Finding{Status: StatusWarning, Message: message, Fix: fix}
}

func failure(message, fix string) Finding {
	return Finding{Status: StatusFailure, Message: message, Fix: fix}
}

// because sets an impact other than that of the check.
func (f Finding) because(impact string) Finding {
	f.Impact = impact
	return f
}

// WithTimeout returns the result of call, and false after the timeout. A call that hangs ends with the process.
func WithTimeout[T any](ctx context.Context, timeout time.Duration, call func(context.Context) T) (answer T, inTime bool) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	result := make(chan T, 1)
	go func() { result <- call(ctx) }()
	select {
	case answer = <-result:
	case <-ctx.Done():
	}
	return answer, ctx.Err() == nil
}
