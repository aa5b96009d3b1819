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

// run is one way in which podgauge is started from the image.
type run struct {
	name string
	of   func(ctx context.Context, r *runner) error
	// native: it loads a library, which is built for this machine.
	native bool
}

// runs are of each program, by its name.
var runs = map[string][]run{
	"podgauge": {
		{"--version", version, false},
		{"a driver that was injected", injected, true},
		{"a driver of the host that comes late", late, true},
		{"device nodes of the host", deviceNodes, false},
	},
	simulator: {
		{"--version", version, false},
		{"a simulated node", simulated, false},
	},
}

// runner has an image on disk.
type runner struct {
	*bundle
	img *image
	// library is the stand-in for the driver's.
	library string
}

// soname is what the driver's library is called.
const soname = "libnvidia-ml.so.1"

// start makes a runner, whose files lie below dir.
func start(ctx context.Context, img *image, dir string) (*runner, error) {
	r := &runner{img: img, bundle: &bundle{dir: dir, env: img.config.Config.Env}}
	if err := os.Mkdir(filepath.Join(dir, "rootfs"), 0o755); err != nil {
		return nil, err
	}
	if err := img.unpack(filepath.Join(dir, "rootfs")); err != nil {
		return nil, fmt.Errorf("unpack the image: %w", err)
	}
	if _, err := need(ctx, "runc", "runc"); err != nil {
		return nil, err
	}
	if img.config.Architecture != runtime.GOARCH {
		name := map[string]string{"amd64": "qemu-x86_64-static", "arm64": "qemu-aarch64-static"}[img.config.Architecture]
		var err error
		r.emulator, err = need(ctx, name, "qemu-user-static")
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

// need finds a program of this machine, and asks Debian for it where it is missing.
func need(ctx context.Context, name, pkg string) (string, error) {
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

// do makes all runs, one after another, and says how each went.
func (r *runner) do(ctx context.Context, say func(name, found string, err error)) {
	for _, run := range runs[r.img.program()] {
		if run.native && r.emulator != "" {
			continue
		}
		r.plain()
		say(run.name, "as uid 0 without a capability, on a read-only root", run.of(ctx, r))
	}
}

// plain takes back what a run has asked for.
func (r *runner) plain() { r.env, r.mounts, r.devices = r.img.config.Config.Env, nil, nil }

// version: it says the version that its label has.
func version(ctx context.Context, r *runner) error {
	got, err := r.output(ctx, "--version")
	want := "podgauge " + r.img.config.Config.Labels["org.opencontainers.image.version"]
	if err == nil && got != want {
		err = fmt.Errorf("it says %q, want %q", got, want)
	}
	return err
}

// simulated: a whole node, which `status` can be asked about as by `kubectl exec`.
func simulated(ctx context.Context, r *runner) error {
	c, err := r.launch(ctx)
	if err != nil {
		return err
	}
	err = c.wait(ctx, "podgauge_simulated 1", "podgauge_nvml_up 1", "nvidia_gpu_power_watts{", `nvidia_gpu_healthy{`)
	if err == nil {
		_, err = c.get(ctx, "/readyz")
	}
	if err == nil {
		var table string
		table, err = c.exec(ctx, r.bundle, "status", "--web.listen-address="+c.address)
		if err == nil && !strings.Contains(table, "8 of 8 devices healthy") {
			err = fmt.Errorf("status says %q", table)
		}
	}
	return errors.Join(err, c.stop())
}

// driver is what /metrics has once the stand-in was loaded.
var driver = []string{"podgauge_nvml_up 1", "nvidia_gpu_info{"}

// scenario has the stand-in show a machine, and the container see it.
func (r *runner) scenario() error {
	if err := os.WriteFile(filepath.Join(r.dir, "scenario"), []byte("gpus 8\n"), 0o644); err != nil {
		return err
	}
	r.mounts = []mount{{"/scenario", "none", filepath.Join(r.dir, "scenario"), []string{"bind", "ro"}}}
	r.env = slices.Concat(r.img.config.Config.Env, []string{"NVML_STANDIN=/scenario"})
	return nil
}

// injected: the library is where NVIDIA's runtime puts it, and no cache of the linker's knows it.
func injected(ctx context.Context, r *runner) error {
	at := r.img.libraries() + "/" + soname
	if err := errors.Join(r.scenario(), r.place(r.library, at)); err != nil {
		return err
	}
	defer os.Remove(filepath.Join(r.dir, "rootfs", at))
	c, err := r.launch(ctx)
	if err != nil {
		return err
	}
	return errors.Join(c.wait(ctx, driver...), c.stop())
}

// late: the library appears below the mounted driver root while podgauge runs.
func late(ctx context.Context, r *runner) error {
	host := filepath.Join(r.dir, "host", "usr", "lib64")
	if err := errors.Join(r.scenario(), os.MkdirAll(host, 0o755)); err != nil {
		return err
	}
	r.mounts = append(r.mounts, mount{"/driver-root", "none", filepath.Join(r.dir, "host"), []string{"rbind", "rslave", "ro"}})
	c, err := r.launch(ctx)
	if err != nil {
		return err
	}
	err = c.wait(ctx, "podgauge_nvml_up 0")
	if err == nil {
		err = os.Rename(r.library, filepath.Join(host, soname))
	}
	if err == nil {
		err = c.wait(ctx, driver...)
	}
	return errors.Join(err, c.stop())
}

// deviceNodes: mounting the host's nodes is not enough. The container's cgroup says which ones may be opened, and only
// NVIDIA's runtime, a device plugin, CDI or `privileged` have it say so.
func deviceNodes(ctx context.Context, r *runner) error {
	node := filepath.Join(r.dir, "nvidiactl")
	if err := syscall.Mknod(node, syscall.S_IFCHR|0o666, 195<<8|255); err != nil { // documented in the kernel's devices.txt
		return fmt.Errorf("make %s: %w", node, err)
	}
	defer os.Remove(node)
	r.mounts = []mount{{"/dev/nvidiactl", "none", node, []string{"bind"}}}
	const refused = "/dev/nvidiactl: operation not permitted"
	// doctor ends with status 1: there is no kubelet here.
	if table, _ := r.output(ctx, "doctor"); !strings.Contains(table, refused) {
		return fmt.Errorf("doctor does not say %q: %s", refused, table)
	}
	r.devices = []device{{Allow: true, Type: "c", Major: 195, Access: "rwm"}}
	if table, _ := r.output(ctx, "doctor"); !strings.Contains(table, "device nodes") || strings.Contains(table, refused) {
		return fmt.Errorf("doctor may not open what the cgroup allows: %s", table)
	}
	return nil
}
