package node

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// nsenterThread is a thread of this process in the node's cgroups and
// namespaces. Programs that the thread starts run inside the node and are
// children of this process, with known id and exit status.
type nsenterThread struct {
	init   *exec.Cmd     // the first process of the namespaces; written by the thread before newNsenterThread returns
	funcs  chan func()   // work of the thread; closed to end the thread
	closed chan struct{} // closed at the thread's end
}

// newNsenterThread creates the namespaces with init as the first process, and a
// thread inside.
func newNsenterThread(in nodeCgroups, init *exec.Cmd) (*nsenterThread, error) {
	t := &nsenterThread{init: init, funcs: make(chan func()), closed: make(chan struct{})}
	go t.run()
	if err := t.call(func() error { return t.enter(in) }); err != nil {
		t.close()
		return nil, err
	}
	return t, nil
}

// run keeps the thread locked: a thread cannot leave the namespaces, so the
// thread must end with the goroutine.
func (t *nsenterThread) run() {
	runtime.LockOSThread()
	if syscall.Gettid() == os.Getpid() {
		// The main thread does not end with its goroutine. While this goroutine
		// has the main thread, a new goroutine gets a different thread.
		go t.run()
		<-t.closed
		runtime.UnlockOSThread()
		return
	}
	defer close(t.closed)
	for call := range t.funcs {
		call()
	}
}

func (t *nsenterThread) enter(in nodeCgroups) error {
	// Cgroups first: the root of a cgroup namespace is the cgroup of its
	// creator.
	if err := in.addThread(); err != nil {
		return err
	}
	t.init.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | in.namespaces(),
		Setsid:     true,
		// The kernel ends init at the end of this thread, and with init all
		// processes of the node.
		Pdeathsig: syscall.SIGTERM,
	}
	in.addProcess(t.init.SysProcAttr)
	if err := t.init.Start(); err != nil {
		return fmt.Errorf("create namespaces: %w", err)
	}
	// A thread that shares root and working folder with other threads cannot
	// join a mount namespace.
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("unshare file system: %w", err)
	}
	// mounts last, because /proc changes with the mounts
	for _, kind := range []string{"cgroup", "ipc", "uts", "net", "pid", "mnt"} {
		if err := joinNamespace(fmt.Sprintf("/proc/%d/ns/%s", t.init.Process.Pid, kind)); err != nil {
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

// call runs f on the thread, with the node's file system.
func (t *nsenterThread) call(f func() error) error {
	result := make(chan error)
	t.funcs <- func() { result <- f() }
	return <-result
}

// close ends init and the thread, and all processes of a PID namespace, if the
// node has one. Callers must reap their child processes, at the latest during
// close.
func (t *nsenterThread) close() {
	if t.init.Process != nil {
		_ = t.init.Process.Kill()
		_ = t.init.Wait() // returns at the end of the PID namespace
	}
	close(t.funcs)
	<-t.closed
}
