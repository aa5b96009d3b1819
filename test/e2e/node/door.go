package node

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// door is a thread of this process that has joined the node's cgroups and namespaces, so that what it starts runs inside the node and is
// still this process's own child: its id on the machine and its exit status are known without a helper in between.
type door struct {
	init   *exec.Cmd     // the first process of the namespaces; written by the thread before openDoor returns
	calls  chan func()   // what the thread has to do; closed to end it
	closed chan struct{} // closed when it has ended
}

// openDoor makes the namespaces with init as their first process, and a door to them.
func openDoor(in cgroups, init *exec.Cmd) (*door, error) {
	d := &door{init: init, calls: make(chan func()), closed: make(chan struct{})}
	go d.thread()
	if err := d.do(func() error { return d.enter(in) }); err != nil {
		d.close()
		return nil, err
	}
	return d, nil
}

// thread never unlocks: namespaces cannot be given back, so that the thread has to end with its goroutine.
func (d *door) thread() {
	runtime.LockOSThread()
	if syscall.Gettid() == os.Getpid() {
		// The main thread does not end with its goroutine. While this one holds it, another gets another.
		go d.thread()
		<-d.closed
		runtime.UnlockOSThread()
		return
	}
	defer close(d.closed)
	for call := range d.calls {
		call()
	}
}

func (d *door) enter(in cgroups) error {
	// First the cgroups: a cgroup namespace is rooted where the process that makes it is.
	if err := in.takeThread(); err != nil {
		return err
	}
	d.init.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWPID | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWCGROUP,
		Setsid:     true,
		// The kernel ends init when this thread ends, however that happens, and with init all that runs in its PID namespace.
		Pdeathsig: syscall.SIGKILL,
	}
	if err := d.init.Start(); err != nil {
		return fmt.Errorf("make the node's namespaces: %w", err)
	}
	// A thread that shares its root and working folder with others may not change its mounts.
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("leave the other threads' file system: %w", err)
	}
	for _, kind := range []string{"cgroup", "ipc", "uts", "net", "pid", "mnt"} { // the mounts last: after them /proc is not this one
		if err := join(fmt.Sprintf("/proc/%d/ns/%s", d.init.Process.Pid, kind)); err != nil {
			return err
		}
	}
	return nil
}

func join(namespace string) error {
	f, err := os.Open(namespace)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.Setns(int(f.Fd()), 0); err != nil {
		return fmt.Errorf("join %s: %w", namespace, err)
	}
	return nil
}

// do runs f on the door's thread, where paths are the node's.
func (d *door) do(f func() error) error {
	result := make(chan error)
	d.calls <- func() { result <- f() }
	return <-result
}

// close ends everything inside and the thread. Callers have reaped what they started, or do so meanwhile.
func (d *door) close() {
	if d.init.Process != nil {
		_ = d.init.Process.Kill()
		_ = d.init.Wait() // returns when the kernel has ended the whole PID namespace
	}
	close(d.calls)
	<-d.closed
}
