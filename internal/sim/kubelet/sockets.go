package kubelet

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"
)

// removeSockets removes the sockets that lie directly in a folder, whosever they are: regular
// files stay, and so do folders with whatever is in them. One that its plugin takes away
// meanwhile is no error (manager.go:191).
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

// listenPodResources makes the socket under another name and moves it into place, as the
// kubelet does (k8s.io/cri-client/pkg/util/util_unix.go:38): nobody sees one that does not
// answer, apart from the one that a dead kubelet has left.
func listenPodResources(path string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return nil, err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	hidden := filepath.Join(filepath.Dir(path), ".new")
	if err := os.Remove(hidden); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	socket, err := bindUnix(hidden)
	if err != nil {
		return nil, err
	}
	defer socket.close()
	listener, err := socket.listen()
	if err != nil {
		return nil, err
	}
	if err := os.Rename(hidden, path); err != nil {
		_ = listener.Close()
		return nil, err
	}
	return listener, nil
}

// bindRegistration clears the socket folder and makes the registration socket, which does not
// listen yet.
func (kp *kubeletProcess) bindRegistration() (*unixSocket, error) {
	path := kp.k.RegistrationSocket()
	if err := removeSockets(filepath.Dir(path)); err != nil {
		return nil, err
	}
	return bindUnix(path)
}

// unixSocket is a unix socket that exists on disk and refuses connections until listen. The net
// package has no name for that moment, but a real kubelet has it, and a plugin that meets it is
// refused by a kubelet that is alive.
type unixSocket struct{ fd int }

func bindUnix(path string) (*unixSocket, error) {
	const longest = 107 // unix(7)
	if len(path) > longest {
		return nil, fmt.Errorf("the path of a unix socket ends at %d bytes: %s", longest, path)
	}
	syscall.ForkLock.RLock()
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err == nil {
		syscall.CloseOnExec(fd)
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	if err := syscall.Bind(fd, &syscall.SockaddrUnix{Name: path}); err != nil {
		_ = syscall.Close(fd)
		return nil, &os.PathError{Op: "bind", Path: path, Err: err}
	}
	return &unixSocket{fd}, nil
}

// listen returns a listener that leaves the socket on disk when it is closed, like a kubelet
// that ends.
func (s *unixSocket) listen() (net.Listener, error) {
	if err := syscall.Listen(s.fd, syscall.SOMAXCONN); err != nil {
		return nil, os.NewSyscallError("listen", err)
	}
	f := os.NewFile(uintptr(s.fd), "socket") // takes the descriptor over
	s.fd = -1
	defer func() { _ = f.Close() }()
	return net.FileListener(f) // has a descriptor of its own, and does not unlink
}

// close gives up a socket that does not listen; one that does has been handed over.
func (s *unixSocket) close() {
	if s.fd >= 0 {
		_ = syscall.Close(s.fd)
	}
	s.fd = -1
}
