package incident

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/state/disk"
)

// version of the file format. New fields keep the version; existing fields never change.
const version = 1

const (
	maxFileBytes = 32 << 20
	maxCount     = 1 << 53
)

// storedState is the stored part of a tracker.
type storedState struct {
	incidents []Incident // newest first
	devices   []DeviceCount
	affected  []AffectedCount
}

// incidentFile is the content of the file.
type incidentFile struct {
	Version   int           `json:"version"`
	Incidents []Incident    `json:"incidents"` // newest first
	Counts    []storedCount `json:"counts"`    // of devices and of affected containers
}

// storedCount is a DeviceCount, or with a pod an AffectedCount.
type storedCount struct {
	Device    device.ID  `json:"device"`
	GPU       device.GPU `json:"gpu"`
	Index     int        `json:"index"`
	Namespace string     `json:"namespace,omitempty"`
	Pod       string     `json:"pod,omitempty"`
	Container string     `json:"container,omitempty"`
	Reason    string     `json:"reason"`
	Count     uint64     `json:"count"`
	Last      time.Time  `json:"last"`
}

func fileFormat() disk.Format[storedState] {
	return disk.Format[storedState]{Name: "incidents", Version: version, MaxBytes: maxFileBytes, Encode: encode, Decode: decode}
}

func encode(s storedState) ([]byte, error) {
	d := incidentFile{Version: version, Incidents: s.incidents, Counts: make([]storedCount, 0, len(s.devices)+len(s.affected))}
	for _, c := range s.devices {
		d.Counts = append(d.Counts, storedCount{Device: c.Device, GPU: c.GPU, Index: c.Index, Reason: c.Reason, Count: c.Count, Last: c.Last})
	}
	for _, h := range s.affected {
		d.Counts = append(d.Counts, storedCount{h.Device, h.GPU, h.Index, h.Owner.Namespace, h.Owner.Pod, h.Owner.Container, h.Reason, h.Count, h.Last})
	}
	content, err := json.Marshal(d)
	if err == nil && len(content) > maxFileBytes {
		err = fmt.Errorf("incidents have %d bytes, at most %d", len(content), maxFileBytes)
	}
	if err != nil {
		return nil, err
	}
	return content, nil
}

// decode parses the output of encode, and rejects all other content.
func decode(content []byte) (s storedState, err error) {
	var d incidentFile
	if err := disk.Unmarshal(content, version, &d); err != nil {
		return storedState{}, err
	}
	if err := d.validate(); err != nil {
		return storedState{}, fmt.Errorf("%w: %w", disk.ErrInvalidFile, err)
	}
	s.incidents = d.Incidents
	for _, r := range d.Counts {
		if r.Pod == "" {
			s.devices = append(s.devices, DeviceCount{r.Device, r.GPU, r.Index, r.Reason, r.Count, r.Last})
			continue
		}
		s.affected = append(s.affected, AffectedCount{r.Device, r.GPU, r.Index, r.key().owner, r.Reason, r.Count, r.Last})
	}
	return s, nil
}

func (d incidentFile) validate() error {
	for n, i := range d.Incidents {
		switch {
		case i.ID == 0 || n > 0 && i.ID >= d.Incidents[n-1].ID:
			return fmt.Errorf("incident %d: id %d is not in descending order", n, i.ID)
		case i.Device == "" || i.Reason == "" || i.Count > maxCount || len(i.Affected) > maxAffected:
			return fmt.Errorf("incident %d: missing device or reason, or count too large", i.ID)
		}
	}
	seen := map[counterKey]bool{}
	for n, r := range d.Counts {
		key := r.key()
		if r.Device == "" || r.Reason == "" || r.Count > maxCount || seen[key] {
			return fmt.Errorf("count %d: missing device or reason, count too large, or duplicate", n)
		}
		seen[key] = true
	}
	return nil
}

func (r storedCount) key() counterKey {
	return counterKey{r.Device, device.Owner{Namespace: r.Namespace, Pod: r.Pod, Container: r.Container}, r.Reason}
}
