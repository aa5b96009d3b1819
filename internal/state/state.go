// Package state stores the health of devices for the next process.
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
	// FileName is the name of the file in the state folder.
	FileName = "health.json"
	// BootIDPath is the file with the id of the current boot.
	BootIDPath = "/proc/sys/kernel/random/boot_id"

	maxFileBytes = 4 << 20
)

// HealthFile stores a device.HealthHistory in the state folder.
type HealthFile struct {
	file      *disk.File[device.HealthHistory]
	lastSaved device.HealthHistory // of Save; written by the goroutine of the Monitor
}

// Options of a HealthFile.
type Options struct {
	Folder     *disk.Folder
	BootIDPath string // empty: the constant BootIDPath
	Log        *slog.Logger
}

// Open reads the history of an earlier process. If the folder is unusable, Open logs a warning, Err returns the error, and the history stays in
// memory.
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
		o.Log.Warn("health of an earlier process is unknown: devices are checked before publication", "err", read.Err)
	}
	f.lastSaved = h
	if errors.Is(read.Err, disk.ErrDiskTimeout) { // Decode may still run
		return f, h
	}
	if read.CountsStale { // health changes of that process may be missing, too
		h = resetCounts(h)
		h.Lost = true
	}
	h.Rebooted = writtenBoot != "" && boot != "" && writtenBoot != boot
	f.lastSaved = h
	return f, h
}

// bootID returns the id of the current boot; empty: unknown.
func bootID(path string) string {
	content, err := os.ReadFile(path)
	id := strings.TrimSpace(string(content))
	if err != nil || !isToken(id) {
		return ""
	}
	return id
}

// resetCounts sets all counts to 0. Rows stay, so that a scrape shows the reset.
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

// Save schedules a write of the history: at once if a device turned unhealthy, otherwise within a second. The caller must not change the
// history any more.
func (f *HealthFile) Save(h device.HealthHistory) {
	f.file.Save(h, turnedUnhealthy(f.lastSaved, h))
	f.lastSaved = h
}

// turnedUnhealthy reports whether a device has a new reason to be unhealthy, or a reason that returned after a reset.
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

// ExportedCounts returns the newest history whose counts metrics may show: the next process continues from these or greater counts, or from 0.
// Nil: all counts are 0.
func (f *HealthFile) ExportedCounts() *device.HealthHistory {
	written, _ := f.file.Get()
	return written.Exportable
}

// Run writes saved histories until ctx is done.
func (f *HealthFile) Run(ctx context.Context) error { return f.file.Run(ctx) }

// End writes the newest saved history. It does not wait for a disk that hangs.
func (f *HealthFile) End() { f.file.End() }

// Err returns the error of the newest write; nil if the newest history is on disk, or will be within a second.
func (f *HealthFile) Err() error {
	written, _ := f.file.Get()
	return written.Err
}
