package app

import (
	"cmp"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// daemonProcess is a podgauge that serves.
type daemonProcess struct {
	pid   int
	flags []string
}

// findDaemon is the one that runs in this process's container: of the same program, with the
// same mounts. There is none where several do.
func findDaemon(proc string) (daemonProcess, bool) {
	self := filepath.Join(proc, "self")
	selfExe, err := os.Stat(filepath.Join(self, "exe"))
	mounts, mountsErr := os.Readlink(filepath.Join(self, "ns/mnt"))
	entries, listErr := os.ReadDir(proc)
	if cmp.Or(err, mountsErr, listErr) != nil {
		return daemonProcess{}, false
	}
	var found []daemonProcess
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		process := filepath.Join(proc, entry.Name())
		// What cannot be read is another's, or has ended.
		exe, err := os.Stat(filepath.Join(process, "exe"))
		if err != nil || !os.SameFile(exe, selfExe) {
			continue
		}
		if otherMounts, err := os.Readlink(filepath.Join(process, "ns/mnt")); err != nil || otherMounts != mounts {
			continue
		}
		cmdline, err := os.ReadFile(filepath.Join(process, "cmdline"))
		if err != nil || len(cmdline) == 0 {
			continue
		}
		argv := strings.Split(strings.TrimSuffix(string(cmdline), "\x00"), "\x00")
		if flags := argv[1:]; len(flags) == 0 || !subcommands[flags[0]] {
			found = append(found, daemonProcess{pid: pid, flags: flags})
		}
	}
	if len(found) != 1 {
		return daemonProcess{}, false
	}
	return found[0], true
}

// subcommands are what podgauge does besides serving.
var subcommands = map[string]bool{"doctor": true, "incidents": true, "status": true, "validate": true}

// withDaemonFlags has doctor look where the daemon beside it does: its flags go before those that
// doctor was given, which hold where both say something.
func withDaemonFlags(proc string, args []string) ([]string, string) {
	if len(args) == 0 || args[0] != "doctor" {
		return args, ""
	}
	d, ok := findDaemon(proc)
	if !ok || len(d.flags) == 0 {
		return args, ""
	}
	all := append([]string{"doctor"}, d.flags...)
	return append(all, args[1:]...), "with the flags of process " + strconv.Itoa(d.pid) + ": " + strings.Join(d.flags, " ")
}
