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
	// maxNameLength is the longest part of a resource's name in a socket's name.
	maxNameLength = 40
	maxPathLength = 107 // of a socket; unix(7)
)

// socketPrefix returns the prefix of a resource's socket names. The rest of a name has a single dash.
func socketPrefix(resource string) string {
	name := strings.NewReplacer("/", "_", ".", "-").Replace(resource)
	if len(name) > maxNameLength {
		name = fmt.Sprintf("%s_%08x", name[:maxNameLength-9], crc32.ChecksumIEEE([]byte(resource)))
	}
	return "podgauge-" + name + "-"
}

// removeStaleSockets removes the sockets of a resource's killed servers. The kubelet removes sockets only at start.
//
// Sockets of a second, running podgauge stay: only a refused connection proves the end of a server.
func removeStaleSockets(dir, resource string) {
	entries, _ := os.ReadDir(dir) // listening in the folder returns the error
	for _, f := range entries {
		path := filepath.Join(dir, f.Name())
		// The name of a resource may begin with the name of a second resource ("gpu.shared", "gpu").
		rest, own := strings.CutPrefix(f.Name(), socketPrefix(resource))
		own = own && strings.Count(rest, "-") == 1 && f.Type() == os.ModeSocket
		if own && errors.Is(checkListening(path), syscall.ECONNREFUSED) {
			os.Remove(path) //nolint:errcheck // a stale socket does no harm
		}
	}
}

// socketID identifies a socket among all sockets of the same path over time. The zero socketID is no socket.
//
// The inode is not enough: file systems reuse inodes, in 8 of 10 restarts of a kubelet. A socket is never written, so the modification
// time is the time of creation, even after a rename or chmod.
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
	conn.Close() //nolint:errcheck // unused
	return nil
}

// checkPathLength returns an error for a path above the length limit of sockets: the system call returns only "invalid argument".
func checkPathLength(path string) error {
	if len(path) <= maxPathLength {
		return nil
	}
	return fmt.Errorf("check path length: sockets in %s exceed %d bytes", filepath.Dir(path), maxPathLength)
}
