package plugin

import (
	"syscall"

	"github.com/fsnotify/fsnotify"
)

// WithoutInotify makes the plugin poll the folder of the sockets once a second,
// as on a node without inotify watches left. With inotify, the clock of
// synctest would not advance.
func (p *Plugin) WithoutInotify() *Plugin {
	p.newWatcher = func() (*fsnotify.Watcher, error) { return nil, syscall.EMFILE }
	return p
}
