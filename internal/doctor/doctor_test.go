package doctor_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/dcgm"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/doctor"
	"github.com/podgauge/podgauge/internal/sim/kubelet"
	"github.com/podgauge/podgauge/plugin/response"
	"github.com/podgauge/podgauge/test/helpers/background"
	"github.com/podgauge/podgauge/test/helpers/expect"
	"github.com/podgauge/podgauge/test/helpers/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// doctorFixture is a healthy node that test cases change.
type doctorFixture struct {
	*testing.T
	doctor.Options
	dir     string
	driver  *fakeDriverProbe
	files   *fakeNodeFiles
	kubelet *kubelet.Kubelet
	env     map[string]string
}

func newDoctorFixture(t *testing.T) *doctorFixture {
	t.Helper()
	dir := background.Dir(t)
	s := &doctorFixture{T: t, dir: dir, env: map[string]string{}}
	s.driver = &fakeDriverProbe{
		devices: []device.Device{{ID: "GPU-a", GPU: "GPU-a", Minor: 0}, {ID: "GPU-b", GPU: "GPU-b", Minor: 1}, {ID: "MIG-c", GPU: "GPU-b", Minor: 1}},
		library: device.Library{Path: "/usr/lib64/libnvidia-ml.so.1", Version: "580.82.07"},
	}
	s.files = &fakeNodeFiles{errs: map[string]error{}}
	s.kubelet = kubelet.New(kubelet.Options{Dir: filepath.Join(dir, "kubelet"), ReadPodsAtOnce: true, RunningSince: time.Now().Add(-3 * time.Hour)})
	s.Options = doctor.Options{
		Driver: s.driver, Files: s.files, Proc: filepath.Join(dir, "proc"), DevRoot: "/", InjectsDeviceNodes: true,
		KubeletDir: s.kubelet.Dir(), DevicePluginDir: filepath.Dir(s.kubelet.RegistrationSocket()), DevicePlugin: true,
		PodLogsDir: s.mkdir("logs"), ProcessesVisible: true, KernelLog: "/dev/kmsg", StateDir: s.mkdir("state"), CDIDir: s.mkdir("cdi"),
		LookupEnv: func(name string) (string, bool) { value, ok := s.env[name]; return value, ok },
	}
	s.serveReady(http.StatusOK, "ok\n")
	s.mkdir("logs/research_train_0d0f")
	s.HostRoots, s.DeviceListStrategies = []string{s.dir + "/none", s.dir + "/host"}, []response.DeviceListStrategy{"cdi-cri"}
	s.writeRuntimeConfig("etc/nvidia-container-runtime", "accept-nvidia-visible-devices-envvar-when-unprivileged = false\n")
	s.writeMounts("/")
	return s
}

// setCounters sets the lines of a counters file.
func (s *doctorFixture) setCounters(lines string) {
	s.DCGMCountersFile, s.DCGMCounters = "counters.csv", dcgm.Parse("counters.csv", lines)
}

// serveReady serves a response of podgauge's /readyz.
func (s *doctorFixture) serveReady(status int, body string) {
	s.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		io.WriteString(w, body)
	}))
	s.Cleanup(server.Close)
	s.ReadyURL = server.URL
}

func (s *doctorFixture) mkdir(name string) string {
	s.Helper()
	path := filepath.Join(s.dir, name)
	require.NoError(s, os.MkdirAll(path, 0o755))
	return path
}

// writeMounts writes mountinfo with these mount points.
func (s *doctorFixture) writeMounts(points ...string) {
	s.Helper()
	var text strings.Builder
	for i, point := range points {
		fmt.Fprintf(&text, "%d 1 0:%d / %s rw,relatime shared:1 - ext4 /dev/vda rw\n", 20+i, i, strings.ReplaceAll(point, " ", `\040`))
	}
	require.NoError(s, os.WriteFile(filepath.Join(s.mkdir("proc/self"), "mountinfo"), []byte(text.String()), 0o600))
}

