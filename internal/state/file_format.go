package state

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/state/disk"
)

// version of the file format. New fields keep the version; existing fields never change.
const version = 1

// Limits of a file, far beyond those of any node.
const (
	maxRecords        = 4096
	maxXids           = 256
	maxUnhealthyTimes = 16
	maxTextBytes      = 128
	maxCount          = 1 << 53
)

// fileFormat is the content of the file.
type fileFormat struct {
	Version int            `json:"version"`
	BootID  string         `json:"boot,omitempty"` // at the time of the write
	Lost    bool           `json:"lost,omitempty"` // of device.HealthHistory
	Records []storedRecord `json:"records"`
}

// storedRecord is a device.HealthRecord.
type storedRecord struct {
	GPU            device.GPU          `json:"gpu"`
	Device         device.ID           `json:"device,omitempty"`
	HealthReason   *storedHealthReason `json:"verdict,omitempty"`
	Flaps          uint64              `json:"flaps,omitempty"`
	UnhealthyTimes []time.Time         `json:"turns,omitempty"`
	FailedResets   *storedFailedResets `json:"again,omitempty"`
	Xids           []storedXid         `json:"xids,omitempty"`
	LastSeen       time.Time           `json:"seen,omitzero"`
	GoneSince      time.Time           `json:"gone,omitzero"`
	LastListed     *storedGPU          `json:"listed,omitempty"`
}

// storedGPU is a GPU as of the newest listing.
type storedGPU struct {
	Index  int    `json:"index"`
	MIG    bool   `json:"mig,omitempty"`
	Minor  int    `json:"minor"`
	Model  string `json:"model,omitempty"`
	PCI    string `json:"pci_bus_id,omitempty"`
	NUMA   int    `json:"numa_node"`
	Memory uint64 `json:"memory_bytes,omitempty"`
}

// newStoredGPU returns nil for a device without an id.
func newStoredGPU(d device.Device) *storedGPU {
	if d.ID == "" {
		return nil
	}
	l := storedGPU{d.Index, d.MIGEnabled, d.Minor, d.Model, d.PCI, d.NUMANode, d.MemoryBytes}
	if !isPrintable(l.Model) {
		l.Model = ""
	}
	if !isPrintable(l.PCI) {
		l.PCI = ""
	}
	return &l
}

func (l *storedGPU) device(gpu device.GPU) device.Device {
	if l == nil {
		return device.Device{}
	}
	return device.Device{
		ID: device.ID(gpu), GPU: gpu, Index: l.Index, MIGEnabled: l.MIG, MIGDeviceIndex: -1, GI: -1, CI: -1,
		Minor: l.Minor, Model: l.Model, PCI: l.PCI, NUMANode: l.NUMA, MemoryBytes: l.Memory,
	}
}

type storedHealthReason struct {
	Reason        string    `json:"reason"`
	Action        string    `json:"action,omitempty"`
	Class         string    `json:"class,omitempty"`
	Since         time.Time `json:"since"`
	FaultAt       time.Time `json:"at"`
	NeedsReset    bool      `json:"by_reset,omitempty"`
	ByPolicy      bool      `json:"by_policy,omitempty"`
	ResetSeen     bool      `json:"reset,omitempty"`
	EnergyCounter uint64    `json:"odometer,omitempty"`
}

type storedFailedResets struct {
	Reason string    `json:"reason"`
	Resets int       `json:"resets"`
	At     time.Time `json:"at"`
}

type storedXid struct {
	Code           uint64    `json:"code"`
	Count          uint64    `json:"count"`
	Last           time.Time `json:"last,omitzero"`
	LastHistorical time.Time `json:"past,omitzero"`
}

// newFileFormat returns the content for a history, and the error of the last invalid record. An invalid record is left out.
func newFileFormat(h device.HealthHistory, boot string) (d fileFormat, skipped error) {
	d = fileFormat{Version: version, BootID: boot, Lost: h.Lost, Records: make([]storedRecord, 0, len(h.Records))}
	for _, r := range h.Records {
		w := storedRecord{GPU: r.GPU, Device: r.Device, Flaps: r.Flaps, UnhealthyTimes: r.UnhealthyTimes, LastSeen: r.LastSeen, GoneSince: r.GoneSince, LastListed: newStoredGPU(r.LastListed)}
		if r.Reason != "" {
			w.HealthReason = &storedHealthReason{r.Reason, r.Action, r.Class, r.Since, r.FaultAt, r.NeedsReset, r.ByPolicy, r.ResetSeen, r.EnergyCounter}
		}
		if r.FailedResets.Reason != "" {
			w.FailedResets = &storedFailedResets{r.FailedResets.Reason, r.FailedResets.Count, r.FailedResets.LastFaultAt}
		}
		for _, x := range r.Xids {
			w.Xids = append(w.Xids, storedXid(x))
		}
		if err := w.validate(); err != nil {
			skipped = fmt.Errorf("leave out %q: %w", cmp.Or(string(r.Device), string(r.GPU)), err)
			continue
		}
		d.Records = append(d.Records, w)
	}
	return d, skipped
}

