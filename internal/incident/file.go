package incident

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/state/disk"
)

// version is the file's. Fields are added within one; existing ones never change.
const version = 1

const (
	mostBytes  = 32 << 20 // of a file
	mostNumber = 1 << 53
)

// snapshot is what the file keeps.
type snapshot struct {
	incidents []Incident // newest first
	devices   []Count
	hits      []Hit
}

// document is the file's content.
type document struct {
	Version   int        `json:"version"`
	Incidents []Incident `json:"incidents"` // newest first
	Counts    []record   `json:"counts"`    // Count and Hit
}

// record is a Count, or a Hit if it has a pod.
type record struct {
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

func format() disk.Format[snapshot] {
	return disk.Format[snapshot]{Name: "incidents", Version: version, MaxBytes: mostBytes, Encode: encode, Decode: decode}
}

func encode(s snapshot) ([]byte, error) {
	d := document{Version: version, Incidents: s.incidents, Counts: make([]record, 0, len(s.devices)+len(s.hits))}
	for _, c := range s.devices {
		d.Counts = append(d.Counts, record{Device: c.Device, GPU: c.GPU, Index: c.Index, Reason: c.Reason, Count: c.Count, Last: c.Last})
	}
	for _, h := range s.hits {
		d.Counts = append(d.Counts, record{h.Device, h.GPU, h.Index, h.Owner.Namespace, h.Owner.Pod, h.Owner.Container, h.Reason, h.Count, h.Last})
	}
	content, err := json.Marshal(d)
	if err == nil && len(content) > mostBytes {
		err = fmt.Errorf("%d bytes are too many", len(content))
	}
	if err != nil {
		return nil, err
	}
	return content, nil
}

// decode understands what encode has written, and nothing that this program could not have
// written.
func decode(content []byte) (s snapshot, err error) {
	var d document
	if err := disk.Unmarshal(content, version, &d); err != nil {
		return snapshot{}, err
	}
	if err := d.check(); err != nil {
		return snapshot{}, fmt.Errorf("%w: %w", disk.ErrForeign, err)
	}
	s.incidents = d.Incidents
	for _, r := range d.Counts {
		if r.Pod == "" {
			s.devices = append(s.devices, Count{r.Device, r.GPU, r.Index, r.Reason, r.Count, r.Last})
			continue
		}
		s.hits = append(s.hits, Hit{r.Device, r.GPU, r.Index, r.what().owner, r.Reason, r.Count, r.Last})
	}
	return s, nil
}

func (d document) check() error {
	for n, i := range d.Incidents {
		switch {
		case i.ID == 0 || n > 0 && i.ID >= d.Incidents[n-1].ID:
			return fmt.Errorf("incident %d: its id %d does not follow", n, i.ID)
		case i.Device == "" || i.Reason == "" || i.Count > mostNumber || len(i.Holders) > mostHolders:
			return fmt.Errorf("incident %d: it has no device or no reason, or counts too much", i.ID)
		}
	}
	seen := map[tallied]bool{}
	for n, r := range d.Counts {
		what := r.what()
		if r.Device == "" || r.Reason == "" || r.Count > mostNumber || seen[what] {
			return fmt.Errorf("count %d: it has no device or no reason, is too great or there twice", n)
		}
		seen[what] = true
	}
	return nil
}

func (r record) what() tallied {
	return tallied{r.Device, device.Owner{Namespace: r.Namespace, Pod: r.Pod, Container: r.Container}, r.Reason}
}
