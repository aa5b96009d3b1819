package plugin

import (
	"errors"
	"fmt"
	"hash/crc32"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

func (e *endpoint) kubeletSocket() string {
	return filepath.Join(e.Dir, filepath.Base(api.KubeletSocket))
}

// maxNameLength is how much of a resource's name goes into the names of its sockets:
// with the folder and the rest they may have 107 bytes.
const maxNameLength = 40

// socketPrefix begins the names of this resource's sockets, and no other's: what comes
// after it has one dash.
func (e *endpoint) socketPrefix() string {
	name := strings.NewReplacer("/", "_", ".", "-").Replace(e.resource)
	if len(name) > maxNameLength {
		sum := crc32.ChecksumIEEE([]byte(e.resource))
		name = fmt.Sprintf("%s_%08x", name[:maxNameLength-9], sum)
	}
	return "podgauge-" + name + "-"
}

// isOwnSocket tells whether a file's name is one that begin gave to a socket of this
// resource: another one's may begin with it ("gpu", "gpu.shared").
func (e *endpoint) isOwnSocket(file string) bool {
	rest, ours := strings.CutPrefix(file, e.socketPrefix())
	return ours && strings.Count(rest, "-") == 1
}

// removeStaleSockets removes the sockets of lives that were killed. The kubelet does so only
// when it starts. Those of another podgauge that still runs are left alone: only
// a refusal proves that nobody is there.
func (e *endpoint) removeStaleSockets() {
	entries, _ := os.ReadDir(e.Dir) // where it cannot be read, listening says why
	for _, f := range entries {
		socket := filepath.Join(e.Dir, f.Name())
		ours := e.isOwnSocket(f.Name()) && f.Type() == os.ModeSocket
		if ours && errors.Is(checkListening(socket), syscall.ECONNREFUSED) {
			os.Remove(socket) //nolint:errcheck // a stale socket does no harm
		}
	}
}

// socketID tells a socket from its successor under the same path. The inode
// number alone does not: a file system gives it out again, and a kubelet's new
// socket was seen to have the old one's in eight of ten restarts. A socket is not
// written, so its time of modification is when it was made, whatever becomes of its
// name, mode or owner. The zero socketID is no socket.
type socketID struct {
	inode uint64
	mtime syscall.Timespec
}

func statSocket(path string) socketID {
	info, err := os.Stat(path)
	if err != nil || info.Mode()&os.ModeSocket == 0 {
		return socketID{}
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return socketID{}
	}
	return socketID{stat.Ino, stat.Mtim}
}

// checkListening says why nobody takes connections on a socket; nil is that somebody does.
func checkListening(path string) error {
	if err := checkPathLength(path); err != nil {
		return err
	}
	conn, err := net.DialTimeout("unix", path, time.Second)
	if err != nil {
		return err
	}
	conn.Close() //nolint:errcheck // nothing was sent
	return nil
}

// checkPathLength says that a path is too long for a socket: the system call's own "invalid
// argument" does not.
func checkPathLength(path string) error {
	const maxPathLength = 107 // unix(7)
	if len(path) > maxPathLength {
		return fmt.Errorf("the folder's path is too long: a socket in %s would have one of more than %d bytes", filepath.Dir(path), maxPathLength)
	}
	return nil
}
