package image

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
	"testing"

	nvmltest "github.com/podgauge/podgauge/test/nvml"
)

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
			if err := s.run(t.Context(), r); err != nil {
				t.Error(err)
			}
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
