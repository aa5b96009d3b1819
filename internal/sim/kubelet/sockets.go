package kubelet

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"
)

// removeSockets removes the sockets in a folder, and neither regular files nor folders (manager.go:191).
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

// listenUnix creates a socket under a temporary name and moves the socket to path, as the kubelet does (k8s.io/cri-client/pkg/util/util_unix.go:38).
// The socket stays on disk when the listener is closed.
func listenUnix(path string) (net.Listener, error) {
	temporary := filepath.Join(filepath.Dir(path), ".new")
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o750), os.RemoveAll(path), os.RemoveAll(temporary)); err != nil {
		return nil, err
	}
	socket, err := bindUnix(temporary)
	if err != nil {
		return nil, err
	}
	defer func() { _ = socket.Close() }()
	listener, err := listenOn(socket)
	if err == nil {
		err = os.Rename(temporary, path)
	}
	return listener, err
}

// bindUnix creates a socket, which refuses connections until listenOn. A starting kubelet has this state, and package net does not.
func bindUnix(path string) (*os.File, error) {
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	socket := os.NewFile(uintptr(fd), path)
	if err := syscall.Bind(fd, &syscall.SockaddrUnix{Name: path}); err != nil {
		_ = socket.Close()
		return nil, &os.PathError{Op: "bind", Path: path, Err: err}
	}
	return socket, nil
}

// listenOn returns a listener with a duplicate descriptor.
func listenOn(socket *os.File) (net.Listener, error) {
	if err := syscall.Listen(int(socket.Fd()), syscall.SOMAXCONN); err != nil {
		return nil, os.NewSyscallError("listen", err)
	}
	return net.FileListener(socket)
}
