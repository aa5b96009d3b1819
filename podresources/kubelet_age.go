package podresources

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// ticksPerSecond is the kernel's unit of start times towards processes (USER_HZ).
const ticksPerSecond = 100

// kubeletAge returns for how long the kubelet behind a connection has listened, at most. The
// socket's time is of a clock that may have been set since, as on a node whose clock is wrong
// at boot. So the kubelet is no older than the boot, nor than its process where that can be
// seen (hostPID). A process may be older than its kubelet, so the least age counts.
func kubeletAge(conn net.Conn, socket string) time.Duration {
	var age time.Duration
	if info, err := os.Stat(socket); err == nil {
		age = max(0, time.Since(info.ModTime()))
	}
	pid, err := peerPID(conn)
	if err != nil || pid == os.Getpid() { // a simulated kubelet poses as older than this process
		return age
	}
	var now unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &now) != nil {
		return age
	}
	age = min(age, time.Duration(now.Nano()))
	if start, ok := processStart(pid); ok {
		age = min(age, max(0, time.Duration(now.Nano())-start))
	}
	return age
}

// processStart returns when a process started, since the boot: field 22 of its stat, the
// twentieth behind the name, which may have spaces and brackets (proc_pid_stat(5)).
func processStart(pid int) (time.Duration, bool) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, false
	}
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) < 20 {
		return 0, false
	}
	ticks, err := strconv.ParseInt(fields[19], 10, 64)
	return time.Duration(ticks) * time.Second / ticksPerSecond, err == nil
}

// peerPID returns the process that listens on the other side; 0 if it is in no pid namespace
// that can be seen from here.
func peerPID(conn net.Conn) (pid int, err error) {
	of, ok := conn.(*net.UnixConn)
	if !ok {
		return 0, net.ErrClosed
	}
	raw, err := of.SyscallConn()
	if err != nil {
		return 0, err
	}
	controlErr := raw.Control(func(fd uintptr) {
		var peer *unix.Ucred
		if peer, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			pid = int(peer.Pid)
		}
	})
	if controlErr != nil {
		return 0, controlErr
	}
	return pid, err
}
