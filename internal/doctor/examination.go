package doctor

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/podgauge/podgauge/internal/dcgm"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/plugin/response"
	resourcesapi "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// DriverProbe queries the driver.
type DriverProbe interface {
	// Devices may hang.
	Devices(ctx context.Context) ([]device.Device, error)
	// Library makes no calls to the driver, and may run beside Devices.
	Library() device.Library
}

// NodeFiles opens files of the node. Open may hang in a driver.
type NodeFiles interface {
	// Open opens and closes a device node.
	Open(path string, flags int) error
	// CheckWritable returns an error if this process may not create files in a
	// folder.
	CheckWritable(dir string) error
}

// Options of Run. Paths are as seen by this process.
type Options struct {
	Config      string   // path of the config file; empty: no file
	ConfigErr   error    // of parsing the config file
	UnknownKeys []string // lines of the config file
	RetiredErr  error    // of the file of retired devices

	Driver             DriverProbe // nil: simulated
	ExpectedGPUs       int         // 0: any number
	DevRoot            string      // parent folder of dev/nvidia*
	HostRoots          []string    // folders that may be the node's root
	InjectsDeviceNodes bool        // containers get the device nodes of this process

	KubeletDir, DevicePluginDir string
	DevicePlugin                bool // whether podgauge registers devices
	DeviceListStrategies        []response.DeviceListStrategy
	PodLogsDir                  string
	ProcessesVisible            bool   // whether this process sees the node's processes
	KernelLog                   string // empty: not read
	StateDir                    string // empty: no state is stored
	CDIDir                      string // empty: no CDI specs are written
	ReadyURL                    string // of a running podgauge; empty: unknown
	DCGMCountersFile            string // empty: no counters file
	DCGMCounters                dcgm.Counters

	LookupEnv func(string) (string, bool)
	Files     NodeFiles     // nil: the node's
	Proc      string        // mount point of procfs; empty: /proc
	Timeout   time.Duration // of each query; 0: ten seconds
}

// examination is the shared state of checks.
type examination struct {
	Options
	mounts []string // mount points of this process
	driver driverAnswer
	pods   atomic.Pointer[resourcesapi.ListPodResourcesResponse] // from the check of pod resources; nil: none yet
}

// driverAnswer is the result of listing the devices.
type driverAnswer struct {
	devices []device.Device
	err     error
	inTime  bool
	library device.Library
}

func (e *examination) timedOut() Finding {
	return failure("no response within %v", e.Timeout).
		fixedBy("Search the kernel log (dmesg) for NVRM and Xid. Look for processes in state D (ps) and for a " +
			"kubelet that hangs (journalctl -u kubelet). Reset the GPU that the log names; otherwise reboot the node.")
}
