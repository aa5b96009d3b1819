package incident

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/podgauge/podgauge/internal/device"
)

const gpu = "nvidia.com/gpu"

func owner(pod string) device.Owner {
	return device.Owner{Namespace: "team", Pod: pod, Container: "main"}
}

func whole(id device.ID) device.Device {
	return device.Device{ID: id, GPU: device.GPU(id), Slice: -1, Model: "H100", PCI: "0000:1a:00.0"}
}

// published is what a test says, and its readers are woken by.
type published[T any] struct {
	mu      sync.Mutex
	what    T
	changed chan struct{}
}

func (p *published[T]) look() (T, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.changed == nil {
		p.changed = make(chan struct{})
	}
	return p.what, p.changed
}

func (p *published[T]) post(what T) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.what = what
	if p.changed != nil {
		close(p.changed)
		p.changed = nil
	}
}

// kubelet is one that a test speaks for: it keeps holders as podresources does.
type kubelet struct {
	published[device.Holders]
	held   []device.Holding
	since  map[device.OfferedID]time.Time // of allocations
	recent []device.Seen
}

func newKubelet() *kubelet {
	k := &kubelet{since: map[device.OfferedID]time.Time{}}
	k.tell()
	return k
}

// allocate is an Allocate of this process: whoever had the id has it no more.
func (k *kubelet) allocate(id device.OfferedID) {
	k.set(id, device.Owner{})
	k.since[id] = time.Now()
	k.tell()
}

// name has an answer name the holder of an id.
func (k *kubelet) name(id device.OfferedID, o device.Owner) {
	k.set(id, o)
	first, told := k.since[id]
	if !told {
		first = time.Now()
	}
	if s := k.seen(id.Device(), o); s == nil {
		k.recent = append(k.recent, device.Seen{Device: id.Device(), Owner: o, First: first, Last: time.Now()})
	} else if !s.Ended.IsZero() {
		*s = device.Seen{Device: id.Device(), Owner: o, First: first, Last: time.Now()}
	} else {
		s.Last = time.Now()
	}
	k.tell()
}

// free has an answer name nobody for an id.
func (k *kubelet) free(id device.OfferedID) {
	k.held = slices.DeleteFunc(slices.Clone(k.held), func(h device.Holding) bool { return h.Offered == id })
	delete(k.since, id)
	k.tell()
}

func (k *kubelet) set(id device.OfferedID, o device.Owner) {
	k.held = slices.DeleteFunc(slices.Clone(k.held), func(h device.Holding) bool { return h.Offered == id })
	k.held = append(k.held, device.Holding{Resource: gpu, Offered: id, Owner: o})
	slices.SortFunc(k.held, device.CompareHoldings)
}

func (k *kubelet) seen(id device.ID, o device.Owner) *device.Seen {
	if i := slices.IndexFunc(k.recent, func(s device.Seen) bool { return s.Device == id && s.Owner == o }); i >= 0 {
		return &k.recent[i]
	}
	return nil
}

func (k *kubelet) tell() {
	h := device.Holders{At: time.Now(), Held: k.held, Settled: true}
	for i := range k.recent {
		s := &k.recent[i]
		had := slices.ContainsFunc(h.Rows(s.Device), func(r device.Holding) bool { return r.Owner == s.Owner })
		if !had && s.Ended.IsZero() {
			s.Ended = time.Now()
		}
	}
	h.Recent = slices.Clone(k.recent)
	slices.SortFunc(h.Recent, func(a, b device.Seen) int {
		if c := strings.Compare(string(a.Device), string(b.Device)); c != 0 {
			return c
		}
		return a.Owner.Compare(b.Owner)
	})
	k.post(h)
}

// stage is a Log that runs, and all that it asks.
type stage struct {
	*Log
	kubelet *kubelet
	board   device.Board
	pods    published[Fates]
	lines   lines
	cancel  context.CancelFunc
	ended   chan struct{}
}

// lines is what was logged.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *lines) count(part string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), part)
}

// play runs a test in a bubble, with a Log that ends with it.
func play(t *testing.T, o Options, test func(t *testing.T, s *stage)) {
	synctest.Test(t, func(t *testing.T) {
		s := start(o)
		defer s.stop()
		test(t, s)
	})
}

func start(o Options) *stage {
	s := &stage{kubelet: newKubelet(), ended: make(chan struct{})}
	o.Holders, o.Board, o.Pods = s.kubelet.look, s.board.Look, s.pods.look
	o.Log = slog.New(slog.NewTextHandler(&s.lines, nil))
	s.Log = New(o)
	ctx, cancel := context.WithCancel(context.Background())
	s.cancel = cancel
	go func() {
		defer close(s.ended)
		s.Run(ctx)
	}()
	s.settle()
	return s
}

func (s *stage) stop() {
	s.cancel()
	<-s.ended
}

// settle waits until all is published and written.
func (s *stage) settle() { time.Sleep(3 * turnEvery) }

// incidents are those that are published, once all is.
func (s *stage) incidents() []Incident {
	s.settle()
	known, _ := s.Look()
	return known.Incidents
}

// xid is a report of now.
func xid(number uint64, hit ...device.Device) device.Occurrence {
	o := device.Occurrence{At: time.Now(), GPU: hit[0].GPU, Hit: hit, Xid: number, Class: "application", Reason: reasonOf(number)}
	if number == 79 {
		o.Class, o.Action, o.Condemned = "reboot", "reboot", true
	}
	return o
}

func reasonOf(number uint64) string {
	return map[uint64]string{31: "xid_31", 43: "xid_43", 79: "xid_79", 94: "xid_94"}[number]
}

// names are the pods of an incident, those who had lost the device in brackets.
func names(i Incident) string {
	var all []string
	for _, h := range i.Holders {
		name := h.Pod
		if !h.Until.IsZero() {
			name = "(" + name + ")"
		}
		all = append(all, name)
	}
	if i.Nameless {
		all = append(all, "?")
	}
	return strings.Join(all, " ")
}
