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
	Notices     []string // of the config file
	UnknownKeys []string // lines of the config file

	Driver             DriverProbe // nil: simulated
	MountedDriverRoot  string      // where a container has the host's driver
	DevRoot            string      // parent folder of dev/nvidia*
	InjectsDeviceNodes bool        // containers get the device nodes of this process

	KubeletDir, DevicePluginDir string
	DevicePlugin                bool // whether podgauge registers devices
	PodLogsDir                  string
	ProcessesVisible            bool   // whether this process sees the node's processes
	KernelLog                   string // empty: not read
	StateDir                    string // empty: no state is stored
	CDIDir                      string // empty: no CDI specs are written

	LookupEnv func(string) (string, bool)
	Files     NodeFiles     // nil: the node's
	Proc      string        // mount point of procfs; empty: /proc
	Timeout   time.Duration // of each query; 0: ten seconds
}

// checks in the order of dependencies.
var checks = [...]struct {
	name string
	run  func(context.Context, *report) Finding
}{
	{"config", checkConfig},
	{"driver", checkDriver},
	{"device nodes", checkDeviceNodes},
	{"nvidia runtime", checkRuntime},
	{"registration", checkRegistration},
	{"other plugins", checkOtherPlugins},
	{"pod resources", checkPodResources},
	{"pods api", checkPodsAPI},
	{"processes", checkProcesses},
	{"kernel log", checkKernelLog},
	{"state", checkState},
	{"cdi", checkCDI},
}

// report is the shared state of checks.
type report struct {
	Options
	mounts mountPoints
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
		findings[i] = c.run(ctx, r)
		findings[i].Check = c.name
		findings[i].Message = strings.ReplaceAll(findings[i].Message, "\n", "; ") // of joined errors
	}
	return findings
}

func ok(format string, args ...any) Finding {
	return Finding{Status: StatusOK, Message: fmt.Sprintf(format, args...)}
}

func skipped(format string, args ...any) Finding {
	return Finding{Status: StatusSkipped, Message: fmt.Sprintf(format, args...)}
}

func warning(message, impact, fix string) Finding {
	return Finding{Status: StatusWarning, Message: message, Impact: impact, Fix: fix}
}

func failure(message, impact, fix string) Finding {
	return Finding{Status: StatusFailure, Message: message, Impact: impact, Fix: fix}
}

// withTimeout returns the result of call, and false after the timeout. A call that hangs ends with the process.
func withTimeout[T any](ctx context.Context, timeout time.Duration, call func(context.Context) T) (T, bool) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	result := make(chan T, 1)
	go func() { result <- call(ctx) }()
	select {
	case a := <-result:
		return a, true
	case <-ctx.Done():
		var zero T
		return zero, false
	}
}

// maxNames is the number of names in a message.
const maxNames = 3

func joinFirst(names []string) string {
	if more := len(names) - maxNames; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:maxNames], ", "), more)
	}
	return strings.Join(names, ", ")
}

func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