// writeRuntimeConfig writes a config of NVIDIA's container runtime below the node's root.
func (s *doctorFixture) writeRuntimeConfig(folder, text string) {
	s.Helper()
	require.NoError(s, os.WriteFile(filepath.Join(s.mkdir("host/"+folder), "config.toml"), []byte(text), 0o600))
}

// mountInContainer simulates a container with these mounted directories of the node.
func (s *doctorFixture) mountInContainer(points ...string) {
	s.writeMounts(append([]string{"/", "/dev/termination-log"}, points...)...)
}

// startKubelet runs the kubelet until the test ends.
func (s *doctorFixture) startKubelet() {
	s.Helper()
	background.Run(s, s.kubelet.Run)
	require.NoError(s, s.kubelet.Wait(s.Context(), func(k kubelet.KubeletState) bool { return k.Serving && k.PodsRead }))
}

// listenOn listens on a socket without a response. If listening is false, only the socket file remains.
func (s *doctorFixture) listenOn(path string, listening bool) {
	s.Helper()
	require.NoError(s, os.MkdirAll(filepath.Dir(path), 0o755))
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	require.NoError(s, err)
	l.SetUnlinkOnClose(false)
	if listening {
		s.Cleanup(func() { l.Close() })
	} else {
		require.NoError(s, l.Close())
	}
}

func (s *doctorFixture) finding(check string) doctor.Finding {
	s.Helper()
	findings := doctor.Run(s.Context(), s.Options)
	i := slices.IndexFunc(findings, func(f doctor.Finding) bool { return f.Check == check })
	if i < 0 {
		s.Fatalf("no check %q in the report", check)
	}
	return findings[i]
}

type fakeDriverProbe struct {
	devices []device.Device
	err     error
	library device.Library
	block   chan struct{}
}

func (d *fakeDriverProbe) Devices(context.Context) ([]device.Device, error) {
	if d.block != nil {
		<-d.block
	}
	return d.devices, d.err
}

func (d *fakeDriverProbe) Library() device.Library { return d.library }

type fakeNodeFiles struct {
	errs  map[string]error
	block map[string]chan struct{}
}

func (f *fakeNodeFiles) Open(path string, _ int) error {
	if block := f.block[path]; block != nil {
		<-block
	}
	return f.check(path)
}

func (f *fakeNodeFiles) CheckWritable(path string) error { return f.check(path) }

func (f *fakeNodeFiles) check(path string) error {
	if err := f.errs[path]; err != nil {
		return &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return nil
}

// newHang returns a channel that is closed at the end of the test, and shortens the timeout for it.
func (s *doctorFixture) newHang() chan struct{} {
	s.Timeout = 100 * time.Millisecond
	hang := make(chan struct{})
	s.Cleanup(func() { close(hang) })
	return hang
}

// TestHealthyNode checks that all checks pass, without a registration or a new file.
func TestHealthyNode(t *testing.T) {
	s := newDoctorFixture(t)
	s.startKubelet()
	before := listPaths(t, s.dir)
	for _, f := range doctor.Run(t.Context(), s.Options) {
		if f.Status != doctor.StatusOK || f.Message == "" || f.Impact != "" || f.Fix != "" {
			t.Errorf("got %+v, want status ok", f)
		}
	}
	expect.EqualSlices(t, listPaths(t, s.dir), before, "files")
	if state := s.kubelet.State(); len(state.Registrations) != 0 || state.Calls["List"] != 1 {
		t.Errorf("calls of the kubelet: got registrations %+v and calls %v, want one List", state.Registrations, state.Calls)
	}
}

func listPaths(t *testing.T, dir string) (paths []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		paths = append(paths, path)
		return err
	})
	require.NoError(t, err)
	return paths
}

