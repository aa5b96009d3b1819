package podresources

import (
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
)

// allocationModel is the reference model of rule 4 of the design (ADR 4). It handles one allocation at a time, without regard to speed.
type allocationModel struct {
	entries     map[allocationKey]*modelEntry
	responses   []modelResponse // all responses, the oldest first
	settled     bool
	trusted     time.Time
	requestedAt time.Time
	epoch       kubeletEpoch
	caughtUp    bool // with the checkpoint of this connection
	checkpoint  *modelCheckpoint
}

// modelEntry is the state of an allocation or a claim.
type modelEntry struct {
	owners    []device.Owner
	epoch     kubeletEpoch                  // connection of the newest listing
	epochs    map[device.Owner]kubeletEpoch // the same for each owner of a claim
	uid       *string                       // from the checkpoint at the end of the connection, or the next one
	allocated time.Time                     // latest possible time; zero if the owner is known
	since     time.Time                     // earliest possible time
}

// modelCheckpoint is a checkpoint from before a request.
type modelCheckpoint struct {
	checkpoint  kubeletCheckpoint
	requestedAt time.Time
}

// modelResponse is a response. A trusted response omits no pod.
type modelResponse struct {
	pods        []podName
	epoch       kubeletEpoch
	requestedAt time.Time
	trusted     bool
}

// inOutage reports whether the responses on the newest connection lack API pods, or have contained API pods again for less than a minute.
func (m *allocationModel) inOutage(requestedAt time.Time) bool {
	var missing, had bool
	var back time.Time
	for i, h := range m.responses {
		hasAPIPods := slices.ContainsFunc(h.pods, func(p podName) bool { return !isStatic(p) })
		switch {
		case i == 0 || h.epoch != m.responses[i-1].epoch:
			missing, back = (missing || had) && !hasAPIPods, time.Time{}
		case missing && hasAPIPods:
			missing, back = false, h.requestedAt
		}
		had = hasAPIPods
	}
	return missing || !back.IsZero() && requestedAt.Sub(back) < time.Minute
}

// isStatic reports whether a pod is a static pod of the scenario's node.
func isStatic(p podName) bool { return strings.HasSuffix(p.pod, "-"+scenarioNode) }

func (m *allocationModel) entry(a allocationKey) *modelEntry {
	if m.entries[a] == nil {
		m.entries[a] = &modelEntry{}
	}
	return m.entries[a]
}

func (m *allocationModel) applyResponse(listed map[allocationKey][]device.Owner, pods []podName, epoch kubeletEpoch, requestedAt time.Time) {
	if epoch != m.epoch {
		m.trusted, m.caughtUp = time.Time{}, false
		for a, f := range m.entries {
			if f.uid = nil; m.checkpoint != nil {
				f.recordUID(a, m.checkpoint.checkpoint)
			}
		}
	}
	m.epoch, m.requestedAt = epoch, requestedAt
	m.responses = append(m.responses, modelResponse{pods, epoch, requestedAt, false})
	outage := m.inOutage(requestedAt)
	if m.trusted.IsZero() && requestedAt.Sub(epoch.kubeletStartedAt) >= time.Minute && !outage {
		m.trusted = requestedAt
	}
	m.settled = m.settled || !m.trusted.IsZero()
	m.responses[len(m.responses)-1].trusted = !m.trusted.IsZero()
	for a := range listed {
		m.entry(a)
	}
	for a, f := range m.entries {
		switch owners := listed[a]; {
		case a.resource == scenarioDriver:
			f.applyClaims(owners, pods, epoch, requestedAt, outage)
		case f.allocated.After(requestedAt): // requested before the allocation
		case owners != nil:
			*f = modelEntry{owners: owners, epoch: epoch}
		case !f.allocated.IsZero(): // pending: ends with the last possible owner
			if m.hasEnded(f) {
				f.allocated = time.Time{}
			}
		case f.epoch == epoch: // ended for all
			f.owners = nil
		default: // retained: ends when the pod is listed without the device, or after settling
			f.owners = slices.DeleteFunc(slices.Clone(f.owners), func(o device.Owner) bool {
				p := podName{o.Namespace, o.Pod}
				continues := requestedAt.Sub(epoch.connectedAt) < time.Minute || outage && !isStatic(p) && m.isCheckpointed(a, f)
				return slices.Contains(pods, p) || !continues
			})
		}
	}
}

