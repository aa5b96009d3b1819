package podresources

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/wire"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	api "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// encodedField is an encoded field of a message.
type encodedField []byte

func text(number protowire.Number, value string) encodedField {
	return encodedField(message(number, encodedField(value)))
}

func message(number protowire.Number, fields ...encodedField) encodedField {
	return protowire.AppendBytes(protowire.AppendTag(nil, number, protowire.BytesType), slices.Concat(fields...))
}

func varint(number protowire.Number, value uint64) encodedField {
	return protowire.AppendVarint(protowire.AppendTag(nil, number, protowire.VarintType), value)
}

// TestDecodeInAnyOrder checks valid messages of unusual form.
func TestDecodeInAnyOrder(t *testing.T) {
	devices := func(fields ...encodedField) encodedField { return message(2, fields...) }
	row := func(namespace, pod, container, resource, id string) device.Allocation {
		return device.Allocation{Resource: resource, DeviceID: device.AdvertisedID(id), Owner: device.Owner{Namespace: namespace, Pod: pod, Container: container}}
	}
	tests := map[string]struct {
		response    []encodedField
		allocations []device.Allocation
		pods        []podName
	}{
		"empty":                  {},
		"empty pod":              {response: []encodedField{message(1)}, pods: []podName{{}}},
		"pod without containers": {response: []encodedField{message(1, text(1, "p"), text(2, "n"))}, pods: []podName{{"n", "p"}}},
		"as marshalled": {
			response:    []encodedField{message(1, text(1, "p"), text(2, "n"), message(3, text(1, "c"), devices(text(1, "r"), text(2, "a"), text(2, "b"))))},
			allocations: []device.Allocation{row("n", "p", "c", "r", "a"), row("n", "p", "c", "r", "b")},
			pods:        []podName{{"n", "p"}},
		},
		"names after containers": {
			response:    []encodedField{message(1, message(3, devices(text(2, "a"), text(1, "r")), text(1, "c")), text(2, "n"), text(1, "p"))},
			allocations: []device.Allocation{row("n", "p", "c", "r", "a")},
			pods:        []podName{{"n", "p"}},
		},
		"repeated names": {
			response: []encodedField{message(1, text(1, "x"), text(2, "x"),
				message(3, text(1, "x"), devices(text(1, "x"), text(2, "a"), text(1, "r")), text(1, "c"), devices(text(1, "s"), text(2, "b"))),
				text(1, "p"), text(2, "n"))},
			allocations: []device.Allocation{row("n", "p", "c", "r", "a"), row("n", "p", "c", "s", "b")},
			pods:        []podName{{"n", "p"}},
		},
		"two containers": {
			response:    []encodedField{message(1, message(3, text(1, "c"), devices(text(2, "a"))), text(1, "p"), message(3, text(1, "d"), devices(text(2, "b"))))},
			allocations: []device.Allocation{row("", "p", "c", "", "a"), row("", "p", "d", "", "b")},
			pods:        []podName{{"", "p"}},
		},
		"fields of a later version": {
			response: []encodedField{varint(9, 1), text(8, "x"), message(1, varint(1, 7), text(99, "x"), text(1, "p"), varint(4, 3),
				message(3, text(1, "c"), varint(3, 5), devices(text(1, "r"), text(2, "a"), message(3, message(1, varint(1, 1))), varint(2, 6))))},
			allocations: []device.Allocation{row("", "p", "c", "r", "a")},
			pods:        []podName{{"", "p"}},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			b := slices.Concat(test.response...)
			a := newListResponse()
			if err := a.Read(b); err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(a.allocations, test.allocations) || !slices.Equal(a.pods, test.pods) {
				t.Errorf("allocations and pods: got\n%v, %v, want:\n%v, %v", a.allocations, a.pods, test.allocations, test.pods)
			}
			wantDecoded(t, &a, b)
		})
	}
}

