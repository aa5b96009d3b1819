package client

import (
	"cmp"
	"context"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/podgauge/podgauge/internal/operator"
	"github.com/spf13/pflag"
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

const requestTimeout = 10 * time.Second

// defaultStateDir is the chart's --state-dir, on the node and in the container.
const defaultStateDir = "/var/lib/podgauge"

// addStateDirFlag declares the flag of the folder with the daemon's socket.
func addStateDirFlag(f *pflag.FlagSet, dir *string) {
	f.StringVar(dir, "state-dir", "",
		"`folder` of the daemon's --state-dir (default of the daemon in this container, or "+defaultStateDir+")")
}

// flagValue returns the last value of a flag among arguments; empty: not given.
func flagValue(args []string, name string) (value string) {
	for i, arg := range args {
		flag, text, inline := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		switch {
		case flag != name || !strings.HasPrefix(arg, "-"):
		case inline:
			value = text
		case i+1 < len(args):
			value = args[i+1]
		}
	}
	return value
}

// socketTransport returns a transport to the daemon's socket in a state folder,
// for every address.
func socketTransport(stateDir string) *http.Transport {
	path := filepath.Join(stateDir, operator.SocketName)
	dialer := net.Dialer{Timeout: requestTimeout}
	return &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, "unix", path)
		},
	}
}

// localTransport returns a transport to the daemon's socket, which needs
// neither password nor certificate, and to the network if the socket cannot be
// reached: only root can connect, and a daemon without --state-dir has no
// socket.
func localTransport(stateDir string) http.RoundTripper {
	t, network := socketTransport(stateDir), net.Dialer{}
	socket := t.DialContext
	t.DialContext = func(ctx context.Context, protocol, address string) (net.Conn, error) {
		if conn, err := socket(ctx, protocol, address); err == nil {
			return conn, nil
		}
		return network.DialContext(ctx, protocol, address)
	}
	return t
}