// recordUID records the UID of an owner that the newest response lacks.
func (f *modelEntry) recordUID(a allocationKey, n kubeletCheckpoint) {
	if uid, has := n.allocated[a]; has && f.uid == nil && len(f.owners) > 0 {
		f.uid = &uid
	}
}

// isCheckpointed reports whether the checkpoint contained an allocation for the same pod within the last minute.
func (m *allocationModel) isCheckpointed(a allocationKey, f *modelEntry) bool {
	if m.checkpoint == nil || m.requestedAt.Sub(m.checkpoint.requestedAt) >= time.Minute {
		return false
	}
	uid, has := m.checkpoint.checkpoint.allocated[a]
	return has && (f.uid == nil || *f.uid == uid)
}

// applyClaims applies a List to a claim. An owner ends if this connection listed it before, if the pod is listed without the claim, or after
// a minute.
func (f *modelEntry) applyClaims(named []device.Owner, pods []podName, epoch kubeletEpoch, requestedAt time.Time, outage bool) {
	owners := slices.Clone(named)
	for _, o := range f.owners {
		p := podName{o.Namespace, o.Pod}
		continues := requestedAt.Sub(epoch.connectedAt) < time.Minute || outage && !isStatic(p)
		if !slices.Contains(named, o) && !slices.Contains(pods, p) && f.epochs[o] != epoch && continues {
			owners = append(owners, o)
		}
	}
	f.owners = owners
	if f.epochs == nil {
		f.epochs = map[device.Owner]kubeletEpoch{}
	}
	for _, o := range named {
		f.epochs[o] = epoch
	}
}

// applyGet applies a response of Get, which only adds owners of pending allocations.
func (m *allocationModel) applyGet(rows []device.Allocation, epoch kubeletEpoch, requestedAt time.Time) {
	for _, h := range rows {
		if f := m.entry(keyOf(h)); epoch == m.epoch && !f.allocated.IsZero() && !f.allocated.After(requestedAt) {
			*f = modelEntry{owners: []device.Owner{h.Owner}, epoch: epoch}
		}
	}
}

// hasEnded reports whether no listed pod can own a pending allocation.
func (m *allocationModel) hasEnded(f *modelEntry) bool {
	if m.trusted.IsZero() || m.requestedAt.Sub(f.allocated) < 10*time.Second {
		return false
	}
	for _, p := range m.responses[len(m.responses)-1].pods {
		if m.mayOwn(p, f) {
			return false
		}
	}
	return true
}

// mayOwn reports whether a listed pod may own an allocation: no trusted response after the allocation lacks the pod, and no response
// from 10 s before the allocation contains it.
func (m *allocationModel) mayOwn(p podName, f *modelEntry) bool {
	var first time.Time
	for _, h := range slices.Backward(m.responses) {
		switch listed := slices.Contains(h.pods, p); {
		case listed:
			first = h.requestedAt
		case h.trusted:
			return h.requestedAt.Before(f.allocated) && first.After(f.since.Add(-10*time.Second))
		}
	}
	return first.After(f.since.Add(-10 * time.Second))
}

func (m *allocationModel) allocate(resource string, ids []device.AdvertisedID, now time.Time) {
	for _, id := range ids {
		f := m.entry(allocationKey{resource, id})
		f.owners, f.since, f.allocated = nil, now, now
	}
}

func (m *allocationModel) review(n kubeletCheckpoint, err error, now time.Time) {
	for a, f := range m.entries {
		_, noted := n.allocated[a]
		limit, dropped := 10*time.Second, !noted
		if err != nil {
			limit, dropped = time.Hour, true
		}
		if dropped && !f.allocated.IsZero() && now.Sub(f.allocated) >= limit {
			f.allocated = time.Time{}
		}
	}
	for a, f := range m.entries {
		if _, noted := n.allocated[a]; err == nil && !noted && m.checkpoint != nil && f.epoch != m.epoch && n.writtenAt.After(m.epoch.kubeletStartedAt) {
			if _, was := m.checkpoint.checkpoint.allocated[a]; was { // released by the current kubelet
				f.owners = nil
			}
		}
	}
	if err == nil && m.requestedAt.Sub(n.writtenAt) >= 10*time.Millisecond {
		defer func() {
			m.checkpoint = &modelCheckpoint{n, m.requestedAt}
			for a, f := range m.entries {
				if f.epoch != m.epoch {
					f.recordUID(a, n)
				}
			}
		}()
	}
	if err != nil || m.caughtUp || m.trusted.IsZero() || now.Sub(m.trusted) >= 10*time.Second {
		return
	}
	if !n.writtenAt.After(m.trusted) || n.writtenAt.After(m.requestedAt) {
		return
	}
	m.caughtUp = true
	for a := range n.allocated {
		if f := m.entry(a); len(f.owners) == 0 && f.allocated.IsZero() && f.epoch != m.epoch {
			f.since, f.allocated = time.Time{}, m.trusted
		}
	}
}

