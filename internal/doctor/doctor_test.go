package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/sim/kubelet"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const gpu = "nvidia.com/gpu"

// stage is a node that is well, until a case changes it.
type stage struct {
	*testing.T
	Options
	dir     string
	driver  *scriptedDriver
	files   *scriptedFiles
	kubelet *kubelet.Kubelet
	env     map[string]string
}

func newStage(t *testing.T) *stage {
	t.Helper()
	dir, err := os.MkdirTemp("", "doctor") // sockets need a short name
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	s := &stage{T: t, dir: dir, env: map[string]string{}}
	s.driver = &scriptedDriver{
		listed:  []device.Device{{ID: "GPU-a", GPU: "GPU-a", Minor: 0}, {ID: "GPU-b", GPU: "GPU-b", Minor: 1}, {ID: "MIG-c", GPU: "GPU-b", Minor: 1}},
		library: Library{Path: "/usr/lib64/libnvidia-ml.so.1", Version: "580.82.07"},
	}
	s.files = &scriptedFiles{refused: map[string]error{}, free: 1 << 40}
	s.kubelet = kubelet.New(kubelet.Options{Dir: filepath.Join(dir, "kubelet"), EmptyFor: -1, RestAfter: -1, Since: time.Now().Add(-3 * time.Hour)})
	s.Options = Options{
		Driver: s.driver, Files: s.files, Proc: filepath.Join(dir, "proc"), MountedDriverRoot: "/driver-root", DevRoot: "/", AnswersNodes: true,
		Offered: func([]device.Device) map[string][]device.OfferedID {
			return map[string][]device.OfferedID{gpu: {"GPU-a", "GPU-b"}}
		},
		KubeletDir: s.kubelet.Dir(), DevicePluginDir: filepath.Dir(s.kubelet.RegistrationSocket()), Offers: true,
		PodLogsDir: s.folder("logs"), ProcessesSeen: true, KernelLog: "/dev/kmsg", StateDir: s.folder("state"), CDIDir: s.folder("cdi"),
		LookupEnv: func(name string) (string, bool) { value, ok := s.env[name]; return value, ok },
	}
	s.folder("logs/research_train_0d0f")
	s.mounts("/")
	return s
}

func (s *stage) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

func (s *stage) folder(name string) string {
	s.Helper()
	path := filepath.Join(s.dir, name)
	s.must(os.MkdirAll(path, 0o755))
	return path
}

// mounts writes what is mounted.
func (s *stage) mounts(points ...string) {
	s.Helper()
	var text strings.Builder
	for i, point := range points {
		fmt.Fprintf(&text, "%d 1 0:%d / %s rw,relatime shared:1 - ext4 /dev/vda rw\n", 20+i, i, strings.ReplaceAll(point, " ", `\040`))
	}
	s.must(os.WriteFile(filepath.Join(s.folder("proc/self"), "mountinfo"), []byte(text.String()), 0o600))
}

// container has the node be seen from a container with these folders of the node's.
func (s *stage) container(points ...string) {
	s.mounts(append([]string{"/", "/dev/termination-log"}, points...)...)
}

// starts has the kubelet run until the test ends.
func (s *stage) starts() {
	s.Helper()
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.kubelet.Run(ctx) }()
	s.Cleanup(func() { stop(); s.must(<-ended) })
	s.must(s.kubelet.Wait(s.Context(), func(k kubelet.State) bool { return k.Serving && k.PodsRead }))
}

// listens has somebody listen on a socket, and say nothing; or be gone already.
func (s *stage) listens(path string, stays bool) {
	s.Helper()
	s.must(os.MkdirAll(filepath.Dir(path), 0o755))
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	s.must(err)
	l.SetUnlinkOnClose(false)
	if stays {
		s.Cleanup(func() { l.Close() })
	} else {
		s.must(l.Close())
	}
}

func (s *stage) finding(check string) Finding {
	s.Helper()
	findings := Examine(s.Context(), s.Options)
	i := slices.IndexFunc(findings, func(f Finding) bool { return f.Check == check })
	if i < 0 {
		s.Fatalf("there is no check %q", check)
	}
	return findings[i]
}

type scriptedDriver struct {
	listed  []device.Device
	err     error
	library Library
	hold    chan struct{}
}

func (d *scriptedDriver) Devices(context.Context) ([]device.Device, error) {
	if d.hold != nil {
		<-d.hold
	}
	return d.listed, d.err
}

