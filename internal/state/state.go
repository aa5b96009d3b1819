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
	// BootIDPath is the file in which Linux identifies the current boot.
	BootIDPath = "/proc/sys/kernel/random/boot_id"

	maxFileBytes = 4 << 20 // of a file
)

// HealthFile keeps a device.HealthHistory in the state folder.
type HealthFile struct {
	file *disk.File[device.HealthHistory]
	// lastSaved is what was saved last; written by the goroutine that calls Save.
	lastSaved device.HealthHistory
}

// Options describe a File.
type Options struct {
	Folder     *disk.Folder
	BootIDPath string // the file that identifies the boot; empty: BootIDPath
	Log        *slog.Logger
}

// Open reads what an earlier process has left. It never fails: if the folder cannot be used,
// Err and one line of the log say why, and the health is known for as long as this process lives.
func Open(o Options) (*HealthFile, device.HealthHistory) {
	if o.BootIDPath == "" {
		o.BootIDPath = BootIDPath
	}
	boot, writtenBoot := bootID(o.BootIDPath), ""
	f := &HealthFile{file: disk.New(o.Folder, disk.Format[device.HealthHistory]{
		Name: "health", Version: version, MaxBytes: maxFileBytes,
		Encode: func(h device.HealthHistory) ([]byte, error) { return encode(h, boot) },
		Decode: func(content []byte) (device.HealthHistory, error) {
			d, err := decode(content)
			writtenBoot = d.BootID
			return d.history(), err
		},
	}, o.Log)}
	read := f.file.Read()
	h := read.Value
	if read.Err != nil {
		h.Lost = true
		o.Log.Warn("health of an earlier process is unknown: each device is checked before it is trusted", "err", read.Err)
	}
	f.lastSaved = h
	if errors.Is(read.Err, disk.ErrDiskTimeout) { // Decode may yet be called
		return f, h
	}
	if read.CountsStale { // verdicts of that process may be missing, too
		h = resetCounts(h)
		h.Lost = true
	}
	h.Rebooted = writtenBoot != "" && boot != "" && writtenBoot != boot
	f.lastSaved = h
	return f, h
}

// bootID identifies the current boot; empty if it is unknown.
func bootID(path string) string {
	content, err := os.ReadFile(path)
	id := strings.TrimSpace(string(content))
	if err != nil || !isToken(id) {
		return ""
	}
	return id
}

// resetCounts has all counts start from 0. They stay as rows, so that a scrape shows the 0.
func resetCounts(h device.HealthHistory) device.HealthHistory {
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
func (f *HealthFile) Save(h device.HealthHistory) {
	f.file.Save(h, turnedUnhealthy(f.lastSaved, h))
	f.lastSaved = h
}

// turnedUnhealthy reports whether a device has a reason to be unhealthy that is new, or that a reset had mended.
func turnedUnhealthy(before, after device.HealthHistory) bool {
	type key struct {
		gpu    device.GPU
		id     device.ID
		reason string
	}
	keyOf := func(r device.HealthRecord) key { return key{r.GPU, r.Device, r.Reason} }
	wasReset := map[key]bool{}
	for _, r := range before.Records {
		wasReset[keyOf(r)] = r.ResetSeen
	}
	for _, r := range after.Records {
		resetBefore, known := wasReset[keyOf(r)]
		if r.Reason != "" && (!known || resetBefore && !r.ResetSeen) {
			return true
		}
	}
	return false
}

// ExportedCounts returns the newest history whose counts metrics may show: the next process
// continues from them or from greater ones, or starts from 0. Nil: all are 0.
func (f *HealthFile) ExportedCounts() *device.HealthHistory {
	written, _ := f.file.Get()
	return written.Exportable
}

// Run writes what is saved until ctx is done.
func (f *HealthFile) Run(ctx context.Context) error { return f.file.Run(ctx) }

// End writes the history that was saved last. It does not wait for a disk that hangs.
func (f *HealthFile) End() { f.file.End() }

// Err is why the newest history is not on disk; nil if it is, or will be within a second.
func (f *HealthFile) Err() error {
	written, _ := f.file.Get()
	return written.Err
}