// TestFindings runs a case for each problem of a node.
func TestFindings(t *testing.T) {
	tested := map[string]bool{}
	for _, c := range slices.Concat(driverCases, runtimeCases, kubeletCases, folderCases) {
		tested[c.check] = true
		t.Run(c.check+": "+c.message, func(t *testing.T) {
			s := newDoctorFixture(t)
			if !c.noKubelet {
				s.startKubelet()
			}
			c.change(s)
			f := s.finding(c.check)
			if f.Status != c.status || !strings.Contains(f.Message, c.message) {
				t.Errorf("got %s: %s, want %s: %s", f.Status, f.Message, c.status, c.message)
			}
			if problem := f.Status == doctor.StatusWarning || f.Status == doctor.StatusFailure; problem != (f.Impact != "") || problem != (f.Fix != "") {
				t.Errorf("got impact %q and fix %q, want both for problems only", f.Impact, f.Fix)
			}
			if !strings.Contains(f.Fix, c.fix) {
				t.Errorf("fix: got %q, want it to contain %q", f.Fix, c.fix)
			}
			if strings.Contains(f.Message, "\n") {
				t.Errorf("message: got %q, want one line", f.Message)
			}
		})
	}
	for _, f := range doctor.Run(t.Context(), newDoctorFixture(t).Options) {
		if !tested[f.Check] {
			t.Errorf("test case for %s is missing", f.Check)
		}
	}
}

// findingCase changes the node and has the expected finding of one check.
type findingCase struct {
	check     string
	status    doctor.CheckStatus
	message   string
	fix       string
	noKubelet bool
	change    func(*doctorFixture)
}

