package churn

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
)

// made is a made-up node: its kubelet is honest, and its podgauge as honest as lie has it.
type made struct {
	lie  lie
	mu   sync.Mutex
	held map[string]Owner // guarded by mu, as all below
	// down is while there is no kubelet, and back when there was one again: it names nobody
	// for 100 ms.
	down   bool
	back   time.Time
	shown  map[string]Owner // what podgauge knows
	ledger map[string]*booking
	past   []past
	n      int
}

// lie distorts a snapshot of the made-up podgauge; n counts its snapshots.
type lie func(m *made, s *Snapshot, n int)

// past is who held what at a time.
type past struct {
	at   time.Time
	held map[string]Owner
}

type booking struct {
	raw    float64
	holder Owner
	sums   map[Owner]float64
}

const (
	gpus = 8
	rate = 100 // joules a second of GPU 0; GPU 1 burns twice as much, and so on
)

// unnamed is who has been allocated a device and was not named yet.
var unnamed = Owner{Pod: "unnamed"}

func newMade(l lie) *made {
	return &made{lie: l, held: map[string]Owner{}, shown: map[string]Owner{}, ledger: map[string]*booking{}}
}

func gpuOf(i int) string { return fmt.Sprintf("GPU-%d", i) }

func burned(device string, at time.Time) float64 {
	var i int
	fmt.Sscanf(device, "GPU-%d", &i)
	return float64(i+1) * rate * at.Sub(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)).Seconds()
}

func (m *made) PodName(name string) string { return name + "-node" }

func (m *made) Put(_ context.Context, name string, wanted int) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	var free []string
	for i := range gpus {
		if _, held := m.held[gpuOf(i)]; !held {
			free = append(free, gpuOf(i))
		}
	}
	if m.down || len(free) < wanted {
		return errors.New("turned away")
	}
	for _, id := range free[:wanted] {
		m.held[id] = Owner{Namespace, m.PodName(name), Container}
		m.shown[id] = unnamed // by Allocate
	}
	m.remember()
	return nil
}

func (m *made) Delete(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	maps.DeleteFunc(m.held, func(_ string, o Owner) bool { return o.Pod == m.PodName(name) })
	m.remember()
	return nil
}

func (m *made) remember() { m.past = append(m.past, past{time.Now(), maps.Clone(m.held)}) }

func (m *made) Restart(ctx context.Context, _ int, wait time.Duration) error {
	m.mu.Lock()
	m.down = true
	m.mu.Unlock()
	err := pause(ctx, wait)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.down, m.back = false, time.Now()
	return err
}

func (m *made) Ask(context.Context) (Answer, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	a := Answer{Span: Span{now, now}}
	if !m.down && now.Sub(m.back) >= 100*time.Millisecond {
		a.Whole = true
		for id, o := range m.held {
			a.Held = append(a.Held, Held{id, o})
		}
	}
	return a, nil
}

func (m *made) Scrape(ctx context.Context) (Snapshot, error) {
	a, err := m.Ask(ctx)
	m.mu.Lock()
	defer m.mu.Unlock()
	if a.Whole { // else the last holders stand
		m.shown = maps.Clone(m.held)
	}
	s := Snapshot{Span: a.Span, KubeletUp: !m.down, Devices: map[string]Shown{}}
	for i := range gpus {
		id := gpuOf(i)
		d := Shown{Hold: Idle, Holder: m.shown[id], Counted: true}
		switch d.Holder {
		case Owner{}:
		case unnamed:
			d.Hold, d.Holder = Unnamed, Owner{}
		default:
			d.Hold, d.Owners = Named, []Owner{d.Holder}
		}
		d.Booked, d.Joules = d.Holder, m.book(id, d.Holder, a.From)
		s.Devices[id] = d
	}
	if m.n++; m.lie != nil {
		m.lie(m, &s, m.n)
	}
	return s, err
}

func (m *made) book(id string, holder Owner, at time.Time) float64 {
	raw := burned(id, at)
	b := m.ledger[id]
	if b == nil {
		b = &booking{raw, holder, map[Owner]float64{}}
		m.ledger[id] = b
	}
	b.sums[b.holder] += raw - b.raw
	b.raw, b.holder = raw, holder
	return b.sums[holder]
}

// names has a snapshot name another holder of a device, or none.
func (s *Snapshot) names(id string, o Owner) {
	d := s.Devices[id]
	d.Hold, d.Holder, d.Booked, d.Owners = Named, o, o, []Owner{o}
	if o == (Owner{}) {
		d.Hold, d.Owners = Idle, nil
	}
	s.Devices[id] = d
}

// The lies.

// late shows who held what a second and a half ago.
func late(m *made, s *Snapshot, _ int) {
	then := map[string]Owner{}
	for _, p := range m.past {
		if p.at.Before(s.From.Add(-1500 * time.Millisecond)) {
			then = p.held
		}
	}
	for id := range s.Devices {
		s.names(id, then[id])
	}
}

