package node

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// nsenterThread is a thread of this process that has joined the node's cgroups and namespaces, so that what it starts runs inside the node and is
// still this process's own child: its id on the machine and its exit status are known without a helper in between.
type nsenterThread struct {
	init   *exec.Cmd     // the first process of the namespaces; written by the thread before newNsenterThread returns
	funcs  chan func()   // what the thread has to do; closed to end it
	closed chan struct{} // closed when it has ended
}

// newNsenterThread makes the namespaces with init as their first process, and a door to them.
func newNsenterThread(in nodeCgroups, init *exec.Cmd) (*nsenterThread, error) {
	d := &nsenterThread{init: init, funcs: make(chan func()), closed: make(chan struct{})}
	go d.run()
	if err := d.call(func() error { return d.enter(in) }); err != nil {
		d.close()
		return nil, err
	}
	return d, nil
}

// run never unlocks: namespaces cannot be given back, so that the thread has to end with its goroutine.
func (d *nsenterThread) run() {
	runtime.LockOSThread()
	if syscall.Gettid() == os.Getpid() {
		// The main thread does not end with its goroutine. While this one holds it, another gets another.
		go d.run()
		<-d.closed
		runtime.UnlockOSThread()
		return
	}
	defer close(d.closed)
	for call := range d.funcs {
		call()
	}
}

func (d *nsenterThread) enter(in nodeCgroups) error {
	// First the cgroups: a cgroup namespace is rooted where the process that makes it is.
	if err := in.addThread(); err != nil {
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
		if err := joinNamespace(fmt.Sprintf("/proc/%d/ns/%s", d.init.Process.Pid, kind)); err != nil {
			return err
		}
	}
	return nil
}

func joinNamespace(namespace string) error {
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

// call runs f on the door's thread, where paths are the node's.
func (d *nsenterThread) call(f func() error) error {
	result := make(chan error)
	d.funcs <- func() { result <- f() }
	return <-result
}

// close ends everything inside and the thread. Callers have reaped what they started, or do so meanwhile.
func (d *nsenterThread) close() {
	if d.init.Process != nil {
		_ = d.init.Process.Kill()
		_ = d.init.Wait() // returns when the kernel has ended the whole PID namespace
	}
	close(d.funcs)
	<-d.closed
}
