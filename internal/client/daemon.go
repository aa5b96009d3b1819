package client

import (
	"cmp"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// WithDaemonFlags puts the flags of the daemon in the same container before the
// own flags of doctor or capture, which take precedence. They then use the
// daemon's folders.
func WithDaemonFlags(proc string, args []string) (all []string, note string) {
	if len(args) == 0 || args[0] != "doctor" && args[0] != "capture" {
		return args, ""
	}
	flags := daemonFlags(proc)
	if len(flags) == 0 {
		return args, ""
	}
	return slices.Concat(args[:1], flags, args[1:]), "with the flags of the daemon: " + strings.Join(flags, " ")
}

// daemonFlags returns the flags of the daemon in this process's container: the
// same program in the same mount namespace. The first argument of other
// commands is their name.
func daemonFlags(proc string) []string {
	identity := func(process string) string { // empty: ended, or of another user
		exe, exeErr := os.Readlink(filepath.Join(process, "exe"))
		mounts, mountsErr := os.Readlink(filepath.Join(process, "ns/mnt"))
		if cmp.Or(exeErr, mountsErr) != nil {
			return ""
		}
		return mounts + exe
	}
	self := identity(filepath.Join(proc, "self"))
	processes, _ := filepath.Glob(filepath.Join(proc, "[0-9]*")) // the pattern is valid
	for _, process := range processes {
		cmdline, _ := os.ReadFile(filepath.Join(process, "cmdline"))
		argv := strings.Split(strings.TrimSuffix(string(cmdline), "\x00"), "\x00")
		if self != "" && identity(process) == self && len(argv) > 1 && strings.HasPrefix(argv[1], "-") {
			return argv[1:]
		}
	}
	return nil
}
