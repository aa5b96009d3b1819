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

// version is the file's. Fields are added within one; what is there never changes.
const version = 1

// What a file may hold, far beyond what any node has.
const (
	mostRecords = 4096
	mostXids    = 256
	mostTurns   = 16
	mostWord    = 128
	mostNumber  = 1 << 53
)

// document is the file's content.
type document struct {
	Version int    `json:"version"`
	Boot    string `json:"boot,omitempty"` // in which it was written
	// Lost is as in device.History.
	Lost    bool     `json:"lost,omitempty"`
	Records []record `json:"records"`
}

// record is a device.Record.
type record struct {
	GPU     device.GPU  `json:"gpu"`
	Device  device.ID   `json:"device,omitempty"`
	Verdict *verdict    `json:"verdict,omitempty"`
	Flaps   uint64      `json:"flaps,omitempty"`
	Turns   []time.Time `json:"turns,omitempty"`
	Again   *again      `json:"again,omitempty"`
	Xids    []xid       `json:"xids,omitempty"`
	Seen    time.Time   `json:"seen,omitzero"`
	Gone    time.Time   `json:"gone,omitzero"`
	Listed  *listed     `json:"listed,omitempty"`
}

// listed is the GPU as the newest listing had it.
type listed struct {
	Index  int    `json:"index"`
	MIG    bool   `json:"mig,omitempty"`
	Minor  int    `json:"minor"`
	Model  string `json:"model,omitempty"`
	PCI    string `json:"pci_bus_id,omitempty"`
	NUMA   int    `json:"numa_node"`
	Memory uint64 `json:"memory_bytes,omitempty"`
}

// newListed is nil if nothing is known.
func newListed(d device.Device) *listed {
	if d.ID == "" {
		return nil
	}
	l := listed{d.Index, d.MIG, d.Minor, d.Model, d.PCI, d.NUMANode, d.MemoryBytes}
	if !isText(l.Model) {
		l.Model = ""
	}
	if !isText(l.PCI) {
		l.PCI = ""
	}
	return &l
}

func (l *listed) device(gpu device.GPU) device.Device {
	if l == nil {
		return device.Device{}
	}
	return device.Device{
		ID: device.ID(gpu), GPU: gpu, Index: l.Index, MIG: l.MIG, Slice: -1, GI: -1, CI: -1,
		Minor: l.Minor, Model: l.Model, PCI: l.PCI, NUMANode: l.NUMA, MemoryBytes: l.Memory,
	}
}

type verdict struct {
	Reason   string    `json:"reason"`
	Action   string    `json:"action,omitempty"`
	Class    string    `json:"class,omitempty"`
	Since    time.Time `json:"since"`
	At       time.Time `json:"at"`
	ByReset  bool      `json:"by_reset,omitempty"`
	ByPolicy bool      `json:"by_policy,omitempty"`
	Reset    bool      `json:"reset,omitempty"`
	Odometer uint64    `json:"odometer,omitempty"`
}

type again struct {
	Reason string    `json:"reason"`
	Resets int       `json:"resets"`
	At     time.Time `json:"at"`
}

type xid struct {
	Code  uint64    `json:"code"`
	Count uint64    `json:"count"`
	Last  time.Time `json:"last,omitzero"`
	Past  time.Time `json:"past,omitzero"`
}

// newDocument also returns why a record is left out: what is odd about one device costs the
// others nothing.
func newDocument(h device.History, boot string) (d document, odd error) {
	d = document{Version: version, Boot: boot, Lost: h.Lost, Records: make([]record, 0, len(h.Records))}
	for _, r := range h.Records {
		w := record{GPU: r.GPU, Device: r.Device, Flaps: r.Flaps, Turns: r.Turns, Seen: r.Seen, Gone: r.Gone, Listed: newListed(r.Listed)}
		if r.Reason != "" {
			w.Verdict = &verdict{r.Reason, r.Action, r.Class, r.Since, r.At, r.ByReset, r.ByPolicy, r.Reset, r.Odometer}
		}
		if r.Again.Reason != "" {
			w.Again = &again{r.Again.Reason, r.Again.Resets, r.Again.At}
		}
		for _, x := range r.Xids {
			w.Xids = append(w.Xids, xid(x))
		}
		if err := w.check(); err != nil {
			odd = fmt.Errorf("leave out %q: %w", cmp.Or(string(r.Device), string(r.GPU)), err)
			continue
		}
		d.Records = append(d.Records, w)
	}
	return d, odd
}