// swapped names the holder of another device once.
func swapped(_ *made, s *Snapshot, _ int) {
	if a, b := s.Devices[gpuOf(0)], s.Devices[gpuOf(1)]; a.Hold == Named && b.Hold == Named && a.Holder != b.Holder {
		s.names(gpuOf(0), b.Holder)
	}
}

// stranger names a container that never was.
func stranger(_ *made, s *Snapshot, n int) {
	if n == 50 {
		s.names(gpuOf(gpus-1), Owner{"default", "nobody", "main"})
	}
}

// sticky goes on naming whoever has gone for two seconds, until somebody else comes.
func sticky() lie {
	last, when := map[string]Owner{}, map[string]time.Time{}
	return func(_ *made, s *Snapshot, _ int) {
		for id, d := range s.Devices {
			if d.Hold == Named {
				last[id], when[id] = d.Holder, s.From
			} else if d.Hold == Idle && s.From.Sub(when[id]) < 2*time.Second {
				s.names(id, last[id])
			}
		}
	}
}

// idle calls a device idle now and then.
func idle(_ *made, s *Snapshot, n int) {
	if n%100 == 0 {
		for id := range s.Devices {
			s.names(id, Owner{})
		}
	}
}

// halting has every 30th snapshot not know who holds a device.
func halting(_ *made, s *Snapshot, n int) {
	if n%30 == 0 {
		d := s.Devices[gpuOf(2)]
		d.Hold, d.Holder, d.Owners, d.Counted = Unknown, Owner{}, nil, false
		s.Devices[gpuOf(2)] = d
	}
}

// deaf has the kubelet be down every 30th time.
func deaf(_ *made, s *Snapshot, n int) { s.KubeletUp = s.KubeletUp && n%30 != 0 }

// shy does not say who holds one of the GPUs.
func shy(_ *made, s *Snapshot, _ int) {
	if d := s.Devices[gpuOf(0)]; d.Hold == Named {
		d.Hold, d.Holder, d.Booked, d.Owners = Unnamed, Owner{}, Owner{}, nil
		s.Devices[gpuOf(0)] = d
	}
}

// torn has one series name the holder, and another nobody.
func torn(_ *made, s *Snapshot, n int) {
	if d := s.Devices[gpuOf(0)]; n > 50 && d.Hold == Named {
		d.Booked = Owner{}
		s.Devices[gpuOf(0)] = d
	}
}

// lossy forgets what is burned while nobody holds a device.
func lossy(_ *made, s *Snapshot, _ int) {
	if d := s.Devices[gpuOf(3)]; d.Booked == (Owner{}) {
		d.Joules = 0
		s.Devices[gpuOf(3)] = d
	}
}

// twofold books on idle time, too, what a pod burned.
func twofold(_ *made, s *Snapshot, _ int) {
	d := s.Devices[gpuOf(0)]
	if d.Hold == Idle {
		d.Joules = burned(gpuOf(0), s.From)
		s.Devices[gpuOf(0)] = d
	}
}

// inherited has pods pay for what was burned before them: the device's own counter is shown.
func inherited(_ *made, s *Snapshot, _ int) {
	for id, d := range s.Devices {
		d.Joules = burned(id, s.From)
		s.Devices[id] = d
	}
}

// generous lets each pod off a part of what it burned, and books that on idle time.
func generous() lie {
	spared := map[Held]float64{}
	return func(_ *made, s *Snapshot, _ int) {
		for id, d := range s.Devices {
			if d.Hold == Named {
				spared[Held{id, d.Holder}] = d.Joules / 2
				d.Joules /= 2
			} else {
				for l, j := range spared {
					if l.Device == id {
						d.Joules += j
					}
				}
			}
			s.Devices[id] = d
		}
	}
}

// lies are all of them, and what has to be said of each.
var lies = map[string]struct {
	lie  func() lie
	want string
}{
	"late":      {just(late), "was wrong about a holder"},
	"swapped":   {just(swapped), "was wrong about a holder"},
	"stranger":  {just(stranger), "1 times a snapshot was wrong about a holder"},
	"sticky":    {sticky, "was wrong about a holder"},
	"idle":      {just(idle), "is said to be idle"},
	"halting":   {just(halting), "snapshots outside restarts did not know a holder"},
	"deaf":      {just(deaf), "snapshots outside restarts did not know a holder"},
	"shy":       {just(shy), "holdings of a second or more were labelled"},
	"torn":      {just(torn), "its energy is booked on"},
	"lossy":     {just(lossy), "GPU-3 burned"},
	"twofold":   {just(twofold), "GPU-0 burned"},
	"inherited": {just(inherited), "J are booked on"},
	"generous":  {generous, "J are booked on"},
}

func just(l lie) func() lie { return func() lie { return l } }

func sortedLies() []string { return slices.Sorted(maps.Keys(lies)) }
