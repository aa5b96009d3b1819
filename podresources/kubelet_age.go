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

// ticksPerSecond is the unit of process start times in /proc (USER_HZ).
const ticksPerSecond = 100

// kubeletAge returns the greatest possible age of the listening kubelet: the least age of socket, boot and, if visible (hostPID), process.
// The socket's time alone is not enough: the clock may have been wrong at boot and set later.
func kubeletAge(conn *net.UnixConn, socket string) time.Duration {
	var age time.Duration
	if info, err := os.Stat(socket); err == nil {
		age = max(0, time.Since(info.ModTime()))
	}
	pid := peerPID(conn)
	if pid == os.Getpid() { // a simulated kubelet may claim to be older than this process
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

// processStart returns the start of a process since the boot: field 22 of /proc/PID/stat. The name, field 2, may contain spaces and
// parentheses (proc_pid_stat(5)).
func processStart(pid int) (time.Duration, bool) {
	stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)) // an error leaves no fields
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) < 20 {
		return 0, false
	}
	ticks, err := strconv.ParseInt(fields[19], 10, 64)
	return time.Duration(ticks) * time.Second / ticksPerSecond, err == nil
}

// peerPID returns the listening process of a connection; 0 if not visible from this pid namespace.
func peerPID(conn *net.UnixConn) (pid int) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0
	}
	_ = raw.Control(func(fd uintptr) {
		if peer, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			pid = int(peer.Pid)
		}
	})
	return pid
}
