package kubelet

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
)

// removeSockets removes the sockets in a folder, and neither regular files nor
// folders (manager.go:191).
func removeSockets(dir string) error {
	entries, err := os.ReadDir(dir)
	errs := []error{err}
	for _, entry := range entries {
		if entry.Type()&fs.ModeSocket != 0 {
			errs = append(errs, os.RemoveAll(filepath.Join(dir, entry.Name())))
		}
	}
	return errors.Join(errs...)
}

// listenUnix creates a socket under a temporary name and moves the socket to
// path, as the kubelet does (k8s.io/cri-client/pkg/util/util_unix.go:38). The
// socket stays on disk when the listener is closed.
func listenUnix(path string) (net.Listener, error) {
	temporary := filepath.Join(filepath.Dir(path), ".new")
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o750), os.RemoveAll(path),
		os.RemoveAll(temporary)); err != nil {
		return nil, err
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: temporary, Net: "unix"})
	if err != nil {
		return nil, err
	}
	listener.SetUnlinkOnClose(false)
	return listener, os.Rename(temporary, path)
}