func (d *scriptedDriver) Library() Library { return d.library }

type scriptedFiles struct {
	refused map[string]error
	free    uint64
	hold    map[string]chan struct{}
}

func (f *scriptedFiles) Open(path string, _ int) error {
	if hold := f.hold[path]; hold != nil {
		<-hold
	}
	return f.is(path)
}

func (f *scriptedFiles) Access(path string, _ uint32) error { return f.is(path) }
func (f *scriptedFiles) Free(path string) (uint64, error)   { return f.free, nil }

func (f *scriptedFiles) is(path string) error {
	if err := f.refused[path]; err != nil {
		return &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return nil
}

// hanging is a channel that is closed at the test's end, and the patience for it.
func (s *stage) hanging() chan struct{} {
	s.Patience = 100 * time.Millisecond
	hold := make(chan struct{})
	s.Cleanup(func() { close(hold) })
	return hold
}

// TestSoundNode: nothing is wrong, nothing was left behind and nobody was registered.
func TestSoundNode(t *testing.T) {
	s := newStage(t)
	s.starts()
	before := tree(t, s.dir)
	for i, f := range Examine(t.Context(), s.Options) {
		want := OK
		if f.Check == "nvidia runtime" { // which is for containers
			want = Skipped
		}
		if f.Check != checks[i].name || f.Verdict != want || f.Found == "" || f.Why != "" {
			t.Errorf("%+v", f)
		}
	}
	if after := tree(t, s.dir); !slices.Equal(after, before) {
		t.Errorf("there is %q, and was %q", after, before)
	}
	if state := s.kubelet.State(); len(state.Registrations) != 0 || state.Calls["List"] != 1 {
		t.Errorf("the kubelet was disturbed: %+v, %v", state.Registrations, state.Calls)
	}
}

func tree(t *testing.T, dir string) (paths []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		paths = append(paths, path)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return paths
}

// TestFindings has each way in which a node is not well.
func TestFindings(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range slices.Concat(driverCases, kubeletCases, folderCases) {
		seen[c.check] = true
		t.Run(c.check+": "+c.found, func(t *testing.T) {
			s := newStage(t)
			if !c.noKubelet {
				s.starts()
			}
			c.change(s)
			f := s.finding(c.check)
			if f.Verdict != c.verdict || !strings.Contains(f.Found, c.found) {
				t.Errorf("got %s: %s, want %s: %s", f.Verdict, f.Found, c.verdict, c.found)
			}
			if wrong := f.Verdict == Warning || f.Verdict == Failure; wrong != (f.Why != "") || wrong != (f.Mend != "") {
				t.Errorf("why %q, mend %q", f.Why, f.Mend)
			}
			if !strings.Contains(f.Mend, c.mend) {
				t.Errorf("mend %q, want %q in it", f.Mend, c.mend)
			}
			if strings.Contains(f.Found, "\n") {
				t.Errorf("%q has two lines", f.Found)
			}
		})
	}
	for _, c := range checks {
		if !seen[c.name] {
			t.Errorf("there is no case for %s", c.name)
		}
	}
}

// findingCase changes the node, and says what one check makes of that.
type findingCase struct {
	check     string
	verdict   Verdict
	found     string
	mend      string
	noKubelet bool
	change    func(*stage)
}

var driverCases = []findingCase{
	{check: "library", verdict: Skipped, found: "simulated", change: func(s *stage) { s.Driver = nil }},
	{check: "library", verdict: Failure, found: "cannot open", mend: "NVIDIA_DRIVER_CAPABILITIES=utility", change: func(s *stage) {
		s.driver.listed, s.driver.err, s.driver.library = nil, errors.New("cannot open libnvidia-ml.so.1"), Library{}
	}},
	{check: "library", verdict: Failure, found: "none was loaded in time", change: func(s *stage) { s.driver.library, s.driver.hold = Library{}, s.hanging() }},
	{check: "library", verdict: OK, found: "/usr/lib64/", change: func(s *stage) { s.driver.hold = s.hanging() }},

	{check: "driver", verdict: OK, found: "version 580.82.07, 2 GPUs and 1 MIG slice", change: func(*stage) {}},
	{check: "driver", verdict: OK, found: "3 GPUs", change: func(s *stage) {
		s.driver.library.Version = ""
		s.driver.listed = []device.Device{{ID: "a", GPU: "a"}, {ID: "b", GPU: "b"}, {ID: "c", GPU: "c"}}
	}},
	{check: "driver", verdict: Skipped, found: "simulated", change: func(s *stage) { s.Driver = nil }},
	{check: "driver", verdict: Skipped, found: "no library", change: func(s *stage) { s.driver.listed, s.driver.err, s.driver.library = nil, device.ErrNoDriver, Library{} }},
	{check: "driver", verdict: Failure, found: "does not answer within", mend: "dmesg", change: func(s *stage) { s.driver.hold = s.hanging() }},
	{check: "driver", verdict: Failure, found: "does not answer within", mend: "dmesg", change: func(s *stage) {
		s.driver.listed, s.driver.err = nil, fmt.Errorf("list: %w", context.DeadlineExceeded)
	}},
	{check: "driver", verdict: Failure, found: "replaced", mend: "Reboot", change: func(s *stage) { s.driver.listed, s.driver.err = nil, device.ErrReplaced }},
	{check: "driver", verdict: Failure, found: "MISMATCH", mend: "Reboot", change: func(s *stage) {
		s.driver.listed, s.driver.err = nil, errors.New("initialise NVML: LIB_RM_VERSION_MISMATCH")
	}},
	{check: "driver", verdict: Failure, found: "DRIVER_NOT_LOADED", mend: "modprobe", change: func(s *stage) { s.driver.listed, s.driver.err = nil, errors.New("initialise NVML: DRIVER_NOT_LOADED") }},
	{check: "driver", verdict: Warning, found: "GPU 3 is lost; GPU 4", mend: "reset", change: func(s *stage) { s.driver.err = errors.Join(errors.New("GPU 3 is lost"), errors.New("GPU 4 is lost")) }},
	{check: "driver", verdict: Warning, found: "0 GPUs", mend: "lspci", change: func(s *stage) { s.driver.listed = []device.Device{} }},

	{check: "symbols", verdict: Skipped, found: "simulated", change: func(s *stage) { s.Driver = nil }},
	{check: "symbols", verdict: Skipped, found: "does not answer", change: func(s *stage) { s.driver.listed, s.driver.err = nil, device.ErrNoDriver }},
	{check: "symbols", verdict: OK, found: "none that is missed; nvmlDeviceGetSerial", change: func(s *stage) { s.driver.library.Lacks = []string{"nvmlDeviceGetSerial"} }},
	{check: "symbols", verdict: Warning, found: "lacks a, b, c and 1 more", mend: "newer", change: func(s *stage) {
		s.driver.library.Lacks, s.driver.library.Costs = []string{"a", "b", "c", "d"}, []string{"nvidia_gpu_sm_activity_ratio"}
	}},

	{check: "mig", verdict: OK, found: "no GPU has MIG mode on", change: func(*stage) {}},
	{check: "mig", verdict: OK, found: "each of 1 MIG-enabled GPU has MIG devices", change: func(s *stage) { s.driver.listed[1].MIG = true }},
	{check: "mig", verdict: Warning, found: "there is no MIG device: GPU 0 (GPU-a)", mend: "nvidia-smi mig -cgi", change: func(s *stage) { s.driver.listed[0].MIG, s.driver.listed[1].MIG = true, true }},
	{check: "mig", verdict: Skipped, found: "simulated", change: func(s *stage) { s.Driver = nil }},
	{check: "mig", verdict: Skipped, found: "does not answer", change: func(s *stage) { s.driver.listed, s.driver.err = nil, device.ErrNoDriver }},

	{check: "device nodes", verdict: OK, found: "4 below /dev", change: func(*stage) {}},
	{check: "device nodes", verdict: Warning, found: "/dev/nvidia-uvm: no such file", mend: "compute,utility", change: func(s *stage) { s.files.refused["/dev/nvidia-uvm"] = syscall.ENOENT }},
	{check: "device nodes", verdict: OK, found: "3 below /dev", change: func(s *stage) { // as NVIDIA's runtime injects them
		s.AnswersNodes, s.files.refused["/dev/nvidia-uvm"] = false, syscall.ENOENT
	}},
	{check: "device nodes", verdict: Skipped, found: "simulated", change: func(s *stage) { s.Driver = nil }},
	{check: "device nodes", verdict: Warning, found: "/dev/nvidia1: operation not permitted", mend: "host's /dev", change: func(s *stage) { s.files.refused["/dev/nvidia1"] = syscall.EPERM }},
	{check: "device nodes", verdict: Failure, found: "/dev/nvidiactl: no such file", mend: "nvidia-modprobe", change: func(s *stage) {
		s.driver.listed, s.driver.err, s.files.refused["/dev/nvidiactl"] = nil, device.ErrNoDriver, syscall.ENOENT
	}},
	{check: "device nodes", verdict: OK, found: "3 below", change: func(s *stage) { // by the folder, where nobody lists
		s.driver.listed, s.driver.err, s.DevRoot = nil, device.ErrNoDriver, s.dir
		for _, name := range []string{"nvidia7", "nvidia-modeset", "nvidiactl", "nvidia"} {
			s.must(os.WriteFile(filepath.Join(s.folder("dev"), name), nil, 0o600))
		}
	}},
	{check: "device nodes", verdict: Failure, found: "takes longer than", mend: "reboot", change: func(s *stage) { s.files.hold = map[string]chan struct{}{"/dev/nvidia0": s.hanging()} }},

	{check: "nvidia runtime", verdict: Skipped, found: "simulated", change: func(s *stage) { s.Driver = nil }},
	{check: "nvidia runtime", verdict: Skipped, found: "not in a container", change: func(*stage) {}},
	{check: "nvidia runtime", verdict: OK, found: "the mounted one", change: func(s *stage) {
		s.container()
		s.driver.library.Path = "/driver-root/usr/lib64/libnvidia-ml.so.1"
	}},
	{check: "nvidia runtime", verdict: OK, found: "is all", change: func(s *stage) { s.env["KUBERNETES_SERVICE_HOST"], s.env["NVIDIA_VISIBLE_DEVICES"] = "10.96.0.1", "all" }},
	{check: "nvidia runtime", verdict: OK, found: "by CDI", change: func(s *stage) { s.env["container"], s.env["NVIDIA_VISIBLE_DEVICES"] = "podman", "void" }},
	{check: "nvidia runtime", verdict: Warning, found: `"0,1"`, mend: "=all", change: func(s *stage) {
		s.container()
		s.env["NVIDIA_VISIBLE_DEVICES"] = "0,1"
	}},
	{check: "nvidia runtime", verdict: Warning, found: "no library was injected", mend: "runtimeClassName", change: func(s *stage) {
		s.container()
		s.driver.library, s.env["NVIDIA_VISIBLE_DEVICES"] = Library{}, "all"
	}},
	{check: "nvidia runtime", verdict: Warning, found: "nothing was injected", mend: "--driver-root-ctr-path", change: func(s *stage) {
		s.container()
		s.driver.library = Library{}
	}},
}

var folderCases = []findingCase{
	{check: "config", verdict: OK, found: "none", change: func(*stage) {}},
	{check: "config", verdict: OK, found: "gpu.yaml is valid", change: func(s *stage) { s.Config = "gpu.yaml" }},
	{check: "config", verdict: OK, found: "2 notes", change: func(s *stage) { s.Config, s.Notices = "gpu.yaml", []string{"a", "b"} }},
	{check: "config", verdict: Warning, found: "gpu.yaml:3: flags.x: unknown key", change: func(s *stage) { s.Config, s.UnknownKeys = "gpu.yaml", []string{"gpu.yaml:3: flags.x: unknown key"} }},
	{check: "config", verdict: Failure, found: "gpu.yaml:3", mend: "validate", change: func(s *stage) { s.Config, s.ConfigErr = "gpu.yaml", errors.New("gpu.yaml:3: want a mapping") }},

	{check: "processes", verdict: Skipped, found: "hostPID", change: func(s *stage) { s.ProcessesSeen = false }},
	{check: "processes", verdict: OK, found: "cgroup v2", change: func(s *stage) { s.mounts("/", "/sys/fs/cgroup") }},
	{check: "processes", verdict: OK, found: "cgroup v1", change: func(s *stage) { s.mounts("/", "/sys/fs/cgroup", "/sys/fs/cgroup/memory") }},

	{check: "pod logs", verdict: Skipped, found: "not needed", change: func(s *stage) { s.ProcessesSeen = false }},
	{check: "pod logs", verdict: OK, found: "can be read", change: func(s *stage) { s.container(s.PodLogsDir) }},
	{check: "pod logs", verdict: Warning, found: "container's own", mend: "hostPath", change: func(s *stage) { s.container() }},
	{check: "pod logs", verdict: Warning, found: "no such file", mend: "--pod-logs-dir", change: func(s *stage) { s.PodLogsDir += "x" }},
	{check: "pod logs", verdict: Warning, found: "is empty", mend: "podLogsDir", change: func(s *stage) { s.PodLogsDir = s.folder("empty") }},

	{check: "kernel log", verdict: Skipped, found: "not asked for", change: func(s *stage) { s.KernelLog = "" }},
	{check: "kernel log", verdict: Skipped, found: "not there", change: func(s *stage) { s.files.refused["/dev/kmsg"] = syscall.ENOENT }},
	{check: "kernel log", verdict: Warning, found: "not permitted", mend: "SYSLOG", change: func(s *stage) { s.files.refused["/dev/kmsg"] = syscall.EPERM }},
	{check: "kernel log", verdict: Warning, found: "does not open within", change: func(s *stage) { s.files.hold = map[string]chan struct{}{"/dev/kmsg": s.hanging()} }},

	{check: "state", verdict: Skipped, found: "--state-dir", change: func(s *stage) { s.StateDir = "" }},
	{check: "state", verdict: OK, found: "can be written to", change: func(s *stage) { s.container(s.dir) }},
	{check: "state", verdict: OK, found: "can be made", change: func(s *stage) { s.StateDir += "/a/b" }},
	{check: "state", verdict: Warning, found: "goes with it", mend: "hostPath", change: func(s *stage) { s.container() }},
	{check: "state", verdict: Failure, found: "read-only file system", mend: "readOnly", change: func(s *stage) { s.files.refused[s.StateDir] = syscall.EROFS }},
	{check: "state", verdict: Failure, found: "15 MiB are left", mend: "room", change: func(s *stage) { s.files.free = 16<<20 - 1 }},
	{check: "state", verdict: Failure, found: "is no folder", mend: "folder", change: func(s *stage) {
		s.StateDir = filepath.Join(s.dir, "file")
		s.must(os.WriteFile(s.StateDir, nil, 0o600))
	}},

	{check: "cdi", verdict: Skipped, found: "no strategy", change: func(s *stage) { s.CDIDir = "" }},
	{check: "cdi", verdict: OK, found: "can be written to", change: func(s *stage) { // by a link, as /var/run is one
		link := filepath.Join(s.dir, "run")
		s.must(os.Symlink(s.CDIDir, link))
		s.container(s.CDIDir)
		s.CDIDir = link
	}},
	{check: "cdi", verdict: Failure, found: "container's own", mend: "hostPath", change: func(s *stage) { s.container(s.StateDir) }},
	{check: "cdi", verdict: Failure, found: "permission denied", mend: "uid 0", change: func(s *stage) { s.files.refused[s.CDIDir] = syscall.EACCES }},
}

// TestMounts: what is below a point, and what merely begins like it.
func TestMounts(t *testing.T) {
	s := newStage(t)
	s.mounts("/", "/var/lib", "/var/lib/kub", "/a b")
	all := readMounts(s.Proc)
	for path, want := range map[string]string{"/var/lib/kubelet": "/var/lib", "/var/lib/kub/x": "/var/lib/kub", "/etc": "/", "/a b/c": "/a b"} {
		if got := all.of(path); got != want {
			t.Errorf("%s is on %q, want %q", path, got, want)
		}
	}
	if readMounts(filepath.Join(s.dir, "nowhere")) != nil {
		t.Error("mounts were read from nowhere")
	}
}

// TestNode: the Files of the machine that the tests run on.
func TestNode(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "nvidiactl")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var files node
	if err := files.Open("/dev/null", os.O_RDWR); err != nil {
		t.Error(err)
	}
	if err := files.Open(file, os.O_RDWR); err == nil || !strings.Contains(err.Error(), "no device node") {
		t.Errorf("a file is opened as a device: %v", err)
	}
	if err := files.Open(file+"x", os.O_RDWR); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	if err := files.Access(dir, 2); err != nil {
		t.Error(err)
	}
	if err := files.Access(file+"x", 2); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	if free, err := files.Free(dir); err != nil || free == 0 {
		t.Errorf("%d, %v", free, err)
	}
	if _, err := files.Free(file + "x"); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}
