package podresources

import (
	"slices"

	"github.com/podgauge/podgauge/internal/device"
)

// ledger is what stands of resources from answer to answer, as memory is for holders: what
// containers have of them, and what the kubelet would give away. It has no lock and reads
// no clock.
//
// An answer replaces the one before it, except in the minute after a connection was made:
// a kubelet that was restarted lists its pods one after the other. What a pod had stands
// until that connection has listed the pod, or somebody else has the same, or the minute
// is over (docs/adr/0004-unknown-holders.md). Before the first answer there is nothing.
type ledger struct {
	// held are the rows by owner, and offered those that nobody owns. Once set their
	// slices are replaced and not written, since they were published.
	held, offered device.Resources

	// dropped are the ids that answers had too many of, of those that the kubelet would give
	// away, and droppedHeld of those that containers have.
	dropped, droppedHeld []device.DroppedIDs

	link link
	// listed are the pods that answers over link have listed, while it is young.
	listed map[podName]bool

	devices []device.ResourceDevice // scratch
	memory  []device.Memory

	// shown are the devices of named holders, and holders and rows what they were made of.
	shown   []device.HeldDevice
	holders []device.Holding
	rows    []device.HeldDevice
}

// take merges an answer in, and reports whether anybody has something else than before. The
// answer may lack pods as long as its connection is young.
func (l *ledger) take(g *given, pods []podName, over link, young bool) bool {
	if young {
		l.hear(pods, over)
		l.stand(g)
	} else {
		l.link, l.listed = over, nil
	}
	l.droppedHeld = g.foreign.dropped(l.droppedHeld)
	g.order()
	var devices, cpus, memory, claims bool
	h := &l.held
	h.HeldDevices, devices = renewed(h.HeldDevices, g.devices, device.HeldDevice.Compare, cloneHeldDevice)
	h.HeldCPUs, cpus = renewed(h.HeldCPUs, g.cpus, device.HeldCPUs.Compare, cloneHeldCPUs)
	h.HeldMemory, memory = renewed(h.HeldMemory, g.memory, device.HeldMemory.Compare, cloneHeldMemory)
	h.Claims, claims = renewed(h.Claims, g.claims, device.Claim.Compare, cloneClaim)
	return devices || cpus || memory || claims
}

func (l *ledger) hear(pods []podName, over link) {
	if over != l.link || l.listed == nil {
		l.link, l.listed = over, map[podName]bool{}
	}
	for _, p := range pods {
		l.listed[p] = true
	}
}

// stand adds to an answer what it leaves out and still stands.
func (l *ledger) stand(g *given) {
	cpus, claims := g.cpus, g.claims // what others have now
	missing := func(o device.Owner) bool { return !l.listed[podName{o.Namespace, o.Pod}] }
	l.standDevices(g, missing)
	for _, c := range l.held.HeldCPUs {
		if !missing(c.Owner) {
			continue
		}
		c.CPUs = slices.DeleteFunc(slices.Clone(c.CPUs), func(n int64) bool {
			return slices.ContainsFunc(cpus, func(other device.HeldCPUs) bool { return slices.Contains(other.CPUs, n) })
		})
		if len(c.CPUs) > 0 {
			g.cpus = append(g.cpus, c)
		}
	}
	for _, m := range l.held.HeldMemory {
		if missing(m.Owner) {
			g.memory = append(g.memory, m)
		}
	}
	for _, c := range l.held.Claims {
		if missing(c.Owner) && !slices.ContainsFunc(claims, func(d device.Claim) bool { return replaces(d, c) }) {
			g.claims = append(g.claims, c)
		}
	}
}

// standDevices does so for devices. There are plugins to which each MiB of a GPU's memory
// is a device, so that a node has some hundred thousand.
func (l *ledger) standDevices(g *given, missing func(device.Owner) bool) {
	if !slices.ContainsFunc(l.held.HeldDevices, func(d device.HeldDevice) bool { return missing(d.Owner) }) {
		return
	}
	taken := make(map[[2]string]bool, len(g.devices))
	for _, d := range g.devices {
		taken[[2]string{d.Resource, d.ID}] = true
	}
	for _, d := range l.held.HeldDevices {
		if missing(d.Owner) && !taken[[2]string{d.Resource, d.ID}] {
			g.devices = append(g.devices, d)
		}
	}
}

// replaces tells whether a claim has been given the device of another: several pods may
// share a claim, and several claims a device where each has a share of it.
func replaces(c, other device.Claim) bool {
	return c.Driver == other.Driver && c.Pool == other.Pool && c.Device == other.Device && c.Share == other.Share &&
		(c.ClaimNamespace != other.ClaimNamespace || c.ClaimName != other.ClaimName)
}