func TestDecodeRejectsInvalid(t *testing.T) {
	for name, b := range map[string][]byte{
		"truncated message":       message(1, text(1, "pod"))[:4],
		"truncated pod":           message(1, text(1, "pod")[:3]),
		"truncated container":     message(1, message(3, text(1, "name")[:3])),
		"truncated devices":       message(1, message(3, message(2, text(2, "id")[:3]))),
		"number of 11 bytes":      {0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff},
		"field zero":              {0x00, 0x00},
		"group end without start": {0x0c},
		"length beyond the end":   {0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f},
	} {
		if a := newListResponse(); a.Read(b) == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestDecodeReplacesInvalidUTF8(t *testing.T) {
	a := newListResponse()
	if err := a.Read(message(1, text(1, "p\xff"), message(3, message(2, text(2, "a\xffb"))))); err != nil {
		t.Fatal(err)
	}
	if a.allocations[0].DeviceID != "a\uFFFDb" || a.allocations[0].Owner.Pod != "p\uFFFD" {
		t.Errorf("allocations: %q", a.allocations)
	}
}

// TestDecodeResets decodes several responses into the same memory.
func TestDecodeResets(t *testing.T) {
	a := newListResponse()
	for range 2 {
		if err := a.Read(message(1, text(1, "p"), message(3, message(2, text(2, "a"))))); err != nil {
			t.Fatal(err)
		}
		if len(a.allocations) != 1 || len(a.pods) != 1 {
			t.Fatalf("allocations: %v, pods: %v", a.allocations, a.pods)
		}
	}
	if a.Read([]byte{0}) == nil || a.Read(nil) != nil || len(a.allocations) > 0 || len(a.pods) > 0 {
		t.Errorf("empty response: got allocations %v, pods %v", a.allocations, a.pods)
	}
}

// decodeReference decodes a List with protobuf.
func decodeReference(b []byte) (allocations []device.Allocation, pods []podName, r device.NodeResources, err error) {
	var response api.ListPodResourcesResponse
	if err := proto.Unmarshal(b, &response); err != nil {
		return nil, nil, r, err
	}
	devices := map[device.Owner][]*api.ContainerDevices{}
	for _, p := range response.PodResources {
		pods = append(pods, podName{p.Namespace, p.Name})
		whole := device.Owner{Namespace: p.Namespace, Pod: p.Name}
		r.Allocated.CPUs = append(r.Allocated.CPUs, cpusOf(whole, p.CpuIds)...)
		r.Allocated.Memory = append(r.Allocated.Memory, memoryOf(whole, p.Memory)...)
		for _, c := range p.Containers {
			owner := device.Owner{Namespace: p.Namespace, Pod: p.Name, Container: c.Name}
			for _, d := range c.Devices {
				for _, id := range d.DeviceIds {
					allocations = append(allocations, device.Allocation{Resource: d.ResourceName, DeviceID: device.AdvertisedID(id), Owner: owner})
				}
			}
			devices[owner] = append(devices[owner], c.Devices...)
			r.Allocated.CPUs = append(r.Allocated.CPUs, cpusOf(owner, c.CpuIds)...)
			r.Allocated.Memory = append(r.Allocated.Memory, memoryOf(owner, c.Memory)...)
			r.Allocated.Claims = append(r.Allocated.Claims, claimsOf(owner, c.DynamicResources)...)
		}
	}
	for owner, list := range devices {
		for _, d := range devicesOf(list) {
			d.Owner = owner
			r.Allocated.Devices = append(r.Allocated.Devices, d)
		}
	}
	r.Allocated.CPUs, r.Allocated.Memory, r.Allocated.Claims = cpusOnce(r.Allocated.CPUs), memoryOnce(r.Allocated.Memory), claimsOnce(r.Allocated.Claims)
	slices.SortFunc(r.Allocated.Devices, device.ResourceDevice.Compare)
	slices.SortFunc(r.Allocated.CPUs, device.ExclusiveCPUs.Compare)
	slices.SortFunc(r.Allocated.Memory, device.ReservedMemory.Compare)
	slices.SortFunc(r.Allocated.Claims, device.Claim.Compare)
	return allocations, pods, r, nil
}

func cpusOnce(rows []device.ExclusiveCPUs) []device.ExclusiveCPUs {
	return rowsOnce(rows, func(c device.ExclusiveCPUs) string { return fmt.Sprintf("%q", c.Owner) })
}

func memoryOnce(rows []device.ReservedMemory) []device.ReservedMemory {
	return rowsOnce(rows, func(m device.ReservedMemory) string { return fmt.Sprintf("%q %q %v", m.Owner, m.Type, m.NUMANodes) })
}

func claimsOnce(rows []device.Claim) []device.Claim {
	return rowsOnce(rows, func(c device.Claim) string {
		c.CDI = nil
		return fmt.Sprintf("%q", c)
	})
}

// rowsOnce returns the least row of each key.
func rowsOnce[T interface{ Compare(T) int }](rows []T, key func(T) string) (once []T) {
	least := map[string]T{}
	for _, row := range rows {
		if before, twice := least[key(row)]; !twice || row.Compare(before) < 0 {
			least[key(row)] = row
		}
	}
	return slices.AppendSeq(once, maps.Values(least))
}

// devicesOf returns each device of a list with all NUMA nodes.
func devicesOf(list []*api.ContainerDevices) (devices []device.ResourceDevice) {
	nodes := map[[2]string][]int{}
	for _, d := range list {
		for _, id := range d.DeviceIds {
			of := [2]string{d.ResourceName, id}
			nodes[of] = append(nodes[of], nodesOf(d.Topology)...)
		}
	}
	for of, on := range nodes {
		slices.Sort(on)
		devices = append(devices, device.ResourceDevice{Resource: of[0], ID: of[1], NUMANodes: slices.Compact(on)})
	}
	return devices
}

func nodesOf(t *api.TopologyInfo) (nodes []int) {
	for _, n := range t.GetNodes() {
		nodes = append(nodes, int(n.ID))
	}
	slices.Sort(nodes)
	return slices.Compact(nodes)
}

func cpusOf(o device.Owner, ids []int64) []device.ExclusiveCPUs {
	if len(ids) == 0 {
		return nil
	}
	ids = slices.Clone(ids)
	slices.Sort(ids)
	return []device.ExclusiveCPUs{{Owner: o, CPUs: slices.Compact(ids)}}
}

func memoryOf(o device.Owner, list []*api.ContainerMemory) (rows []device.ReservedMemory) {
	for _, m := range list {
		rows = append(rows, device.ReservedMemory{Owner: o, Type: m.MemoryType, Bytes: m.Size, NUMANodes: nodesOf(m.Topology)})
	}
	return rows
}

func claimsOf(o device.Owner, list []*api.DynamicResource) (claims []device.Claim) {
	for _, d := range list {
		driver, before := "", []string(nil) // of the previous row
		for _, r := range d.ClaimResources {
			c := device.Claim{
				Owner: o, ClaimNamespace: d.ClaimNamespace, ClaimName: d.ClaimName,
				Driver: r.DriverName, Pool: r.PoolName, Device: r.DeviceName, ShareID: r.GetShareId(),
			}
			for _, name := range r.CdiDevices {
				c.CDI = append(c.CDI, name.Name)
			}
			all, n := c.CDI, len(before)
			if driver == r.DriverName && n <= len(all) && slices.Equal(all[:n], before) {
				c.CDI = all[n:]
			}
			driver, before = r.DriverName, all
			claims = append(claims, c)
		}
	}
	return claims
}

// wantDecoded compares the decoder with the reference, for messages that the reference accepts.
func wantDecoded(t testing.TB, a *rawListResponse, b []byte) {
	t.Helper()
	allocations, pods, want, err := decodeReference(b)
	if err != nil {
		return
	}
	if err := a.Read(b); err != nil {
		t.Fatalf("Read: got error %v, but protobuf accepts the message", err)
	}
	if !slices.Equal(a.allocations, allocations) || !slices.Equal(a.pods, pods) {
		t.Fatalf("allocations and pods:\n%q, %q; protobuf has:\n%q, %q", a.allocations, a.pods, allocations, pods)
	}
	a.resources.normalize()
	wantRows(t, device.NodeResources{Allocated: a.resources.ResourceSet}, want)
}

// wantRows compares resources. Nil and empty slices are equal.
func wantRows(t testing.TB, got, want device.NodeResources) {
	t.Helper()
	if got.AllocatableKnown != want.AllocatableKnown || !sameRows(got.Allocatable.CPUs, want.Allocatable.CPUs) ||
		!sameRows(got.Allocatable.Devices, want.Allocatable.Devices) || !sameRows(got.Allocatable.Memory, want.Allocatable.Memory) || !sameRows(got.Allocated.Devices, want.Allocated.Devices) ||
		!sameRows(got.Allocated.CPUs, want.Allocated.CPUs) || !sameRows(got.Allocated.Memory, want.Allocated.Memory) || !sameRows(got.Allocated.Claims, want.Allocated.Claims) {
		t.Fatalf("resources: got\n%+v\nwant\n%+v", got, want)
	}
}

// messageShape has the known fields of a message.
type messageShape struct {
	texts, numbers []protowire.Number
	messages       map[protowire.Number]*messageShape
}

var (
	topologyShape = &messageShape{messages: map[protowire.Number]*messageShape{1: {numbers: []protowire.Number{1}}}}
	devicesShape  = &messageShape{texts: []protowire.Number{1, 2, 2}, messages: map[protowire.Number]*messageShape{3: topologyShape}}
	memoryShape   = &messageShape{texts: []protowire.Number{1}, numbers: []protowire.Number{2}, messages: map[protowire.Number]*messageShape{3: topologyShape}}
	claimShape    = &messageShape{texts: []protowire.Number{2, 3}, messages: map[protowire.Number]*messageShape{4: {
		texts: []protowire.Number{2, 3, 4, 5}, messages: map[protowire.Number]*messageShape{1: {texts: []protowire.Number{1}}},
	}}}
	listShape = &messageShape{messages: map[protowire.Number]*messageShape{1: {
		texts: []protowire.Number{1, 2}, numbers: []protowire.Number{4}, messages: map[protowire.Number]*messageShape{
			3: {texts: []protowire.Number{1}, numbers: []protowire.Number{3}, messages: map[protowire.Number]*messageShape{2: devicesShape, 4: memoryShape, 5: claimShape}},
			5: memoryShape,
		},
	}}}
	allocatableShape = &messageShape{numbers: []protowire.Number{2}, messages: map[protowire.Number]*messageShape{1: devicesShape, 3: memoryShape}}
)

// randomMessage returns a message with fields in random order, some repeated. Most fields have the right wire type.
func randomMessage(chance *rand.Rand, s *messageShape) []byte {
	var fields []encodedField
	for range chance.IntN(6) {
		switch number, odd := protowire.Number(1+chance.IntN(6)), chance.IntN(40); {
		case odd == 0:
			fields = append(fields, varint(number, chance.Uint64()))
		case odd == 1:
			fields = append(fields, text(number, "a"))
		case s.messages[number] != nil:
			fields = append(fields, message(number, randomMessage(chance, s.messages[number])))
		case slices.Contains(s.numbers, number) && chance.IntN(2) == 0: // packed
			fields = append(fields, message(number, protowire.AppendVarint(protowire.AppendVarint(nil, chance.Uint64N(5)), 300)))
		case slices.Contains(s.numbers, number):
			fields = append(fields, varint(number, chance.Uint64N(5)))
		case slices.Contains(s.texts, number):
			fields = append(fields, text(number, string(rune('a'+chance.IntN(5)))))
		}
	}
	return slices.Concat(fields...)
}

func TestDecodeAgainstProtobuf(t *testing.T) {
	chance := rand.New(rand.NewPCG(1, 2))
	a := newListResponse()
	accepted, rows := 0, [4]int{}
	for range 50000 {
		b := randomMessage(chance, listShape)
		wantDecoded(t, &a, b)
		if _, _, r, err := decodeReference(b); err == nil {
			accepted++
			for i, n := range []int{len(r.Allocated.Devices), len(r.Allocated.CPUs), len(r.Allocated.Memory), len(r.Allocated.Claims)} {
				rows[i] += n
			}
		}
	}
	if accepted < 10000 || slices.Min(rows[:]) < 1000 {
		t.Errorf("got %d of 50,000 messages accepted, with %d rows", accepted, rows)
	}
}

// wantAllocatableDecoded compares the decoder with protobuf for a response of GetAllocatableResources.
func wantAllocatableDecoded(t testing.TB, a *rawAllocatableResponse, b []byte) (rows int) {
	t.Helper()
	var response api.AllocatableResourcesResponse
	if err := proto.Unmarshal(b, &response); err != nil {
		return 0
	}
	if err := a.Read(b); err != nil {
		t.Fatalf("Read: got error %v, but protobuf accepts the message", err)
	}
	l := resourceTracker{allocatableKnown: true}
	replaceRows(&l.allocatable, &a.resources)
	want := device.NodeResources{AllocatableKnown: true, Allocatable: device.ResourceSet{Devices: devicesOf(response.Devices)}}
	slices.SortFunc(want.Allocatable.Devices, device.ResourceDevice.Compare)
	want.Allocatable.CPUs = cpusOf(device.Owner{}, response.CpuIds)
	want.Allocatable.Memory = memoryOnce(memoryOf(device.Owner{}, response.Memory))
	slices.SortFunc(want.Allocatable.Memory, device.ReservedMemory.Compare)
	wantRows(t, l.snapshot(nil), want)
	return len(want.Allocatable.Devices) + len(want.Allocatable.CPUs) + len(want.Allocatable.Memory)
}

func TestDecodeAllocatableAgainstProtobuf(t *testing.T) {
	chance := rand.New(rand.NewPCG(3, 4))
	a := rawAllocatableResponse{newResourceRows(maxAllocatableIDs)}
	rows := 0
	for range 20000 {
		rows += wantAllocatableDecoded(t, &a, randomMessage(chance, allocatableShape))
	}
	if rows < 10000 {
		t.Errorf("got %d rows, want at least 10,000", rows)
	}
}

func FuzzDecode(f *testing.F) {
	b, err := proto.Marshal(nodeResponse(3, 2))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte(message(1, message(3, message(2, text(2, "a"), text(1, "r")), text(1, "c")), text(2, "n"), text(1, "p"), text(1, "q"))))
	f.Add([]byte{0x0b, 0x0c}) // an empty group
	f.Fuzz(func(t *testing.T, b []byte) {
		a := newListResponse()
		err := wire.Codec{}.Unmarshal(mem.BufferSlice{mem.SliceBuffer(b)}, &a)
		if err == nil {
			for _, h := range a.allocations {
				h.DeviceID.Device()
			}
		}
		wantDecoded(t, &a, b)
		// GetAllocatableResources has the same messages in different fields.
		allocatable := rawAllocatableResponse{newResourceRows(maxAllocatableIDs)}
		wantAllocatableDecoded(t, &allocatable, b)
	})
}

// nodeResponse returns a List of pods with two containers. Some pods have a device, CPUs, memory and a claim.
func nodeResponse(pods, devices int) *api.ListPodResourcesResponse {
	response := &api.ListPodResourcesResponse{}
	for i := range pods {
		p := newPodWith(fmt.Sprintf("some-deployment-6d4cf56db6-x%04d", i),
			newContainer("main"), newContainer("istio-proxy"))
		if i < devices {
			p.Containers[0] = newContainer("main", fmt.Sprintf("GPU-8f4b1c52-0000-0000-0000-%012d", i))
			addResources(p.Containers[0], i)
		}
		response.PodResources = append(response.PodResources, p)
	}
	return response
}

// addResources adds CPUs, memory, topology and a claim to a container with devices.
func addResources(c *api.ContainerResources, i int) {
	on := &api.TopologyInfo{Nodes: []*api.NUMANode{{ID: int64(i % 2)}}}
	for _, d := range c.Devices {
		d.Topology = on
	}
	for n := range 4 {
		c.CpuIds = append(c.CpuIds, int64(4*i+3-n))
	}
	c.Memory = []*api.ContainerMemory{{MemoryType: "memory", Size: 8 << 30, Topology: on}, {MemoryType: "hugepages-2Mi", Size: 1 << 30, Topology: on}}
	name := fmt.Sprintf("gpu-%d", i)
	c.DynamicResources = []*api.DynamicResource{{ClaimName: fmt.Sprintf("claim-%d", i), ClaimNamespace: "team", ClaimResources: []*api.ClaimResource{{
		CdiDevices: []*api.CDIDevice{{Name: "k8s.gpu.nvidia.com/claim=dab5ab50-d59a-42a6-af16-cfd4628c0f7a-" + name}},
		DriverName: "gpu.nvidia.com", PoolName: "node-a", DeviceName: name,
	}}}}
}
