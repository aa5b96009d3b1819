package plugin

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/podgauge/podgauge/internal/pubsub"
	"github.com/podgauge/podgauge/internal/retry"
	"github.com/podgauge/podgauge/internal/text"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// newSocketName returns a new name for a resource: short, since the kubelet
// joins it with its own path of the folder. The checksum identifies the
// resource.
func newSocketName(resource string) string {
	made := strconv.FormatInt(time.Now().UnixMilli(), 36)
	return fmt.Sprintf("podgauge-%08x-%s.sock", crc32.ChecksumIEEE([]byte(resource)), made)
}

// removeStaleSockets removes the sockets of a resource's killed servers. The
// kubelet removes sockets only at start.
//
// Sockets of a second, running podgauge stay: only a refused connection proves
// the end of a server.
func removeStaleSockets(dir, resource string) {
	for _, path := range resourceSockets(dir, resource) {
		if statSocket(path) != (socketID{}) && errors.Is(checkListening(path), syscall.ECONNREFUSED) {
			os.Remove(path) //nolint:errcheck // a stale socket does no harm
		}
	}
}

// resourceSockets returns the sockets of all podgauge processes for a resource.
// Names of earlier versions have the resource's name before the checksum.
func resourceSockets(dir, resource string) []string {
	paths, _ := filepath.Glob(filepath.Join(dir, fmt.Sprintf("podgauge-*%08x-*", crc32.ChecksumIEEE([]byte(resource)))))
	return paths // listening in the folder returns the error
}

// isServed reports whether a process listens on a socket.
func isServed(path string) bool { return checkListening(path) == nil }

// hasForeignSocket reports whether a process other than the kubelet and
// podgauge listens in the folder.
func hasForeignSocket(dir string) bool {
	entries, _ := os.ReadDir(dir) // listening in the folder returns the error
	return slices.ContainsFunc(entries, func(e os.DirEntry) bool {
		own := e.Name() == filepath.Base(api.KubeletSocket) || strings.HasPrefix(e.Name(), "podgauge-")
		return e.Type() == os.ModeSocket && !own && isServed(filepath.Join(dir, e.Name()))
	})
}

// socketID identifies a socket among all sockets of the same path over time.
// The zero socketID is no socket.
//
// The inode is not enough: file systems reuse inodes, in 8 of 10 restarts of a
// kubelet. A socket is never written, so the modification time is the time of
// creation, even after a rename or chmod.
type socketID struct {
	inode uint64
	mtime syscall.Timespec
}

func statSocket(path string) socketID {
	info, err := os.Stat(path)
	if err != nil || info.Mode()&os.ModeSocket == 0 {
		return socketID{}
	}
	stat := info.Sys().(*syscall.Stat_t) // by os.Stat
	return socketID{stat.Ino, stat.Mtim}
}

// checkListening returns the reason why no process accepts connections on a
// socket.
func checkListening(path string) error {
	if err := text.CheckSocketPath(path); err != nil {
		return err
	}
	conn, err := net.DialTimeout("unix", path, time.Second)
	if err != nil {
		return err
	}
	conn.Close() //nolint:errcheck // unused
	return nil
}

// folderPollInterval is the time between two looks at a folder without inotify,
// and at a missing folder.
const folderPollInterval = time.Second

// folderWatch publishes changes of the folder of the kubelet's socket and of
// the own sockets.
type folderWatch struct {
	pubsub.Value[struct{}]
	dir        string
	newWatcher func() (*fsnotify.Watcher, error)
	log        *slog.Logger
}

// run watches the folder until ctx is done. While the folder cannot be watched,
// each second counts as a change.
func (w *folderWatch) run(ctx context.Context) error {
	logged := ""
	for ctx.Err() == nil {
		err := w.watch(ctx)
		// The endpoints log a missing folder.
		if err != nil && !errors.Is(err, fs.ErrNotExist) && err.Error() != logged {
			logged = err.Error()
			w.log.Warn("cannot watch device-plugin folder, polling every second", "folder", w.dir, "err", err)
		}
		_ = retry.Sleep(ctx, folderPollInterval) // an error ends the loop
		w.Set(struct{}{})
	}
	return nil
}

// watch publishes changes until ctx is done or the folder is gone.
func (w *folderWatch) watch(ctx context.Context) error {
	watcher, err := w.newWatcher()
	if err != nil {
		return err
	}
	defer watcher.Close() //nolint:errcheck // no more events are needed
	if err := watcher.Add(w.dir); err != nil {
		return err
	}
	w.Set(struct{}{}) // changes before Add
	for {
		select {
		case <-ctx.Done():
			return nil
		case event := <-watcher.Events:
			w.Set(struct{}{})
			if event.Name == w.dir && event.Has(fsnotify.Remove|fsnotify.Rename) {
				return fs.ErrNotExist
			}
		case err := <-watcher.Errors:
			return err
		}
	}
}