// history returns the history of the content, in order.
func (d fileFormat) history() (h device.HealthHistory) {
	h.Lost = d.Lost
	for _, w := range d.Records {
		r := device.HealthRecord{GPU: w.GPU, Device: w.Device, Flaps: w.Flaps, UnhealthyTimes: w.UnhealthyTimes, LastSeen: w.LastSeen, GoneSince: w.GoneSince, LastListed: w.LastListed.device(w.GPU)}
		if v := w.HealthReason; v != nil {
			r.Reason, r.Action, r.Class, r.Since, r.FaultAt = v.Reason, v.Action, v.Class, v.Since, v.FaultAt
			r.NeedsReset, r.ByPolicy, r.ResetSeen, r.EnergyCounter = v.NeedsReset, v.ByPolicy, v.ResetSeen, v.EnergyCounter
		}
		if w.FailedResets != nil {
			r.FailedResets = device.FailedResets{Reason: w.FailedResets.Reason, Count: w.FailedResets.Resets, LastFaultAt: w.FailedResets.At}
		}
		for _, x := range w.Xids {
			r.Xids = append(r.Xids, device.Xid(x))
		}
		h.Records = append(h.Records, r)
	}
	slices.SortFunc(h.Records, func(a, b device.HealthRecord) int { // the file may be edited
		return cmp.Or(cmp.Compare(a.GPU, b.GPU), cmp.Compare(a.Device, b.Device))
	})
	return h
}

// encode returns the indented JSON of a history, and the error of the last invalid record.
func encode(h device.HealthHistory, boot string) ([]byte, error) {
	d, skipped := newFileFormat(h, boot)
	if err := d.validate(); err != nil {
		return nil, err
	}
	content, err := json.MarshalIndent(d, "", " ")
	if err == nil && len(content) >= maxFileBytes {
		err = fmt.Errorf("history has %d bytes, at most %d", len(content), maxFileBytes)
	}
	if err != nil {
		return nil, err
	}
	return append(content, '\n'), skipped
}

// decode parses the output of encode, and rejects all other content. Of a newer version it reads the version only.
func decode(content []byte) (d fileFormat, err error) {
	if err := disk.Unmarshal(content, version, &d); err != nil {
		return fileFormat{}, err
	}
	if err := d.validate(); err != nil {
		return fileFormat{}, fmt.Errorf("%w: %w", disk.ErrInvalidFile, err)
	}
	return d, nil
}

func (d fileFormat) validate() error {
	switch {
	case d.BootID != "" && !isToken(d.BootID):
		return errors.New("invalid boot id")
	case len(d.Records) > maxRecords:
		return fmt.Errorf("%d records, at most %d", len(d.Records), maxRecords)
	}
	type key struct {
		gpu device.GPU
		id  device.ID
	}
	seen := map[key]bool{}
	for i, r := range d.Records {
		if err := r.validate(); err != nil {
			return fmt.Errorf("record %d: %w", i, err)
		}
		if seen[key{r.GPU, r.Device}] {
			return fmt.Errorf("record %d: duplicate device", i)
		}
		seen[key{r.GPU, r.Device}] = true
	}
	return nil
}

func (r storedRecord) validate() error {
	switch {
	case !isToken(string(r.GPU)) || r.Device != "" && !isToken(string(r.Device)):
		return errors.New("invalid device")
	case r.LastListed != nil && (r.Device != "" || !isPrintable(r.LastListed.Model) || !isPrintable(r.LastListed.PCI)):
		return errors.New("invalid GPU")
	case r.Flaps > maxCount || len(r.UnhealthyTimes) > maxUnhealthyTimes || len(r.Xids) > maxXids:
		return errors.New("too many flaps, transitions or Xids")
	case r.FailedResets != nil && (!isToken(r.FailedResets.Reason) || r.FailedResets.Resets < 0 || r.FailedResets.Resets > maxCount):
		return errors.New("invalid failed resets")
	}
	if v := r.HealthReason; v != nil && (!isToken(v.Reason) || v.Action != "" && !isToken(v.Action) || v.Class != "" && !isToken(v.Class)) {
		return errors.New("invalid health reason")
	}
	codes := map[uint64]bool{}
	for _, x := range r.Xids {
		if x.Code == 0 || x.Count > maxCount || codes[x.Code] {
			return errors.New("invalid or duplicate Xid")
		}
		codes[x.Code] = true
	}
	return nil
}

// isPrintable reports whether a text is short printable ASCII, such as the name of a model.
func isPrintable(s string) bool {
	for _, c := range []byte(s) {
		if c < ' ' || c > '~' {
			return false
		}
	}
	return len(s) <= maxTextBytes
}

// isToken reports whether a text is short printable ASCII without spaces.
func isToken(s string) bool {
	for _, c := range []byte(s) {
		if c <= ' ' || c > '~' {
			return false
		}
	}
	return s != "" && len(s) <= maxTextBytes
}