// offer takes in what the kubelet would give away.
func (l *ledger) offer(g *given) {
	l.dropped = g.foreign.dropped(l.dropped)
	g.order()
	l.devices, l.memory = l.devices[:0], l.memory[:0]
	for _, d := range g.devices {
		l.devices = append(l.devices, d.ResourceDevice)
	}
	for _, m := range g.memory {
		l.memory = append(l.memory, m.Memory)
	}
	var cpus []int64
	if len(g.cpus) > 0 {
		cpus = g.cpus[0].CPUs
	}
	l.offered.Known = true
	l.offered.Devices, _ = renewed(l.offered.Devices, l.devices, device.ResourceDevice.Compare, cloneDevice)
	l.offered.Memory, _ = renewed(l.offered.Memory, l.memory, device.Memory.Compare, cloneMemory)
	if !slices.Equal(l.offered.CPUs, cpus) {
		l.offered.CPUs = slices.Clone(cpus)
	}
}

// withdraw notes that the kubelet does not say what it would give away. What it said before
// is kept for when it says the same again, and shown to nobody.
func (l *ledger) withdraw() { l.offered.Known = false }

// resources are what stands, beside these holders.
func (l *ledger) resources(holders []device.Holding) device.Resources {
	r := l.held
	r.HeldDevices = l.heldDevices(holders)
	if l.offered.Known {
		r.Known, r.Devices, r.CPUs, r.Memory = true, l.offered.Devices, l.offered.CPUs, l.offered.Memory
	}
	return r
}

// heldDevices are those of the holders who have a name: memory knows better who holds what
// than one answer does, and what is shown of a device is to be of one mind. The answers add
// the NUMA nodes.
func (l *ledger) heldDevices(holders []device.Holding) []device.HeldDevice {
	if same(holders, l.holders) && same(l.held.HeldDevices, l.rows) {
		return l.shown
	}
	l.holders, l.rows = holders, l.held.HeldDevices
	nodes := make(map[allocation][]int, len(holders))
	for _, rows := range [...][]device.HeldDevice{l.shown, l.rows} { // the newer ones last
		for _, d := range rows {
			nodes[allocation{d.Resource, device.OfferedID(d.ID)}] = d.NUMANodes
		}
	}
	shown := make([]device.HeldDevice, 0, len(holders))
	for _, h := range holders {
		if h.Owner == (device.Owner{}) || h.Claimed() { // a claim has a row of its own
			continue
		}
		shown = append(shown, device.HeldDevice{Owner: h.Owner, ResourceDevice: device.ResourceDevice{
			Resource: h.Resource, ID: string(h.Offered), NUMANodes: nodes[of(h)],
		}})
	}
	slices.SortFunc(shown, device.HeldDevice.Compare)
	if !slices.EqualFunc(shown, l.shown, func(a, b device.HeldDevice) bool { return a.Compare(b) == 0 }) {
		l.shown = shown
	}
	return l.shown
}

// same tells whether two slices are the same memory: what was published is replaced, and
// not written.
func same[T any](a, b []T) bool { return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0]) }

// renewed are the old rows where the new ones say the same, and else copies of the new
// ones.
func renewed[T any](old, next []T, compare func(a, b T) int, clone func(T) T) (rows []T, changed bool) {
	if slices.EqualFunc(old, next, func(a, b T) bool { return compare(a, b) == 0 }) {
		return old, false
	}
	rows = make([]T, len(next))
	for i, row := range next {
		rows[i] = clone(row)
	}
	return rows, true
}

func cloneDevice(d device.ResourceDevice) device.ResourceDevice {
	d.NUMANodes = slices.Clone(d.NUMANodes)
	return d
}

func cloneMemory(m device.Memory) device.Memory {
	m.NUMANodes = slices.Clone(m.NUMANodes)
	return m
}

func cloneHeldDevice(d device.HeldDevice) device.HeldDevice {
	d.ResourceDevice = cloneDevice(d.ResourceDevice)
	return d
}

func cloneHeldMemory(m device.HeldMemory) device.HeldMemory {
	m.Memory = cloneMemory(m.Memory)
	return m
}

func cloneHeldCPUs(c device.HeldCPUs) device.HeldCPUs {
	c.CPUs = slices.Clone(c.CPUs)
	return c
}

func cloneClaim(c device.Claim) device.Claim {
	c.CDI = slices.Clone(c.CDI)
	return c
}
