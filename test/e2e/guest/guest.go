// Package guest runs a command in a virtual machine with systemd and cgroup v2
// on a machine that has neither, nor hardware virtualization: user-mode Linux
// (https://docs.kernel.org/virt/uml/user_mode_linux_howto_v2.html).
//
// The guest has the machine's file system, with a Debian with systemd over it.
// Changes stay in the guest's memory. It has one processor, no network, and
// neither cpusets nor NUMA nodes.
package guest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

const memory = "6G" // allocated when used, in /dev/shm

// Run boots a guest, runs a command in the current folder, and returns the exit
// status. The command has this program's environment, except for variables of
// make. The guest ends with ctx, and with this program.
func Run(ctx context.Context, args []string, logs string, out io.Writer) (status int, err error) {
	files, err := filesDir()
	if err != nil {
		return 0, err
	}
	dir, err := os.MkdirTemp("", "podgauge-guest-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	if err := writeJob(dir, job{Args: args, Env: environ(), Logs: logs}); err != nil {
		return 0, err
	}
	init, err := os.Executable()
	if err != nil {
		return 0, err
	}
	kernel := exec.CommandContext(ctx, filepath.Join(files, "root/usr/bin/linux.uml"), "mem="+memory,
		"root=hostfs", "rootfstype=hostfs", "ro", "init="+init, "console=tty0", "con=null", "con0=null,fd:1", "quiet",
		"noreboot", "panic=-1", "seccomp=auto", "uml_dir="+dir,
		"systemd.unit="+jobUnit, "--", InitCommand, files, dir)
	kernel.Stdout, kernel.Stderr = out, out
	if err := runKernel(kernel, files); err != nil {
		return 0, errors.Join(context.Cause(ctx), fmt.Errorf("run the guest's kernel: %w", err))
	}
	b, err := os.ReadFile(filepath.Join(dir, statusFile))
	if err != nil {
		return 0, fmt.Errorf("the guest ended before its command: %w", err)
	}
	return strconv.Atoi(string(b))
}

func writeJob(dir string, j job) (err error) {
	if j.Dir, err = os.Getwd(); err != nil {
		return err
	}
	b, err := json.Marshal(j)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, jobFile), b, 0o644)
}

// environ returns the environment without the variables of make, which have
// options and jobs of the machine's make. Unless set, PODGAUGE_TOLERANCE, the
// factor of time limits, is larger than on a machine.
func environ() []string {
	all := []string{"PODGAUGE_TOLERANCE=12"}
	for _, variable := range os.Environ() {
		if !strings.HasPrefix(variable, "MAKE") && !strings.HasPrefix(variable, "MFLAGS=") {
			all = append(all, variable)
		}
	}
	return all
}

// runKernel runs the guest's kernel with the C library of its Debian release,
// which is mounted over the machine's in a private mount namespace. The kernel
// executes itself again, so its loader cannot be named on a command line.
func runKernel(kernel *exec.Cmd, files string) error {
	kernel.SysProcAttr = &syscall.SysProcAttr{
		// All processes of the kernel end with the first.
		Cloneflags: unix.CLONE_NEWPID,
		Pdeathsig:  syscall.SIGKILL, // at the end of the thread below
	}
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // for ever: the thread does not return to the machine's mounts
		err := mountLibraries(files)
		if err == nil {
			err = kernel.Run()
		}
		result <- err
	}()
	return <-result
}

func mountLibraries(files string) error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, ""); err != nil {
		return err
	}
	const dir = "/usr/lib/x86_64-linux-gnu/"
	for _, name := range []string{"libc.so.6", "ld-linux-x86-64.so.2"} {
		if err := unix.Mount(filepath.Join(files, "libc", dir, name), dir+name, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("mount %s: %w", name, err)
		}
	}
	return nil
}
