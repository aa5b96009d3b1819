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
)

const (
	// maxNameLength is the longest part of a resource's name in the name of its sockets.
	maxNameLength = 40
	maxPathLength = 107 // of a socket; unix(7)
)

// socketPrefix returns the prefix of a resource's socket names. The rest of such a name has one dash.
func socketPrefix(resource string) string {
	name := strings.NewReplacer("/", "_", ".", "-").Replace(resource)
	if len(name) > maxNameLength {
		name = fmt.Sprintf("%s_%08x", name[:maxNameLength-9], crc32.ChecksumIEEE([]byte(resource)))
	}
	return "podgauge-" + name + "-"
}

// removeStaleSockets removes the sockets of a resource's killed servers. The kubelet removes sockets only when it starts.
//
// Sockets of another running podgauge stay: only a refused connection proves that a server is gone.
func removeStaleSockets(dir, resource string) {
	entries, _ := os.ReadDir(dir) // listening in the folder returns the error
	for _, f := range entries {
		path := filepath.Join(dir, f.Name())
		// The name of another resource may begin with this one ("gpu", "gpu.shared").
		rest, own := strings.CutPrefix(f.Name(), socketPrefix(resource))
		own = own && strings.Count(rest, "-") == 1 && f.Type() == os.ModeSocket
		if own && errors.Is(checkListening(path), syscall.ECONNREFUSED) {
			os.Remove(path) //nolint:errcheck // a stale socket does no harm
		}
	}
}

// socketID identifies a socket among its successors under the same path. The zero socketID is no socket.
//
// The inode alone does not: file systems reuse it, and 8 of 10 restarts of a kubelet did. Nothing writes to a socket, so its
// modification time is the time of its creation, even after a rename or chmod.
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

// checkListening returns the reason why no process accepts connections on a socket.
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

// checkPathLength returns an error for a path that is too long for a socket: the system call returns "invalid argument".
func checkPathLength(path string) error {
	if len(path) <= maxPathLength {
		return nil
	}
	return fmt.Errorf("path of the folder is too long: a socket in %s would have one of more than %d bytes", filepath.Dir(path), maxPathLength)
}
