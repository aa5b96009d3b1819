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

// Verdict is what came of a check.
type Verdict string

// The verdicts. Skipped is what does not concern this node, or cannot be told while something
// else fails.
const (
	OK      Verdict = "ok"
	Warning Verdict = "warning"
	Failure Verdict = "failure"
	Skipped Verdict = "skipped"
)

// Finding is a check and what came of it. Its texts have names in them that others gave.
type Finding struct {
	Check   string  `json:"check"`
	Verdict Verdict `json:"verdict"`
	Found   string  `json:"found"`
	// Why says why it matters, and Mend what to do. Warnings and failures have both.
	Why  string `json:"why,omitempty"`
	Mend string `json:"mend,omitempty"`
}

// Library is what is known of the driver's library.
type Library struct {
	Path    string   // of the file that is loaded; empty: none is
	Version string   // of the driver; empty while that does not answer
	Lacks   []string // functions that podgauge has a use for
	Costs   []string // metric families that are absent, or not whole, for it
}

// Driver is asked for the devices. It may hang.
type Driver interface {
	Devices(ctx context.Context) ([]device.Device, error)
	// Library asks nobody, and may be called while Devices is under way.
	Library() Library
}

// Files are those of the node that are more than text. Open may hang in a driver.
type Files interface {
	// Open opens a device node, and closes it again.
	Open(path string, flags int) error
	// Access asks the kernel whether this process may do something, as access(2) does.
	Access(path string, mode uint32) error
	// Free tells how many bytes are left where a folder is.
	Free(path string) (uint64, error)
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
	Driver Driver
	// MountedDriverRoot is where the host's driver would be mounted here.
	MountedDriverRoot string
	// DevRoot is the folder that has dev/nvidia*.
	DevRoot string
	// AnswersNodes says that containers are given the nodes that are seen here.
	AnswersNodes bool
	// Offered says what is offered of devices, by resource.
	Offered func([]device.Device) map[string][]device.OfferedID

	KubeletDir, DevicePluginDir string
	// Offers says that the devices are offered, and not only looked at.
	Offers bool
	// PodLogsDir and ProcessesSeen are what containers are told apart by.
	PodLogsDir    string
	ProcessesSeen bool
	KernelLog     string // empty: it is not asked for
	StateDir      string // empty: nothing is remembered
	CDIDir        string // empty: no CDI specs are written

	// LookupEnv finds variables of the environment, as os.LookupEnv does.
	LookupEnv func(string) (string, bool)
	// Files and Proc, where procfs is, are the node's own where they are not given.
	Files Files
	Proc  string
	// Now is the clock; time.Now where nil.
	Now func() time.Time
	// Patience is how long an answer is waited for; ten seconds where zero.
	Patience time.Duration
}

// checks are the rows: each says one thing of the node.
var checks = [...]struct {
	name string
	look func(context.Context, *examination) Finding
}{
	{"config", config},
	{"library", library},
	{"driver", driver},
	{"symbols", symbols},
	{"mig", mig},
	{"device nodes", deviceNodes},
	{"nvidia runtime", runtime},
	{"device plugins", devicePlugins},
	{"registration", registration},
	{"pod resources", podResources},
	{"pods api", podsAPI},
	{"other plugins", otherPlugins},
	{"allocatable", allocatable},
	{"processes", processes},
	{"pod logs", podLogs},
	{"kernel log", kernelLog},
	{"state", state},
	{"cdi", cdi},
}

// examination is what is known while checks are made.
type examination struct {
	Options
	mounts  mounts
	devices devices
	kubelet resources
}

// Examine makes all checks, one after the other.
func Examine(ctx context.Context, o Options) []Finding {
	e := &examination{Options: o.withDefaults()}
	e.mounts = readMounts(e.Proc)
	e.askDriver(ctx)
	e.askKubelet(ctx)
	findings := make([]Finding, len(checks))
	for i, c := range checks {
		findings[i] = c.look(ctx, e)
		findings[i].Check = c.name
		findings[i].Found = strings.ReplaceAll(findings[i].Found, "\n", "; ") // of errors that were joined
	}
	return findings
}

func (o Options) withDefaults() Options {
	if o.Files == nil {
		o.Files = node{}
	}
	if o.Proc == "" {
		o.Proc = "/proc"
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Patience == 0 {
		o.Patience = 10 * time.Second
	}
	return o
}

func ok(found string, args ...any) Finding {
	return Finding{Verdict: OK, Found: fmt.Sprintf(found, args...)}
}

func skipped(found string, args ...any) Finding {
	return Finding{Verdict: Skipped, Found: fmt.Sprintf(found, args...)}
}

func warning(found, why, mend string) Finding {
	return Finding{Verdict: Warning, Found: found, Why: why, Mend: mend}
}

func failure(found, why, mend string) Finding {
	return Finding{Verdict: Failure, Found: found, Why: why, Mend: mend}
}

// within waits for an answer, and tells whether it came. A question that hangs is left
// behind, and ends with the process.
func within[T any](ctx context.Context, patience time.Duration, ask func(context.Context) T) (T, bool) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	answer := make(chan T, 1)
	go func() { answer <- ask(ctx) }()
	select {
	case a := <-answer:
		return a, true
	case <-ctx.Done():
		var none T
		return none, false
	}
}

// node is the Files of the machine.
type node struct{}

func (node) Open(path string, flags int) error {
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

func (node) Access(path string, mode uint32) error {
	if err := unix.Access(path, mode); err != nil {
		return &os.PathError{Op: "access", Path: path, Err: err}
	}
	return nil
}

func (node) Free(path string) (uint64, error) {
	var stat unix.Statfs_t
	if err := unix.Statfs(path, &stat); err != nil {
		return 0, &os.PathError{Op: "statfs", Path: path, Err: err}
	}
	return stat.Bavail * uint64(stat.Bsize), nil
}