// addFromOutage applies the checkpoint after a failed call, or before the first List over a connection.
func (m *allocationModel) addFromOutage(n kubeletCheckpoint, now time.Time) {
	if !m.settled || m.requestedAt.Sub(n.writtenAt) >= 10*time.Millisecond {
		return
	}
	for a, uid := range n.allocated {
		f := m.entry(a)
		if len(f.owners) > 0 || !f.allocated.IsZero() {
			continue // already allocated
		}
		var since time.Time
		if m.checkpoint != nil {
			if before, had := m.checkpoint.checkpoint.allocated[a]; had && before == uid {
				continue // known before, and not listed since
			}
			since = m.checkpoint.requestedAt
		}
		f.owners, f.since, f.allocated = nil, since, now
	}
}

func (m *allocationModel) allocations() (rows []device.Allocation) {
	for a, f := range m.entries {
		owners := f.owners
		if !f.allocated.IsZero() {
			owners = []device.Owner{{}}
		}
		for _, o := range owners {
			rows = append(rows, device.Allocation{Resource: a.resource, DeviceID: a.id, Owner: o})
		}
	}
	slices.SortFunc(rows, device.CompareAllocations)
	return slices.Compact(rows)
}

// scenario applies random events to the tracker and to the model.
type scenario struct {
	t           testing.TB
	choose      func(n int) int
	tracker     allocationTracker
	model       allocationModel
	now         time.Time
	epoch       kubeletEpoch
	requestedAt time.Time // of the current call; zero without a call
}

var (
	scenarioIDs       = []device.AdvertisedID{"a", "a::1", "b", "c"} // a and a::1 belong to the same device
	scenarioDurations = []time.Duration{0, time.Millisecond, 11 * time.Millisecond, time.Second, 9 * time.Second, 10 * time.Second, 50 * time.Second, time.Minute, time.Hour}
	scenarioResources = []string{"nvidia.com/gpu", "nvidia.com/mig", scenarioDriver}
)

const (
	scenarioDriver = "gpu.nvidia.com"
	scenarioNode   = "n"
)

// scenarioPods are two API pods and two static pods.
var scenarioPods = []string{"p", "q", "r-" + scenarioNode, "s-" + scenarioNode}

func newScenario(t testing.TB, choose func(n int) int) *scenario {
	s := &scenario{t: t, choose: choose, tracker: newAllocationTracker(), model: allocationModel{entries: map[allocationKey]*modelEntry{}}, now: time.Unix(1<<30, 0)}
	s.tracker.apiPods.nodeName = scenarioNode
	s.connect()
	return s
}

func (s *scenario) play(events int) {
	for range events {
		before, copied := s.tracker.allocations, slices.Clone(s.tracker.allocations)
		settled := s.tracker.settled
		changed := false
		switch s.choose(10) {
		case 0:
			s.now = s.now.Add(scenarioDurations[s.choose(len(scenarioDurations))])
		case 1:
			s.connect()
		case 2:
			if s.requestedAt.IsZero() {
				s.requestedAt = s.now
			}
		case 3, 4:
			changed = s.respond()
		case 5, 6:
			changed = s.allocate()
		case 7:
			changed = s.review()
		case 8:
			changed = s.outage(s.now)
		case 9:
			if s.requestedAt.IsZero() { // Get waits for List
				changed = s.get()
			}
		}
		s.compare()
		if !slices.Equal(before, copied) {
			s.t.Fatal("a published slice was modified")
		}
		if is := !slices.Equal(before, s.tracker.allocations) || settled != s.tracker.settled; is != changed {
			s.t.Fatalf("got changed %t, allocations before %v, after %v", changed, before, s.tracker.allocations)
		}
	}
}

func (s *scenario) connect() {
	s.now = s.now.Add(time.Millisecond)
	s.epoch = kubeletEpoch{connectedAt: s.now, kubeletStartedAt: s.now.Add(-scenarioDurations[s.choose(len(scenarioDurations))])}
}

