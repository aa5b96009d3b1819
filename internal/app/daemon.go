package app

import (
	"cmp"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// daemon is a podgauge that serves.
type daemon struct {
	pid   int
	flags []string
}

// daemonBeside is the one that runs in this process's container: of the same program, with the
// same mounts. There is none where several do.
func daemonBeside(proc string) (daemon, bool) {
	self := filepath.Join(proc, "self")
	program, err := os.Stat(filepath.Join(self, "exe"))
	mounts, mountsErr := os.Readlink(filepath.Join(self, "ns/mnt"))
	folders, listErr := os.ReadDir(proc)
	if cmp.Or(err, mountsErr, listErr) != nil {
		return daemon{}, false
	}
	var found []daemon
	for _, folder := range folders {
		pid, err := strconv.Atoi(folder.Name())
		if err != nil {
			continue
		}
		process := filepath.Join(proc, folder.Name())
		// What cannot be read is another's, or has ended.
		exe, err := os.Stat(filepath.Join(process, "exe"))
		if err != nil || !os.SameFile(exe, program) {
			continue
		}
		if theirs, err := os.Readlink(filepath.Join(process, "ns/mnt")); err != nil || theirs != mounts {
			continue
		}
		line, err := os.ReadFile(filepath.Join(process, "cmdline"))
		if err != nil || len(line) == 0 {
			continue
		}
		words := strings.Split(strings.TrimSuffix(string(line), "\x00"), "\x00")
		if flags := words[1:]; len(flags) == 0 || !commands[flags[0]] {
			found = append(found, daemon{pid: pid, flags: flags})
		}
	}
	if len(found) != 1 {
		return daemon{}, false
	}
	return found[0], true
}

// commands are what podgauge does besides serving.
var commands = map[string]bool{"doctor": true, "incidents": true, "status": true, "validate": true}

// asDaemon has doctor look where the daemon beside it does: its flags go before those that
// doctor was given, which hold where both say something.
func asDaemon(proc string, args []string) ([]string, string) {
	if len(args) == 0 || args[0] != "doctor" {
		return args, ""
	}
	d, ok := daemonBeside(proc)
	if !ok || len(d.flags) == 0 {
		return args, ""
	}
	all := append([]string{"doctor"}, d.flags...)
	return append(all, args[1:]...), "with the flags of process " + strconv.Itoa(d.pid) + ": " + strings.Join(d.flags, " ")
}
