package guest

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// InitCommand and JobCommand are the arguments of the program in the guest: as
// the first process, and as the service that runs the command.
const (
	InitCommand = "guest-init"
	JobCommand  = "guest-job"
)

// machineRoot is the writable root of the machine in the guest.
const machineRoot = "/machine"

// job is a command that the guest runs. jobFile has it as JSON.
type job struct {
	Args []string
	Env  []string
	Dir  string
	// Logs is a folder that the guest copies to the machine.
	Logs string
}

const (
	jobFile    = "job.json"
	statusFile = "status"
	jobUnit    = "job.service"
)

// units are systemd's units of the guest, by their path in /run/systemd/system.
// Without default dependencies, only D-Bus and the job start.
var units = map[string]string{
	"dbus.service.d/guest.conf": "[Unit]\nDefaultDependencies=no\n",
	"dbus.socket.d/guest.conf":  "[Unit]\nDefaultDependencies=no\n",
	jobUnit: `[Unit]
Requires=dbus.service
After=dbus.service
DefaultDependencies=no
AllowIsolate=yes
SuccessAction=poweroff-immediate
FailureAction=poweroff-immediate
[Service]
Type=oneshot
ExecStart=%s ` + JobCommand + ` %s
StandardOutput=tty
StandardError=tty
`,
}

// Init is the guest's first process: mounts the guest's root and executes
// systemd. The current root is the machine's, read-only.
func Init(files, jobDir string) error {
	const base = "/run"
	root, layer := base+"/root", base+"/layer"
	if err := errors.Join(
		mount("tmpfs", base, "mode=755,size=75%"),
		os.Mkdir(root, 0o755), os.Mkdir(layer, 0o755), os.Mkdir(base+"/upper", 0o755), os.Mkdir(base+"/work", 0o755),
		mount("hostfs", layer, filepath.Join(files, "root")),
	); err != nil {
		return err
	}
	modprobe := exec.Command("/usr/sbin/modprobe", "overlay")
	modprobe.SysProcAttr = &syscall.SysProcAttr{Chroot: layer}
	if out, err := modprobe.CombinedOutput(); err != nil {
		return fmt.Errorf("load the module overlay: %w: %s", err, out)
	}
	err := mount("overlay", root, fmt.Sprintf("lowerdir=%s:/,upperdir=%[2]s/upper,workdir=%[2]s/work", layer, base))
	if err != nil {
		return err
	}
	_ = os.Remove(root + "/.dockerenv") // of the machine; systemd would ignore the kernel's arguments
	if err := errors.Join(
		os.MkdirAll(root+machineRoot, 0o755), mount("hostfs", root+machineRoot, "/"),
		// containerd's overlays cannot be in an overlay
		mount("tmpfs", root+"/var/tmp", "mode=1777,size=75%"),
		mount("tmpfs", root+"/run", "mode=755"), writeUnits(root, jobDir),
		os.Chdir(root), os.MkdirAll("old", 0o755), unix.PivotRoot(".", "old"), unix.Chroot("."),
		unix.Unmount("/old", unix.MNT_DETACH),
	); err != nil {
		return err
	}
	return unix.Exec("/lib/systemd/systemd", []string{"systemd"}, os.Environ())
}

func mount(kind, target, data string) error {
	if err := unix.Mount(kind, target, kind, 0, data); err != nil {
		return fmt.Errorf("mount %s on %s: %w", kind, target, err)
	}
	return nil
}

func writeUnits(root, jobDir string) error {
	for name, content := range units {
		if name == jobUnit {
			content = fmt.Sprintf(content, os.Args[0], jobDir) // /proc is that of the machine
		}
		file := filepath.Join(root, "run/systemd/system", name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// RunJob runs the command of a job, and writes its exit status.
func RunJob(dir string) error {
	b, err := os.ReadFile(filepath.Join(dir, jobFile))
	if err != nil {
		return err
	}
	var j job
	if err := json.Unmarshal(b, &j); err != nil {
		return fmt.Errorf("decode %s: %w", jobFile, err)
	}
	if err := disableCarriageReturns(os.Stdout); err != nil {
		return err
	}
	command := exec.Command(j.Args[0], j.Args[1:]...)
	command.Dir, command.Env, command.Stdout, command.Stderr = j.Dir, j.Env, os.Stdout, os.Stdout
	err = command.Run()
	if exited := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exited) {
		return err
	}
	if _, err := os.Stat(j.Logs); err == nil {
		kept := filepath.Join(machineRoot, j.Logs)
		keep := exec.Command("sh", "-c", `mkdir -p "$1" && cp -r "$0/." "$1"`, j.Logs, kept)
		if out, err := keep.CombinedOutput(); err != nil {
			return fmt.Errorf("copy logs: %w: %s", err, out)
		}
	}
	status := strconv.Itoa(command.ProcessState.ExitCode())
	return os.WriteFile(filepath.Join(machineRoot, dir, statusFile), []byte(status), 0o644)
}

// disableCarriageReturns makes the console write lines as they are.
func disableCarriageReturns(console *os.File) error {
	settings, err := unix.IoctlGetTermios(int(console.Fd()), unix.TCGETS)
	if err != nil {
		return fmt.Errorf("read settings of the console: %w", err)
	}
	settings.Oflag &^= unix.OPOST
	return unix.IoctlSetTermios(int(console.Fd()), unix.TCSETS, settings)
}
