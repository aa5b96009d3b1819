// Package state stores the health of devices for the next process.
package state

import (
	"log/slog"
	"os"
	"strings"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/state/disk"
)

const (
	// BootIDPath is the file with the id of the current boot.
	BootIDPath = "/proc/sys/kernel/random/boot_id"

	// version of the file format. New fields keep the version; existing fields never change.
	version = 1
)

// HealthFile stores a device.HealthHistory in the state folder.
type HealthFile struct {
	*disk.File[content]
	bootID string
}

// content is the content of the file.
type content struct {
	Version int    `json:"version"`
	BootID  string `json:"boot,omitempty"` // at the time of the write
	device.HealthHistory
}

// Open reads the history of an earlier process. If the folder is unusable, Open logs a warning, Err returns the error, and the history stays in
// memory. Without a file at bootIDPath, no reboot is detected.
func Open(folder *disk.Folder, bootIDPath string, log *slog.Logger) (*HealthFile, device.HealthHistory) {
	boot, _ := os.ReadFile(bootIDPath) // empty: unknown
	f := &HealthFile{bootID: strings.TrimSpace(string(boot))}
	f.File = disk.New(folder, disk.Format[content]{Name: "health", Version: version, Validate: (*content).Validate}, log)
	read, err := f.Read()
	h := read.HealthHistory
	if err != nil {
		h.Lost = true
		log.Warn("health of an earlier process unreadable, checking devices before publication", "err", err)
	}
	h.Rebooted = read.BootID != "" && f.bootID != "" && read.BootID != f.bootID
	return f, h
}

// Save schedules a write of the history: at once if urgent, otherwise within a second. The caller must not change the history any more.
func (f *HealthFile) Save(h device.HealthHistory, urgent bool) {
	f.File.Save(content{version, f.bootID, h}, urgent)
}

// ExportedCounts returns the newest history whose counts metrics may show: the next process continues from these or greater counts, or from 0.
// Nil: all counts are 0.
func (f *HealthFile) ExportedCounts() (h *device.HealthHistory, changed <-chan struct{}) {
	written, changed := f.Get()
	if written.Exportable != nil {
		h = &written.Exportable.HealthHistory
	}
	return h, changed
}

// Err returns the error of the newest write; nil if the newest history is on disk, or will be within a second.
func (f *HealthFile) Err() error {
	written, _ := f.Get()
	return written.Err
}
