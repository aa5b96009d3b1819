package image

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/podgauge/podgauge/test/helpers/expect"
	"github.com/podgauge/podgauge/test/helpers/program"
	nvmltest "github.com/podgauge/podgauge/test/nvml"
)

// waitTimeout limits short operations on a busy or emulated machine.
const waitTimeout = time.Minute

// runcBundle is a runc bundle: an image's file system on disk, mounts and devices.
type runcBundle struct {
	dir string
	// emulator is the path of the emulator for the image's architecture; empty on the same architecture.
	emulator string
	mounts   []bindMount
	env      []string
	devices  []cgroupDevice
}

// cgroupDevice is a device rule of the cgroup. All devices without a rule are denied, except the default devices.
type cgroupDevice struct {
	Allow  bool   `json:"allow"`
	Type   string `json:"type,omitempty"`
	Major  int64  `json:"major,omitempty"`
	Access string `json:"access"`
}

type bindMount struct {
	Destination string   `json:"destination"`
	Type        string   `json:"type"`
	Source      string   `json:"source"`
	Options     []string `json:"options,omitempty"`
}

// unpack writes the image's file system into a folder.
func (i *ociImage) unpack(dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	for _, name := range slices.Sorted(maps.Keys(i.files)) { // folders before their files
		f, at := i.files[name], strings.TrimPrefix(name, "/")
		switch {
		case at == "":
			continue
		case f.mode.IsDir():
			err = root.MkdirAll(at, 0o755)
		case f.mode&fs.ModeSymlink != 0:
			err = root.Symlink(f.link, at)
		case f.mode.IsRegular():
			err = root.WriteFile(at, f.content, 0o644)
		default:
			err = fmt.Errorf("%s is %v", name, f.mode)
		}
		if err == nil && f.mode&fs.ModeSymlink == 0 {
			err = errors.Join(root.Chown(at, f.uid, f.gid), root.Chmod(at, f.mode))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// addFile copies a file of this machine into the bundle's root.
func (b *runcBundle) addFile(source, name string) error {
	content, err := os.ReadFile(source)
	if err != nil {
		return err
	}
	at := filepath.Join(b.dir, "rootfs", name)
	// With a rename, readers see the whole file or no file.
	if err := os.WriteFile(at+".new", content, 0o755); err != nil {
		return err
	}
	return os.Rename(at+".new", at)
}

// spec returns a configuration as for a pod that drops all capabilities, without privilege escalation, on a read-only root.
// The container uses the host network, for requests of the checks.
// https://github.com/opencontainers/runtime-spec/blob/main/config.md
func (b *runcBundle) spec(args []string) map[string]any {
	mounts := append([]bindMount{
		{"/proc", "proc", "proc", nil},
		{"/dev", "tmpfs", "tmpfs", []string{"nosuid", "strictatime", "mode=755"}},
		{"/sys", "none", "/sys", []string{"rbind", "ro"}},
		{"/tmp", "tmpfs", "tmpfs", []string{"nosuid", "nodev", "noexec", "mode=1777"}},
	}, b.mounts...)
	if b.emulator != "" {
		mounts = append(mounts, bindMount{"/emulator", "none", b.emulator, []string{"bind", "ro"}})
		args = append([]string{"/emulator"}, args...)
	}
	none := []string{}
	return map[string]any{
		"ociVersion": "1.0.2",
		"process": map[string]any{
			"user": map[string]any{"uid": 0, "gid": 0}, "args": args, "env": b.env, "cwd": "/", "noNewPrivileges": true,
			"capabilities": map[string]any{"bounding": none, "effective": none, "permitted": none},
		},
		"root":   map[string]any{"path": "rootfs", "readonly": true},
		"mounts": mounts,
		"linux": map[string]any{
			"namespaces": []map[string]any{{"type": "pid"}, {"type": "mount"}, {"type": "ipc"}, {"type": "uts"}},
			"resources":  map[string]any{"devices": append([]cgroupDevice{{Access: "rwm"}}, b.devices...)},
		},
	}
}

// runningContainer is a container that runs podgauge.
type runningContainer struct {
	id      string
	address string // listen address
	process *exec.Cmd
	log     *bytes.Buffer // complete after exited is closed
	exited  chan struct{}
	err     error // of the process; written before exited is closed
}

// command returns the runc command that starts the image's program.
func (b *runcBundle) command(ctx context.Context, id string, args ...string) (*exec.Cmd, error) {
	spec, err := json.Marshal(b.spec(append([]string{programPath}, args...)))
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(b.dir, "config.json"), spec, 0o644); err != nil {
		return nil, err
	}
	return exec.CommandContext(ctx, "runc", "run", "--bundle", b.dir, id), nil
}

// output runs podgauge until exit and returns the output.
func (b *runcBundle) output(ctx context.Context, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, waitTimeout)
	defer cancel()
	cmd, err := b.command(ctx, b.id(), args...)
	if err != nil {
		return "", err
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("podgauge %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out)), err
}

func (b *runcBundle) id() string { return fmt.Sprintf("podgauge-image-%d", os.Getpid()) }

// launch starts podgauge and returns when podgauge logs the listen address.
func (b *runcBundle) launch(ctx context.Context, args ...string) (*runningContainer, error) {
	cmd, err := b.command(ctx, b.id(), append(args, "--web.listen-address=127.0.0.1:0", "--log.format=json")...)
	if err != nil {
		return nil, err
	}
	lines, err := cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	c := &runningContainer{id: b.id(), process: cmd, log: &bytes.Buffer{}, exited: make(chan struct{})}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	addresses := make(chan string, 1)
	go func() { // ends with the process; stop waits for it
		c.readLog(lines, addresses)
		c.err = cmd.Wait()
		close(c.exited)
	}()
	select {
	case c.address = <-addresses:
		return c, nil
	case <-c.exited:
		return nil, fmt.Errorf("podgauge exited: %w: %s", c.err, c.log)
	case <-time.After(waitTimeout):
		return nil, errors.Join(errors.New("podgauge logs no listen address"), c.stop())
	}
}

// readLog stores the log and sends the listen address.
func (c *runningContainer) readLog(r io.Reader, addresses chan<- string) {
	for lines := bufio.NewScanner(r); lines.Scan(); {
		fmt.Fprintln(c.log, lines.Text())
		var line struct{ Listen string }
		if json.Unmarshal(lines.Bytes(), &line) == nil && line.Listen != "" {
			addresses <- line.Listen
		}
	}
}

// exec runs a podgauge command in the container, as `kubectl exec` does.
func (c *runningContainer) exec(ctx context.Context, b *runcBundle, args ...string) (string, error) {
	command := []string{"exec", c.id}
	if b.emulator != "" {
		command = append(command, "/emulator")
	}
	out, err := exec.CommandContext(ctx, "runc", append(append(command, programPath), args...)...).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("exec podgauge %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return string(out), err
}

// stop sends SIGTERM and returns the error of the process. After waitTimeout it kills the container.
func (c *runningContainer) stop() error {
	err := exec.Command("runc", "kill", c.id, "TERM").Run()
	select {
	case <-c.exited:
		return c.err
	case <-time.After(waitTimeout):
		err = errors.Join(err, fmt.Errorf("%s ignores SIGTERM", c.id), exec.Command("runc", "delete", "--force", c.id).Run())
		_ = c.process.Process.Signal(syscall.SIGKILL)
		<-c.exited
		return err
	}
}

// fetch returns a page of podgauge.
func (c *runningContainer) fetch(ctx context.Context, page string) (string, error) {
	return program.Fetch(ctx, http.DefaultClient, "http://"+c.address+page)
}

// waitForLines scrapes /metrics until the page has a line with each prefix.
func (c *runningContainer) waitForLines(ctx context.Context, want ...string) error {
	ctx, cancel := context.WithTimeout(ctx, waitTimeout)
	defer cancel()
	for {
		page, err := c.fetch(ctx, "/metrics")
		missing := slices.DeleteFunc(slices.Clone(want), func(line string) bool { return strings.Contains("\n"+page, "\n"+line) })
		if err == nil && len(missing) == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("/metrics lacks %q: %w", missing, errors.Join(err, ctx.Err()))
		case <-c.exited:
			return fmt.Errorf("podgauge exited: %w: %s", c.err, c.log)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// startScenario starts podgauge from the image and checks its behavior.
type startScenario struct {
	name string
	run  func(ctx context.Context, r *scenarioRunner) error
	// nativeOnly: the scenario loads a library that is built for this machine.
	nativeOnly bool
}

// startScenarios has the scenarios of each program.
var startScenarios = map[string][]startScenario{
	"podgauge": {
		{"--version", runVersion, false},
		{"an injected driver", runInjected, true},
		{"a host driver after the start", runLateDriver, true},
		{"device nodes of the host", runDeviceNodes, false},
	},
	simulatorName: {
		{"--version", runVersion, false},
		{"a simulated node", runSimulated, false},
	},
	kubeName: {
		{"version", runKubeVersion, false},
	},
}

// scenarioRunner runs the scenarios of an unpacked image.
type scenarioRunner struct {
	*runcBundle
	img *ociImage
	// library is the path of the NVML stand-in.
	library string
}

// soname is the file name of the driver's library.
const soname = "libnvidia-ml.so.1"

// runScenarios runs podgauge as uid 0 without capabilities, on a read-only root.
func runScenarios(t *testing.T, img *ociImage) {
	r := newScenarioRunner(t, img)
	for _, s := range startScenarios[img.programName()] {
		t.Run(s.name, func(t *testing.T) {
			if s.nativeOnly && r.emulator != "" {
				t.Skip("the image is for a different architecture")
			}
			r.env, r.mounts, r.devices = img.config.Config.Env, nil, nil
			expect.NoError(t, s.run(t.Context(), r))
		})
	}
}

// newScenarioRunner unpacks the image and builds the NVML stand-in.
func newScenarioRunner(t *testing.T, img *ociImage) *scenarioRunner {
	t.Helper()
	r := &scenarioRunner{img: img, runcBundle: &runcBundle{dir: t.TempDir()}}
	root := filepath.Join(r.dir, "rootfs")
	if err := errors.Join(os.Mkdir(root, 0o755), img.unpack(root)); err != nil {
		t.Fatalf("unpack the image: %v", err)
	}
	var err error
	if img.config.Architecture != runtime.GOARCH {
		name := map[string]string{"amd64": "qemu-x86_64-static", "arm64": "qemu-aarch64-static"}[img.config.Architecture]
		if r.emulator, err = exec.LookPath(name); err != nil {
			t.Fatal(err)
		}
		return r
	}
	if r.library, err = nvmltest.Build(r.dir); err != nil {
		t.Fatal(err)
	}
	return r
}

// runVersion checks that --version prints the version of the image's label.
func runVersion(ctx context.Context, r *scenarioRunner) error {
	got, err := r.output(ctx, "--version")
	want := "podgauge " + r.img.config.Config.Labels["org.opencontainers.image.version"]
	if err == nil && got != want {
		err = fmt.Errorf("output is %q, want %q", got, want)
	}
	return err
}

// runKubeVersion checks that podgauge-kube prints the version of the image's label.
func runKubeVersion(ctx context.Context, r *scenarioRunner) error {
	got, err := r.output(ctx, "version")
	want := "podgauge-kube " + r.img.config.Config.Labels["org.opencontainers.image.version"]
	if err == nil && got != want {
		err = fmt.Errorf("output is %q, want %q", got, want)
	}
	return err
}

// runSimulated checks the metrics and the `status` command of a simulated node.
func runSimulated(ctx context.Context, r *scenarioRunner) error {
	c, err := r.launch(ctx)
	if err != nil {
		return err
	}
	err = c.waitForLines(ctx, "podgauge_simulated 1", "podgauge_nvml_up 1", "nvidia_gpu_power_watts{", `nvidia_gpu_healthy{`,
		`podgauge_ready{check="plugin"} 1`, `podgauge_ready{check="podresources"} 1`, `podgauge_ready{check="pods"} 1`)
	if err == nil {
		_, err = c.fetch(ctx, "/readyz")
	}
	if err == nil {
		var table string
		table, err = c.exec(ctx, r.runcBundle, "status", "--web.listen-address="+c.address)
		if err == nil && !strings.Contains(table, "8 of 8 devices healthy") {
			err = fmt.Errorf("status: %q", table)
		}
	}
	return errors.Join(err, c.stop())
}

// driverSeries are prefixes of series after the stand-in is loaded.
var driverSeries = []string{"podgauge_nvml_up 1", "nvidia_gpu_info{"}

// addScenario mounts a scenario with eight GPUs for the stand-in.
func (r *scenarioRunner) addScenario() error {
	if err := os.WriteFile(filepath.Join(r.dir, "scenario"), []byte("gpus 8\n"), 0o644); err != nil {
		return err
	}
	r.mounts = []bindMount{{"/scenario", "none", filepath.Join(r.dir, "scenario"), []string{"bind", "ro"}}}
	r.env = slices.Concat(r.img.config.Config.Env, []string{"NVML_STANDIN=/scenario"})
	return nil
}

// runInjected checks that podgauge loads the library from the folder of NVIDIA's runtime, without a linker cache.
func runInjected(ctx context.Context, r *scenarioRunner) error {
	at := r.img.libraryDir() + "/" + soname
	if err := errors.Join(r.addScenario(), r.addFile(r.library, at)); err != nil {
		return err
	}
	defer os.Remove(filepath.Join(r.dir, "rootfs", at))
	c, err := r.launch(ctx)
	if err != nil {
		return err
	}
	return errors.Join(c.waitForLines(ctx, driverSeries...), c.stop())
}

// runLateDriver checks that podgauge loads a library that appears below the driver root at run time.
func runLateDriver(ctx context.Context, r *scenarioRunner) error {
	host := filepath.Join(r.dir, "host", "usr", "lib64")
	if err := errors.Join(r.addScenario(), os.MkdirAll(host, 0o755)); err != nil {
		return err
	}
	r.mounts = append(r.mounts, bindMount{"/driver-root", "none", filepath.Join(r.dir, "host"), []string{"rbind", "rslave", "ro"}})
	c, err := r.launch(ctx)
	if err != nil {
		return err
	}
	err = c.waitForLines(ctx, "podgauge_nvml_up 0")
	if err == nil {
		err = os.Rename(r.library, filepath.Join(host, soname))
	}
	if err == nil {
		err = c.waitForLines(ctx, driverSeries...)
	}
	return errors.Join(err, c.stop())
}

// runDeviceNodes checks that `doctor` reports device nodes that the container's cgroup denies.
// A mount of the device node does not suffice: NVIDIA's runtime, a device plugin, CDI or `privileged` must allow access.
func runDeviceNodes(ctx context.Context, r *scenarioRunner) error {
	node := filepath.Join(r.dir, "nvidiactl")
	if err := syscall.Mknod(node, syscall.S_IFCHR|0o666, 195<<8|255); err != nil { // numbers from the kernel's devices.txt
		return fmt.Errorf("create %s: %w", node, err)
	}
	defer os.Remove(node)
	r.mounts = []bindMount{{"/dev/nvidiactl", "none", node, []string{"bind"}}}
	const denied = "/dev/nvidiactl: operation not permitted"
	// Without a kubelet, doctor exits with status 1.
	if table, _ := r.output(ctx, "doctor"); !strings.Contains(table, denied) {
		return fmt.Errorf("output of doctor lacks %q: %s", denied, table)
	}
	r.devices = []cgroupDevice{{Allow: true, Type: "c", Major: 195, Access: "rwm"}}
	if table, _ := r.output(ctx, "doctor"); !strings.Contains(table, "device nodes") || strings.Contains(table, denied) {
		return fmt.Errorf("doctor cannot open an allowed device node: %s", table)
	}
	return nil
}