// respond merges a List with every id twice, as for two NUMA nodes.
func (s *scenario) respond() bool {
	requestedAt := s.requestedAt
	if s.requestedAt = (time.Time{}); requestedAt.IsZero() {
		requestedAt = s.now
	}
	listed := map[allocationKey][]device.Owner{}
	pods := []podName{}
	raw := newListResponse()
	for pod := range 4 {
		name := podName{"team", scenarioPods[pod]}
		if s.choose(3) == 0 {
			continue
		}
		pods = append(pods, name)
		for range s.choose(3) {
			a := allocationKey{scenarioResources[s.choose(3)], scenarioIDs[s.choose(len(scenarioIDs))]}
			o := device.Owner{Namespace: name.namespace, Pod: name.pod, Container: "main"}
			listed[a] = append(listed[a], o)
			raw.allocations = append(raw.allocations, device.Allocation{Resource: a.resource, DeviceID: a.id, Owner: o})
		}
	}
	raw.pods = pods
	raw.allocations = append(raw.allocations, raw.allocations...)
	added := s.model.epoch != s.epoch && s.outage(requestedAt)
	s.model.applyResponse(listed, pods, s.epoch, requestedAt)
	return s.tracker.merge(&raw, s.epoch, requestedAt) || added
}

// get merges a Get of a pod on the newest connection.
func (s *scenario) get() bool {
	var rows []device.Allocation
	owner := device.Owner{Namespace: "team", Pod: scenarioPods[s.choose(4)], Container: "main"}
	for range s.choose(4) {
		id := scenarioIDs[s.choose(len(scenarioIDs))]
		h := device.Allocation{Resource: scenarioResources[s.choose(3)], DeviceID: id, Owner: owner}
		rows = append(rows, h, h)
	}
	s.model.applyGet(rows, s.epoch, s.now)
	return s.tracker.confirmPod(rows, s.epoch, s.now)
}

func (s *scenario) allocate() bool {
	resource := scenarioResources[s.choose(2)]
	var ids []device.AdvertisedID
	for range s.choose(3) {
		ids = append(ids, scenarioIDs[s.choose(len(scenarioIDs))])
	}
	s.model.allocate(resource, ids, s.now)
	return s.tracker.recordAllocate(resource, ids, s.now)
}

func (s *scenario) outage(now time.Time) bool {
	n := s.randomCheckpoint()
	s.model.addFromOutage(n, now)
	return s.tracker.addAllocatedSince(n, now)
}

func (s *scenario) review() bool {
	n := s.randomCheckpoint()
	var err error
	if s.choose(3) == 0 {
		err = errBroken
	}
	s.model.review(n, err, s.now)
	return s.tracker.mergeCheckpoint(n, err, s.now)
}

func (s *scenario) randomCheckpoint() kubeletCheckpoint {
	n := kubeletCheckpoint{allocated: map[allocationKey]string{}, writtenAt: s.now.Add(-scenarioDurations[s.choose(len(scenarioDurations))])}
	for range s.choose(9) {
		n.allocated[allocationKey{scenarioResources[s.choose(2)], scenarioIDs[s.choose(len(scenarioIDs))]}] = []string{"", "u", "v"}[s.choose(3)]
	}
	return n
}

func (s *scenario) compare() {
	s.t.Helper()
	if want := s.model.allocations(); !slices.Equal(s.tracker.allocations, want) {
		s.t.Fatalf("allocations: got\n%v\nwant\n%v", s.tracker.allocations, want)
	}
	if s.tracker.settled != s.model.settled {
		s.t.Fatalf("got settled %t", s.tracker.settled)
	}
	for a := range maps.Keys(s.tracker.pending) {
		if !s.tracker.has(a) {
			s.t.Fatalf("got %v pending without an allocation", a)
		}
	}
}

// TestAllocationTrackerAgainstModel compares the tracker with the reference model after random events.
func TestAllocationTrackerAgainstModel(t *testing.T) {
	for seed := range uint64(2000) {
		chance := rand.New(rand.NewPCG(seed, 0))
		newScenario(t, chance.IntN).play(100)
	}
}

func FuzzAllocationTracker(f *testing.F) {
	f.Add([]byte{0})
	f.Add([]byte("allocate, call, respond, reconnect"))
	f.Fuzz(func(t *testing.T, script []byte) {
		choose := func(n int) int {
			if len(script) == 0 {
				return 0
			}
			b := script[0]
			script = script[1:]
			return int(b) % n
		}
		newScenario(t, choose).play(min(len(script), 500))
	})
}
