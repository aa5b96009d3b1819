package plugin

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

func (p *Plugin) kubeletSocket() string {
	return filepath.Join(p.Dir, filepath.Base(api.KubeletSocket))
}

// prefix begins the names of this resource's sockets.
func (p *Plugin) prefix() string {
	return "podgauge-" + strings.NewReplacer("/", "_", ".", "-").Replace(p.Resource) + "-"
}

// sweep removes the sockets of lives that were killed. The kubelet does so only
// when it starts. Those of another podgauge that still runs are left alone: only
// a refusal proves that nobody is there.
func (p *Plugin) sweep() {
	entries, _ := os.ReadDir(p.Dir) // where it cannot be read, listening says why
	for _, e := range entries {
		socket := filepath.Join(p.Dir, e.Name())
		ours := strings.HasPrefix(e.Name(), p.prefix()) && e.Type() == os.ModeSocket
		if ours && errors.Is(reach(socket), syscall.ECONNREFUSED) {
			os.Remove(socket) //nolint:errcheck // a stale socket does no harm
		}
	}
}

// socketID tells a socket from its successor under the same path. The inode
// number alone does not: a file system gives it out again, and a kubelet's new
// socket was seen to have the old one's in eight of ten restarts. The zero
// socketID is no socket.
type socketID struct {
	inode uint64
	ctime syscall.Timespec
}

func identify(path string) socketID {
	info, err := os.Stat(path)
	if err != nil || info.Mode()&os.ModeSocket == 0 {
		return socketID{}
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return socketID{}
	}
	return socketID{stat.Ino, stat.Ctim}
}

// reach says why nobody takes connections on a socket; nil is that somebody does.
func reach(path string) error {
	if err := fits(path); err != nil {
		return err
	}
	conn, err := net.DialTimeout("unix", path, time.Second)
	if err != nil {
		return err
	}
	conn.Close() //nolint:errcheck // nothing was sent
	return nil
}

// fits says that a path is too long for a socket: the system call's own "invalid
// argument" does not.
func fits(path string) error {
	const most = 107 // unix(7)
	if len(path) > most {
		return fmt.Errorf("the folder's path is too long: a socket in %s would have one of more than %d bytes", filepath.Dir(path), most)
	}
	return nil
}