var driverCases = []findingCase{
	{check: "driver", status: doctor.StatusOK, message: "/usr/lib64/libnvidia-ml.so.1: version 580.82.07, 2 GPUs and 1 MIG device", change: func(*doctorFixture) {}},
	{check: "driver", status: doctor.StatusOK, message: ": 3 GPUs", change: func(s *doctorFixture) {
		s.driver.library.Version = ""
		s.driver.devices = []device.Device{{ID: "a", GPU: "a"}, {ID: "b", GPU: "b"}, {ID: "c", GPU: "c"}}
	}},
	{check: "driver", status: doctor.StatusSkipped, message: "simulated", change: func(s *doctorFixture) { s.Driver = nil }},
	{check: "driver", status: doctor.StatusFailure, message: "cannot open", fix: "NVIDIA_DRIVER_CAPABILITIES=utility", change: func(s *doctorFixture) {
		s.driver.devices, s.driver.err, s.driver.library = nil, errors.New("cannot open libnvidia-ml.so.1"), device.Library{}
	}},
	{check: "driver", status: doctor.StatusFailure, message: "no response within", fix: "dmesg", change: func(s *doctorFixture) { s.driver.library, s.driver.block = device.Library{}, s.newHang() }},
	{check: "driver", status: doctor.StatusFailure, message: "no response within", fix: "dmesg", change: func(s *doctorFixture) {
		s.driver.devices, s.driver.err = nil, fmt.Errorf("list: %w", context.DeadlineExceeded)
	}},
	{check: "driver", status: doctor.StatusFailure, message: "replaced", fix: "Reboot", change: func(s *doctorFixture) { s.driver.devices, s.driver.err = nil, device.ErrDriverReplaced }},
	{check: "driver", status: doctor.StatusFailure, message: "MISMATCH", fix: "Reboot", change: func(s *doctorFixture) {
		s.driver.devices, s.driver.err = nil, errors.New("initialize NVML: LIB_RM_VERSION_MISMATCH")
	}},
	{check: "driver", status: doctor.StatusFailure, message: "DRIVER_NOT_LOADED", fix: "modprobe", change: func(s *doctorFixture) {
		s.driver.devices, s.driver.err = nil, errors.New("initialize NVML: DRIVER_NOT_LOADED")
	}},
	{check: "driver", status: doctor.StatusFailure, message: "2 GPUs and 1 MIG device; not ready for confidential computing", fix: "conf-compute -srs 1", change: func(s *doctorFixture) {
		s.driver.library.NotReady = true
	}},
	{check: "driver", status: doctor.StatusWarning, message: "GPU 3 is lost; GPU 4", fix: "reset", change: func(s *doctorFixture) {
		s.driver.err = errors.Join(errors.New("GPU 3 is lost"), errors.New("GPU 4 is lost"))
	}},
	{check: "driver", status: doctor.StatusFailure, message: "2 GPUs and 1 MIG device; missing: 1 of 3 expected GPUs", fix: "lspci", change: func(s *doctorFixture) { s.ExpectedGPUs = 3 }},
	{check: "driver", status: doctor.StatusWarning, message: "0 GPUs", fix: "lspci", change: func(s *doctorFixture) { s.driver.devices = []device.Device{} }},
	{check: "driver", status: doctor.StatusOK, message: "2 GPUs", change: func(s *doctorFixture) { s.driver.library.MissingFunctions = []string{"nvmlDeviceGetSerial"} }},
	{check: "driver", status: doctor.StatusWarning, message: "2 GPUs and 1 MIG device; MIG mode without MIG devices: GPU 0", fix: "nvidia-smi mig -cgi", change: func(s *doctorFixture) {
		s.driver.devices[0].MIGEnabled, s.driver.devices[1].MIGEnabled = true, true
	}},
	{check: "driver", status: doctor.StatusWarning, message: "the library lacks a, b, c, 1 more", fix: "newer", change: func(s *doctorFixture) {
		s.driver.library.MissingFunctions, s.driver.library.MissingFamilies = []string{"a", "b", "c", "d"}, []string{"nvidia_gpu_sm_activity_ratio"}
	}},

	{check: "device nodes", status: doctor.StatusOK, message: "4 in /dev", change: func(*doctorFixture) {}},
	{check: "device nodes", status: doctor.StatusWarning, message: "/dev/nvidia-uvm: no such file", fix: "compute,utility", change: func(s *doctorFixture) { s.files.errs["/dev/nvidia-uvm"] = syscall.ENOENT }},
	{check: "device nodes", status: doctor.StatusOK, message: "3 in /dev", change: func(s *doctorFixture) { // as NVIDIA's runtime injects them
		s.InjectsDeviceNodes, s.files.errs["/dev/nvidia-uvm"] = false, syscall.ENOENT
	}},
	{check: "device nodes", status: doctor.StatusSkipped, message: "simulated", change: func(s *doctorFixture) { s.Driver = nil }},
	{check: "device nodes", status: doctor.StatusWarning, message: "/dev/nvidia1: operation not permitted", fix: "host's /dev", change: func(s *doctorFixture) { s.files.errs["/dev/nvidia1"] = syscall.EPERM }},
	{check: "device nodes", status: doctor.StatusFailure, message: "/dev/nvidiactl: no such file", fix: "nvidia-modprobe", change: func(s *doctorFixture) {
		s.driver.devices, s.driver.err, s.files.errs["/dev/nvidiactl"] = nil, device.ErrNoDriver, syscall.ENOENT
	}},
	{check: "device nodes", status: doctor.StatusFailure, message: "no response within", fix: "reboot", change: func(s *doctorFixture) { s.files.block = map[string]chan struct{}{"/dev/nvidia0": s.newHang()} }},
}

