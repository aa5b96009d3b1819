package plugin

import (
	"io/fs"

	"github.com/fsnotify/fsnotify"
)

// WithoutInotify makes the plugin poll the folder of the sockets once a second.
// With inotify, the clock of synctest would not advance. The error is that of a
// missing folder, which is not logged.
func (p *Plugin) WithoutInotify() *Plugin {
	p.newWatcher = func() (*fsnotify.Watcher, error) { return nil, fs.ErrNotExist }
	return p
}
