// Package doctor looks at a node as its administrator would, and says what is wrong
// there, why that matters and how to mend it.
//
// It changes nothing: it registers nowhere, writes no file and leaves no socket. What
// may hang, a driver or a kubelet, is waited for so long and no longer.
package doctor

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"golang.org/x/sys/unix"
)

// CheckStatus is what came of a check.
type CheckStatus string

// The verdicts. Skipped is what does not concern this node, or cannot be told while something
// else fails.
const (
	StatusOK      CheckStatus = "ok"
	StatusWarning CheckStatus = "warning"
	StatusFailure CheckStatus = "failure"
	StatusSkipped CheckStatus = "skipped"
)

// Finding is a check and what came of it. Its texts have names in them that others gave.
type Finding struct {
	Check   string      `json:"check"`
	Status  CheckStatus `json:"verdict"`
	Message string      `json:"found"`
	// Impact says why it matters, and Mend what to do. Warnings and failures have both.
	Impact string `json:"why,omitempty"`
	Fix    string `json:"mend,omitempty"`
}

// Library is what is known of the driver's library.
type Library struct {
	Path             string   // of the file that is loaded; empty: none is
	Version          string   // of the driver; empty while that does not answer
	MissingFunctions []string // functions that podgauge has a use for
	MissingFamilies  []string // metric families that are absent, or not whole, for it
}

// DriverProbe is asked for the devices. It may hang.
type DriverProbe interface {
	Devices(ctx context.Context) ([]device.Device, error)
	// Library asks nobody, and may be called while Devices is under way.
	Library() Library
}

// NodeFiles are those of the node that are more than text. Open may hang in a driver.
type NodeFiles interface {
	// Open opens a device node, and closes it again.
	Open(path string, flags int) error
	// Access asks the kernel whether this process may do something, as access(2) does.
	Access(path string, mode uint32) error
	// FreeBytes tells how many bytes are left where a folder is.
	FreeBytes(path string) (uint64, error)
}

// Options say what to look at. Folders are as this process sees them.
type Options struct {
	// Config is the config's file; empty: there is none. ConfigErr is why it cannot be used,
	// and Notices are what was said of it.
	Config    string
	ConfigErr error
	Notices   []string
	// UnknownKeys are lines that each name a key of the file that has no effect.
	UnknownKeys []string

	// Driver is nil where it is simulated.
	Driver DriverProbe
	// MountedDriverRoot is where the host's driver would be mounted here.
	MountedDriverRoot string
	// DevRoot is the folder that has dev/nvidia*.
	DevRoot string
	// InjectsDeviceNodes says that containers are given the nodes that are seen here.
	InjectsDeviceNodes bool
	// ListedIDs says what is offered of devices, by resource.
	ListedIDs func([]device.Device) map[string][]device.AdvertisedID

	KubeletDir, DevicePluginDir string
	// DevicePlugin says that the devices are offered, and not only looked at.
	DevicePlugin bool
	// PodLogsDir and ProcessesSeen are what containers are told apart by.
	PodLogsDir       string
	ProcessesVisible bool
	KernelLog        string // empty: it is not asked for
	StateDir         string // empty: nothing is remembered
	CDIDir           string // empty: no CDI specs are written

	// LookupEnv finds variables of the environment, as os.LookupEnv does.
	LookupEnv func(string) (string, bool)
	// Files and Proc, where procfs is, are the node's own where they are not given.
	Files NodeFiles
	Proc  string
	// Now is the clock; time.Now where nil.
	Now func() time.Time
	// Timeout is how long an answer is waited for; ten seconds where zero.
	Timeout time.Duration
}

// checks are the rows: each says one thing of the node.
var checks = [...]struct {
	name string
	look func(context.Context, *report) Finding
}{
	{"config", checkConfig},
	{"library", checkLibrary},
	{"driver", checkDriver},
	{"symbols", checkSymbols},
	{"mig", checkMIG},
	{"device nodes", checkDeviceNodes},
	{"nvidia runtime", checkRuntime},
	{"device plugins", checkDevicePluginDir},
	{"registration", checkRegistration},
	{"pod resources", checkPodResources},
	{"pods api", checkPodsAPI},
	{"other plugins", checkOtherPlugins},
	{"allocatable", checkAllocatable},
	{"processes", checkProcesses},
	{"pod logs", checkPodLogs},
	{"kernel log", checkKernelLog},
	{"state", checkState},
	{"cdi", checkCDI},
}

// report is what is known while checks are made.
type report struct {
	Options
	mounts  mountPoints
	driver  driverFindings
	kubelet kubeletFindings
}

// Run makes all checks, one after the other.
func Run(ctx context.Context, o Options) []Finding {
	r := &report{Options: o.withDefaults()}
	r.mounts = readMounts(r.Proc)
	r.queryDriver(ctx)
	r.queryKubelet(ctx)
	findings := make([]Finding, len(checks))
	for i, c := range checks {
		findings[i] = c.look(ctx, r)
		findings[i].Check = c.name
		findings[i].Message = strings.ReplaceAll(findings[i].Message, "\n", "; ") // of errors that were joined
	}
	return findings
}

func (o Options) withDefaults() Options {
	if o.Files == nil {
		o.Files = hostFiles{}
	}
	if o.Proc == "" {
		o.Proc = "/proc"
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Timeout == 0 {
		o.Timeout = 10 * time.Second
	}
	return o
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

// withTimeout waits for an answer, and tells whether it came. A question that hangs is left
// behind, and ends with the process.
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

// hostFiles is the Files of the machine.
type hostFiles struct{}

func (hostFiles) Open(path string, flags int) error {
	fd, err := unix.Open(path, flags|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd) //nolint:errcheck // nothing was written
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err == nil && stat.Mode&unix.S_IFMT != unix.S_IFCHR {
		return fmt.Errorf("%s is no device node", path)
	}
	return nil
}

func (hostFiles) Access(path string, mode uint32) error {
	if err := unix.Access(path, mode); err != nil {
		return &os.PathError{Op: "access", Path: path, Err: err}
	}
	return nil
}

func (hostFiles) FreeBytes(path string) (uint64, error) {
	var stat unix.Statfs_t
	if err := unix.Statfs(path, &stat); err != nil {
		return 0, &os.PathError{Op: "statfs", Path: path, Err: err}
	}
	return stat.Bavail * uint64(stat.Bsize), nil
}