var folderCases = []findingCase{
	{check: "ready", status: doctor.StatusOK, message: "podgauge is ready", change: func(*doctorFixture) {}},
	{check: "ready", status: doctor.StatusFailure, message: "devices: 1 known GPU missing; plugin: no", fix: "podgauge device forget", change: func(s *doctorFixture) {
		s.serveReady(http.StatusServiceUnavailable, "devices: 1 known GPU missing\nplugin: no\n")
	}},
	{check: "ready", status: doctor.StatusWarning, message: "nvidia.com/gpu: waiting", fix: "--take-over", change: func(s *doctorFixture) {
		s.serveReady(http.StatusOK, "ok\nnvidia.com/gpu: waiting: another device plugin serves the resource\n")
	}},
	{check: "ready", status: doctor.StatusSkipped, message: "not podgauge's: status 200", change: func(s *doctorFixture) { s.serveReady(http.StatusOK, "hello") }},
	{check: "ready", status: doctor.StatusSkipped, message: "does not run", change: func(s *doctorFixture) { s.ReadyURL = "http://127.0.0.1:1/readyz" }},
	{check: "ready", status: doctor.StatusSkipped, message: "requires a certificate", change: func(s *doctorFixture) { s.ReadyURL = "" }},

	{check: "config", status: doctor.StatusOK, message: "no file", change: func(*doctorFixture) {}},
	{check: "config", status: doctor.StatusOK, message: "gpu.yaml is valid", change: func(s *doctorFixture) { s.Config = "gpu.yaml" }},
	{check: "config", status: doctor.StatusWarning, message: "gpu.yaml:3: flags.x: unknown key", change: func(s *doctorFixture) {
		s.Config, s.UnknownKeys = "gpu.yaml", []string{"gpu.yaml:3: flags.x: unknown key"}
	}},
	{check: "dcgm counters", status: doctor.StatusOK, message: "counters.csv: each of 1 field is served", change: func(s *doctorFixture) {
		s.setCounters("DCGM_FI_DEV_GPU_TEMP,gauge,Temperature.")
	}},
	{
		check: "dcgm counters", status: doctor.StatusWarning, fix: "dcgm.md",
		message: "counters.csv:2: got 1 of field, type, help; podgauge does not read it: DCGM_FI_DEV_BRAND, DCGM_FI_NVML_VERSION",
		change: func(s *doctorFixture) {
			s.setCounters("DCGM_FI_DEV_BRAND,label,Brand.\nDCGM_FI_DEV_GPU_TEMP\nDCGM_FI_NVML_VERSION,label,Version.")
		},
	},
	{check: "config", status: doctor.StatusFailure, message: "gpu.yaml:3", fix: "validate", change: func(s *doctorFixture) {
		s.Config, s.ConfigErr = "gpu.yaml", errors.New("gpu.yaml:3: expected a mapping")
	}},
	{check: "config", status: doctor.StatusFailure, message: "retired.yaml: entry 1", fix: "ConfigMap", change: func(s *doctorFixture) {
		s.RetiredErr = errors.New("retired.yaml: entry 1: no reason")
	}},

	{check: "processes", status: doctor.StatusSkipped, message: "hostPID", change: func(s *doctorFixture) { s.ProcessesVisible = false }},
	{check: "processes", status: doctor.StatusOK, message: "is readable", change: func(s *doctorFixture) { s.mountInContainer(s.PodLogsDir) }},
	{check: "processes", status: doctor.StatusWarning, message: "belongs to the container", fix: "hostPath", change: func(s *doctorFixture) { s.mountInContainer() }},
	{check: "processes", status: doctor.StatusWarning, message: "no such file", fix: "--pod-logs-dir", change: func(s *doctorFixture) { s.PodLogsDir += "x" }},
	{check: "processes", status: doctor.StatusWarning, message: "is empty", fix: "podLogsDir", change: func(s *doctorFixture) { s.PodLogsDir = s.mkdir("empty") }},

	{check: "kernel log", status: doctor.StatusSkipped, message: "not configured", change: func(s *doctorFixture) { s.KernelLog = "" }},
	{check: "kernel log", status: doctor.StatusSkipped, message: "does not exist", change: func(s *doctorFixture) { s.files.errs["/dev/kmsg"] = syscall.ENOENT }},
	{check: "kernel log", status: doctor.StatusWarning, message: "not permitted", fix: "SYSLOG", change: func(s *doctorFixture) { s.files.errs["/dev/kmsg"] = syscall.EPERM }},

	{check: "state", status: doctor.StatusSkipped, message: "--state-dir", change: func(s *doctorFixture) { s.StateDir = "" }},
	{check: "state", status: doctor.StatusOK, message: "/a/b is writable", change: func(s *doctorFixture) { s.StateDir += "/a/b" }},
	{check: "state", status: doctor.StatusWarning, message: "removed with it", fix: "hostPath", change: func(s *doctorFixture) { s.mountInContainer() }},
	{check: "state", status: doctor.StatusFailure, message: "read-only file system", fix: "readOnly", change: func(s *doctorFixture) { s.files.errs[s.StateDir] = syscall.EROFS }},
	{check: "state", status: doctor.StatusFailure, message: "is not a folder", fix: "folder", change: func(s *doctorFixture) {
		s.StateDir = filepath.Join(s.dir, "file")
		require.NoError(s, os.WriteFile(s.StateDir, nil, 0o600))
	}},

	{check: "cdi", status: doctor.StatusSkipped, message: "no device list strategy", change: func(s *doctorFixture) { s.CDIDir = "" }},
	{check: "cdi", status: doctor.StatusOK, message: "is writable", change: func(s *doctorFixture) { // through a link, like /var/run
		link := filepath.Join(s.dir, "run")
		require.NoError(s, os.Symlink(s.CDIDir, link))
		s.mountInContainer(s.CDIDir)
		s.CDIDir = link
	}},
	{check: "cdi", status: doctor.StatusFailure, message: "belongs to the container", fix: "hostPath", change: func(s *doctorFixture) { s.mountInContainer(s.StateDir) }},
	{check: "cdi", status: doctor.StatusFailure, message: "permission denied", fix: "uid 0", change: func(s *doctorFixture) { s.files.errs[s.CDIDir] = syscall.EACCES }},
}