// history returns what the document has, in order.
func (d document) history() (h device.History) {
	h.Lost = d.Lost
	for _, w := range d.Records {
		r := device.Record{GPU: w.GPU, Device: w.Device, Flaps: w.Flaps, Turns: w.Turns, Seen: w.Seen, Gone: w.Gone, Listed: w.Listed.device(w.GPU)}
		if v := w.Verdict; v != nil {
			r.Reason, r.Action, r.Class, r.Since, r.At = v.Reason, v.Action, v.Class, v.Since, v.At
			r.ByReset, r.ByPolicy, r.Reset, r.Odometer = v.ByReset, v.ByPolicy, v.Reset, v.Odometer
		}
		if w.Again != nil {
			r.Again = device.Relapse{Reason: w.Again.Reason, Resets: w.Again.Resets, At: w.Again.At}
		}
		for _, x := range w.Xids {
			r.Xids = append(r.Xids, device.Xid(x))
		}
		h.Records = append(h.Records, r)
	}
	slices.SortFunc(h.Records, func(a, b device.Record) int { // people may have written the file
		return cmp.Or(cmp.Compare(a.GPU, b.GPU), cmp.Compare(a.Device, b.Device))
	})
	return h
}

// encode returns the file's content, which people read too and decode understands, and why
// a record is left out of it.
func encode(h device.History, boot string) ([]byte, error) {
	d, odd := newDocument(h, boot)
	if err := d.check(); err != nil {
		return nil, err
	}
	content, err := json.MarshalIndent(d, "", " ")
	if err == nil && len(content) >= mostBytes {
		err = fmt.Errorf("%d bytes are too many", len(content))
	}
	if err != nil {
		return nil, err
	}
	return append(content, '\n'), odd
}

// decode understands what encode has written, and nothing that this program could not have
// written. Of a newer version's file it reads the version alone.
func decode(content []byte) (d document, err error) {
	if err := disk.Unmarshal(content, version, &d); err != nil {
		return document{}, err
	}
	if err := d.check(); err != nil {
		return document{}, fmt.Errorf("%w: %w", disk.ErrForeign, err)
	}
	return d, nil
}

func (d document) check() error {
	switch {
	case d.Boot != "" && !isWord(d.Boot):
		return errors.New("its boot has no name")
	case len(d.Records) > mostRecords:
		return fmt.Errorf("it has %d records", len(d.Records))
	}
	type key struct {
		gpu device.GPU
		id  device.ID
	}
	seen := map[key]bool{}
	for i, r := range d.Records {
		if err := r.check(); err != nil {
			return fmt.Errorf("record %d: %w", i, err)
		}
		if seen[key{r.GPU, r.Device}] {
			return fmt.Errorf("record %d is of what another one is of", i)
		}
		seen[key{r.GPU, r.Device}] = true
	}
	return nil
}

func (r record) check() error {
	switch {
	case !isWord(string(r.GPU)) || r.Device != "" && !isWord(string(r.Device)):
		return errors.New("it is of no device")
	case r.Listed != nil && (r.Device != "" || !isText(r.Listed.Model) || !isText(r.Listed.PCI)):
		return errors.New("what was listed is no GPU")
	case r.Flaps > mostNumber || len(r.Turns) > mostTurns || len(r.Xids) > mostXids:
		return errors.New("it counts more than there can be")
	case r.Again != nil && (!isWord(r.Again.Reason) || r.Again.Resets < 0 || r.Again.Resets > mostNumber):
		return errors.New("what came again is nothing that can")
	}
	if v := r.Verdict; v != nil && (!isWord(v.Reason) || v.Action != "" && !isWord(v.Action) || v.Class != "" && !isWord(v.Class)) {
		return errors.New("its verdict is none")
	}
	codes := map[uint64]bool{}
	for _, x := range r.Xids {
		if x.Code == 0 || x.Count > mostNumber || codes[x.Code] {
			return errors.New("it counts an Xid that is none, or twice, or too often")
		}
		codes[x.Code] = true
	}
	return nil
}

// isText reports whether a text can be a label's value, as the name of a model.
func isText(s string) bool {
	for _, c := range []byte(s) {
		if c < ' ' || c > '~' {
			return false
		}
	}
	return len(s) <= mostWord
}

// isWord tells whether a text can be a label's value and a column's, and is not a novel.
func isWord(s string) bool {
	for _, c := range []byte(s) {
		if c <= ' ' || c > '~' {
			return false
		}
	}
	return s != "" && len(s) <= mostWord
}
