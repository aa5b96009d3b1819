// Package state keeps what is known of the devices' health from one process to the next.
package state

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"strings"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/state/disk"
)

const (
	// FileName is the file's in the state folder.
	FileName = "health.json"
	// BootPath is the file in which Linux identifies the current boot.
	BootPath = "/proc/sys/kernel/random/boot_id"

	mostBytes = 4 << 20 // of a file
)

// File keeps a device.History in the state folder.
type File struct {
	file *disk.File[device.History]
	// saved is what was saved last; written by the goroutine that calls Save.
	saved device.History
}

// Options describe a File.
type Options struct {
	Folder *disk.Folder
	Boot   string // the file that identifies the boot; empty: BootPath
	Log    *slog.Logger
}

// Open reads what an earlier process has left. It never fails: if the folder cannot be used,
// Err and one line of the log say why, and the health is known for as long as this process lives.
func Open(o Options) (*File, device.History) {
	if o.Boot == "" {
		o.Boot = BootPath
	}
	boot, written := bootID(o.Boot), ""
	f := &File{file: disk.New(o.Folder, disk.Format[device.History]{
		Name: "health", Version: version, MaxBytes: mostBytes,
		Encode: func(h device.History) ([]byte, error) { return encode(h, boot) },
		Decode: func(content []byte) (device.History, error) {
			d, err := decode(content)
			written = d.Boot
			return d.history(), err
		},
	}, o.Log)}
	found := f.file.Read()
	h := found.Value
	if found.Err != nil {
		h.Lost = true
		o.Log.Warn("health of an earlier process is unknown: each device is checked before it is trusted", "err", found.Err)
	}
	f.saved = h
	if errors.Is(found.Err, disk.ErrHung) { // Decode may yet be called
		return f, h
	}
	if found.Behind { // verdicts of that process may be missing, too
		h = uncounted(h)
		h.Lost = true
	}
	h.Rebooted = written != "" && boot != "" && written != boot
	f.saved = h
	return f, h
}

// bootID identifies the current boot; empty if it is unknown.
func bootID(path string) string {
	content, err := os.ReadFile(path)
	id := strings.TrimSpace(string(content))
	if err != nil || !isWord(id) {
		return ""
	}
	return id
}

// uncounted has all counts start from 0. They stay as rows, so that a scrape shows the 0.
func uncounted(h device.History) device.History {
	for i := range h.Records {
		r := &h.Records[i]
		r.Flaps = 0
		for j := range r.Xids {
			r.Xids[j].Count = 0
		}
	}
	return h
}

// Save has a history written, which must not be changed any more: at once if a device turned
// unhealthy, otherwise within a second. It does not wait for that.
func (f *File) Save(h device.History) {
	f.file.Save(h, worse(f.saved, h))
	f.saved = h
}

// worse reports whether a device has a reason to be unhealthy that is new, or that a reset had mended.
func worse(was, is device.History) bool {
	type key struct {
		gpu    device.GPU
		id     device.ID
		reason string
	}
	of := func(r device.Record) key { return key{r.GPU, r.Device, r.Reason} }
	reset := map[key]bool{}
	for _, r := range was.Records {
		reset[of(r)] = r.Reset
	}
	for _, r := range is.Records {
		mended, known := reset[of(r)]
		if r.Reason != "" && (!known || mended && !r.Reset) {
			return true
		}
	}
	return false
}

// Counted returns the newest history whose counts metrics may show: the next process
// continues from them or from greater ones, or starts from 0. Nil: all are 0.
func (f *File) Counted() *device.History {
	view, _ := f.file.Look()
	return view.Shown
}

// Run writes what is saved until ctx is done.
func (f *File) Run(ctx context.Context) error { return f.file.Run(ctx) }

// End writes the history that was saved last. It does not wait for a disk that hangs.
func (f *File) End() { f.file.End() }

// Err is why the newest history is not on disk; nil if it is, or will be within a second.
func (f *File) Err() error {
	view, _ := f.file.Look()
	return view.Err
}