// TestMounts checks folders below a mount point of the node, and folders with only
// the same prefix.
func TestMounts(t *testing.T) {
	s := newDoctorFixture(t)
	dir, err := filepath.EvalSymlinks(s.dir)
	require.NoError(s, err)
	for _, name := range []string{"lib/kub/x", "lib/kubelet", "a b/c", "etc"} {
		s.mkdir(name)
	}
	s.mountInContainer(filepath.Join(dir, "lib/kub"), filepath.Join(dir, "a b"))
	for name, want := range map[string]doctor.CheckStatus{
		"lib/kub": doctor.StatusOK, "lib/kub/x": doctor.StatusOK, "a b/c": doctor.StatusOK,
		"lib/kubelet": doctor.StatusWarning, "lib": doctor.StatusWarning, "etc": doctor.StatusWarning,
	} {
		s.StateDir = filepath.Join(dir, name)
		if f := s.finding("state"); f.Status != want {
			t.Errorf("%s: got %+v, want %s", name, f, want)
		}
	}
	s.Proc = filepath.Join(s.dir, "nowhere") // without mountinfo
	if f := s.finding("state"); f.Status != doctor.StatusOK {
		t.Errorf("without mount points: got %+v", f)
	}
}

// TestHostFiles examines files of the machine of the tests.
func TestHostFiles(t *testing.T) {
	s := newDoctorFixture(t)
	s.Files, s.KernelLog, s.DevRoot = nil, "/dev/null", s.dir
	require.NoError(s, os.WriteFile(filepath.Join(s.mkdir("dev"), "nvidiactl"), nil, 0o600))
	if f := s.finding("kernel log"); f.Status != doctor.StatusOK {
		t.Errorf("device node: got %+v", f)
	}
	if f := s.finding("state"); f.Status != doctor.StatusOK {
		t.Errorf("writable folder: got %+v", f)
	}
	message := s.finding("device nodes").Message
	for _, want := range []string{"dev/nvidiactl is not a device node", "dev/nvidia-uvm: no such file"} {
		expect.Contains(t, message, want, "device nodes")
	}
}
