package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
)

// startScenario is one way in which podgauge is started from the image.
type startScenario struct {
	name string
	run  func(ctx context.Context, r *scenarioRunner) error
	// nativeOnly: it loads a library, which is built for this machine.
	nativeOnly bool
}

// startScenarios are of each program, by its name.
var startScenarios = map[string][]startScenario{
	"podgauge": {
		{"--version", runVersion, false},
		{"a driver that was injected", runInjected, true},
		{"a driver of the host that comes late", runLateDriver, true},
		{"device nodes of the host", runDeviceNodes, false},
	},
	simulatorName: {
		{"--version", runVersion, false},
		{"a simulated node", runSimulated, false},
	},
}

// scenarioRunner has an image on disk.
type scenarioRunner struct {
	*runcBundle
	img *ociImage
	// library is the stand-in for the driver's.
	library string
}

// soname is what the driver's library is called.
const soname = "libnvidia-ml.so.1"

// newScenarioRunner makes a runner, whose files lie below dir.
func newScenarioRunner(ctx context.Context, img *ociImage, dir string) (*scenarioRunner, error) {
	r := &scenarioRunner{img: img, runcBundle: &runcBundle{dir: dir, env: img.config.Config.Env}}
	if err := os.Mkdir(filepath.Join(dir, "rootfs"), 0o755); err != nil {
		return nil, err
	}
	if err := img.unpack(filepath.Join(dir, "rootfs")); err != nil {
		return nil, fmt.Errorf("unpack the image: %w", err)
	}
	if _, err := findTool(ctx, "runc", "runc"); err != nil {
		return nil, err
	}
	if img.config.Architecture != runtime.GOARCH {
		name := map[string]string{"amd64": "qemu-x86_64-static", "arm64": "qemu-aarch64-static"}[img.config.Architecture]
		var err error
		r.emulator, err = findTool(ctx, name, "qemu-user-static")
		return r, err
	}
	build := exec.CommandContext(ctx, "go", "run", "./test/nvml/build", "-o", filepath.Join(dir, "nvml"))
	build.Dir = filepath.Join("..", "..")
	out, err := build.CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("build the driver's stand-in: %w: %s", err, out)
	}
	r.library = strings.TrimSpace(string(out))
	return r, nil
}

// findTool finds a program of this machine, and asks Debian for it where it is missing.
func findTool(ctx context.Context, name, pkg string) (string, error) {
	if at, err := exec.LookPath(name); err == nil {
		return at, nil
	}
	for _, args := range [][]string{{"update", "-q"}, {"install", "-q", "-y", "--no-install-recommends", pkg}} {
		if out, err := exec.CommandContext(ctx, "apt-get", args...).CombinedOutput(); err != nil {
			return "", fmt.Errorf("install %s: %w: %s", pkg, err, out)
		}
	}
	return exec.LookPath(name)
}

// runAll makes all runs, one after another, and says how each went.
func (r *scenarioRunner) runAll(ctx context.Context, report func(name, found string, err error)) {
	for _, run := range startScenarios[r.img.programName()] {
		if run.nativeOnly && r.emulator != "" {
			continue
		}
		r.reset()
		report(run.name, "as uid 0 without a capability, on a read-only root", run.run(ctx, r))
	}
}

// reset takes back what a run has asked for.
func (r *scenarioRunner) reset() { r.env, r.mounts, r.devices = r.img.config.Config.Env, nil, nil }

// runVersion: it says the version that its label has.
func runVersion(ctx context.Context, r *scenarioRunner) error {
	got, err := r.output(ctx, "--version")
	want := "podgauge " + r.img.config.Config.Labels["org.opencontainers.image.version"]
	if err == nil && got != want {
		err = fmt.Errorf("it says %q, want %q", got, want)
	}
	return err
}

// runSimulated: a whole node, which `status` can be asked about as by `kubectl exec`.
func runSimulated(ctx context.Context, r *scenarioRunner) error {
	c, err := r.launch(ctx)
	if err != nil {
		return err
	}
	err = c.waitForLines(ctx, "podgauge_simulated 1", "podgauge_nvml_up 1", "nvidia_gpu_power_watts{", `nvidia_gpu_healthy{`)
	if err == nil {
		_, err = c.fetch(ctx, "/readyz")
	}
	if err == nil {
		var table string
		table, err = c.exec(ctx, r.runcBundle, "status", "--web.listen-address="+c.address)
		if err == nil && !strings.Contains(table, "8 of 8 devices healthy") {
			err = fmt.Errorf("status says %q", table)
		}
	}
	return errors.Join(err, c.stop())
}

// driverSeries is what /metrics has once the stand-in was loaded.
var driverSeries = []string{"podgauge_nvml_up 1", "nvidia_gpu_info{"}

// addScenario has the stand-in show a machine, and the container see it.
func (r *scenarioRunner) addScenario() error {
	if err := os.WriteFile(filepath.Join(r.dir, "scenario"), []byte("gpus 8\n"), 0o644); err != nil {
		return err
	}
	r.mounts = []bindMount{{"/scenario", "none", filepath.Join(r.dir, "scenario"), []string{"bind", "ro"}}}
	r.env = slices.Concat(r.img.config.Config.Env, []string{"NVML_STANDIN=/scenario"})
	return nil
}

// runInjected: the library is where NVIDIA's runtime puts it, and no cache of the linker's knows it.
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

// runLateDriver: the library appears below the mounted driver root while podgauge runs.
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

// runDeviceNodes: mounting the host's nodes is not enough. The container's cgroup says which ones may be opened, and only
// NVIDIA's runtime, a device plugin, CDI or `privileged` have it say so.
func runDeviceNodes(ctx context.Context, r *scenarioRunner) error {
	node := filepath.Join(r.dir, "nvidiactl")
	if err := syscall.Mknod(node, syscall.S_IFCHR|0o666, 195<<8|255); err != nil { // documented in the kernel's devices.txt
		return fmt.Errorf("make %s: %w", node, err)
	}
	defer os.Remove(node)
	r.mounts = []bindMount{{"/dev/nvidiactl", "none", node, []string{"bind"}}}
	const refused = "/dev/nvidiactl: operation not permitted"
	// doctor ends with status 1: there is no kubelet here.
	if table, _ := r.output(ctx, "doctor"); !strings.Contains(table, refused) {
		return fmt.Errorf("doctor does not say %q: %s", refused, table)
	}
	r.devices = []cgroupDevice{{Allow: true, Type: "c", Major: 195, Access: "rwm"}}
	if table, _ := r.output(ctx, "doctor"); !strings.Contains(table, "device nodes") || strings.Contains(table, refused) {
		return fmt.Errorf("doctor may not open what the cgroup allows: %s", table)
	}
	return nil
}
