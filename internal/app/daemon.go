package app

import (
	"cmp"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// subcommands are the commands beside the daemon.
var subcommands = []string{"doctor", "incidents", "status", "validate"}

// withDaemonFlags puts the flags of the daemon in the same container before doctor's own flags, which take precedence. doctor then
// examines the daemon's folders.
func withDaemonFlags(proc string, args []string) (all []string, note string) {
	if len(args) == 0 || args[0] != "doctor" {
		return args, ""
	}
	pid, flags := findDaemon(proc)
	if len(flags) == 0 {
		return args, ""
	}
	return slices.Concat(args[:1], flags, args[1:]), "with the flags of process " + pid + ": " + strings.Join(flags, " ")
}

// findDaemon returns the process id and the flags of the daemon in this process's container: the same program in the same mount
// namespace. With several daemons, there are no flags.
func findDaemon(proc string) (pid string, flags []string) {
	selfExe, exeErr := os.Stat(filepath.Join(proc, "self/exe"))
	selfMounts, mountsErr := os.Readlink(filepath.Join(proc, "self/ns/mnt"))
	entries, listErr := os.ReadDir(proc)
	if cmp.Or(exeErr, mountsErr, listErr) != nil {
		return "", nil
	}
	found := 0
	for _, entry := range entries {
		if _, err := strconv.Atoi(entry.Name()); err != nil {
			continue
		}
		// Unreadable processes belong to different users, or have ended.
		process := filepath.Join(proc, entry.Name())
		exe, exeErr := os.Stat(filepath.Join(process, "exe"))
		mounts, mountsErr := os.Readlink(filepath.Join(process, "ns/mnt"))
		cmdline, cmdlineErr := os.ReadFile(filepath.Join(process, "cmdline"))
		if cmp.Or(exeErr, mountsErr, cmdlineErr) != nil || !os.SameFile(exe, selfExe) || mounts != selfMounts || len(cmdline) == 0 {
			continue
		}
		argv := strings.Split(strings.TrimSuffix(string(cmdline), "\x00"), "\x00")
		if len(argv) == 1 || !slices.Contains(subcommands, argv[1]) {
			found++
			pid, flags = entry.Name(), argv[1:]
		}
	}
	if found != 1 {
		return "", nil
	}
	return pid, flags
}
