package podresources

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/podgauge/podgauge/device"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	api "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// field is one of a message, as it lies on the wire.
type field []byte

func text(number protowire.Number, value string) field { return field(message(number, field(value))) }

func message(number protowire.Number, fields ...field) field {
	return protowire.AppendBytes(protowire.AppendTag(nil, number, protowire.BytesType), slices.Concat(fields...))
}

func varint(number protowire.Number, value uint64) field {
	return protowire.AppendVarint(protowire.AppendTag(nil, number, protowire.VarintType), value)
}

// TestDecodeInAnyOrder has what a marshaller of today would not write.
func TestDecodeInAnyOrder(t *testing.T) {
	devices := func(fields ...field) field { return message(2, fields...) }
	row := func(namespace, pod, container, resource, id string) device.Holding {
		return device.Holding{Resource: resource, Offered: device.OfferedID(id), Owner: device.Owner{Namespace: namespace, Pod: pod, Container: container}}
	}
	tests := map[string]struct {
		answer []field
		held   []device.Holding
		pods   []podName
	}{
		"nothing":            {},
		"an empty pod":       {answer: []field{message(1)}, pods: []podName{{}}},
		"a pod without more": {answer: []field{message(1, text(1, "p"), text(2, "n"))}, pods: []podName{{"n", "p"}}},
		"as marshalled": {
			answer: []field{message(1, text(1, "p"), text(2, "n"), message(3, text(1, "c"), devices(text(1, "r"), text(2, "a"), text(2, "b"))))},
			held:   []device.Holding{row("n", "p", "c", "r", "a"), row("n", "p", "c", "r", "b")},
			pods:   []podName{{"n", "p"}},
		},
		"names last": {
			answer: []field{message(1, message(3, devices(text(2, "a"), text(1, "r")), text(1, "c")), text(2, "n"), text(1, "p"))},
			held:   []device.Holding{row("n", "p", "c", "r", "a")},
			pods:   []podName{{"n", "p"}},
		},
		"names again: the last one counts": {
			answer: []field{message(1, text(1, "x"), text(2, "x"),
				message(3, text(1, "x"), devices(text(1, "x"), text(2, "a"), text(1, "r")), text(1, "c"), devices(text(1, "s"), text(2, "b"))),
				text(1, "p"), text(2, "n"))},
			held: []device.Holding{row("n", "p", "c", "r", "a"), row("n", "p", "c", "s", "b")},
			pods: []podName{{"n", "p"}},
		},
		"two containers keep their own": {
			answer: []field{message(1, message(3, text(1, "c"), devices(text(2, "a"))), text(1, "p"), message(3, text(1, "d"), devices(text(2, "b"))))},
			held:   []device.Holding{row("", "p", "c", "", "a"), row("", "p", "d", "", "b")},
			pods:   []podName{{"", "p"}},
		},
		"fields of a later version": {
			answer: []field{varint(9, 1), text(8, "x"), message(1, varint(1, 7), text(99, "x"), text(1, "p"), varint(4, 3),
				message(3, text(1, "c"), varint(3, 5), devices(text(1, "r"), text(2, "a"), message(3, message(1, varint(1, 1))), varint(2, 6))))},
			held: []device.Holding{row("", "p", "c", "r", "a")},
			pods: []podName{{"", "p"}},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			b := slices.Concat(test.answer...)
			a := newAnswer()
			if err := a.decode(b); err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(a.held, test.held) || !slices.Equal(a.pods, test.pods) {
				t.Errorf("held are\n%v of %v, want\n%v of %v", a.held, a.pods, test.held, test.pods)
			}
			agrees(t, &a, b)
		})
	}
}

func TestDecodeRefuses(t *testing.T) {
	for name, b := range map[string][]byte{
		"a message cut short":     message(1, text(1, "pod"))[:4],
		"a pod cut short":         message(1, text(1, "pod")[:3]),
		"a container cut short":   message(1, message(3, text(1, "name")[:3])),
		"devices cut short":       message(1, message(3, message(2, text(2, "id")[:3]))),
		"an endless number":       {0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff},
		"field zero":              {0x00, 0x00},
		"the end of no group":     {0x0c},
		"a length beyond the end": {0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f},
	} {
		if a := newAnswer(); a.decode(b) == nil {
			t.Errorf("%s is decoded", name)
		}
	}
}

func TestDecodeReplacesWhatIsNoText(t *testing.T) {
	a := newAnswer()
	if err := a.decode(message(1, text(1, "p\xff"), message(3, message(2, text(2, "a\xffb"))))); err != nil {
		t.Fatal(err)
	}
	if a.held[0].Offered != "a\uFFFDb" || a.held[0].Owner.Pod != "p\uFFFD" {
		t.Errorf("held are %q", a.held)
	}
}

// What was read from the answer before does not show in the next, nor does the
// interner grow for ever.
func TestDecodeBeginsAnew(t *testing.T) {
	a := newAnswer()
	for i := range 3 {
		for j := range mostInternedNames {
			if err := a.decode(message(1, text(1, fmt.Sprintf("%d-%d", i, j)), message(3, message(2, text(2, "a"))))); err != nil {
				t.Fatal(err)
			}
		}
		if len(a.held) != 1 || len(a.pods) != 1 {
			t.Fatalf("held are %v of %v", a.held, a.pods)
		}
		if n := len(a.names); n > mostInternedNames+10 {
			t.Errorf("%d names are kept", n)
		}
	}
	if a.decode([]byte{0}) == nil || a.decode(nil) != nil || len(a.held) > 0 || len(a.pods) > 0 {
		t.Errorf("an empty answer holds %v of %v", a.held, a.pods)
	}
}

// reference is the answer as protobuf reads it.
func reference(b []byte) (held []device.Holding, pods []podName, err error) {
	var answer api.ListPodResourcesResponse
	if err := proto.Unmarshal(b, &answer); err != nil {
		return nil, nil, err
	}
	for _, p := range answer.PodResources {
		pods = append(pods, podName{p.Namespace, p.Name})
		for _, c := range p.Containers {
			for _, d := range c.Devices {
				for _, id := range d.DeviceIds {
					held = append(held, device.Holding{
						Resource: d.ResourceName, Offered: device.OfferedID(id),
						Owner: device.Owner{Namespace: p.Namespace, Pod: p.Name, Container: c.Name},
					})
				}
			}
		}
	}
	return held, pods, nil
}

// agrees holds what was decoded against the reference, where that accepts it.
func agrees(t testing.TB, a *rawAnswer, b []byte) {
	t.Helper()
	held, pods, err := reference(b)
	if err != nil {
		return
	}
	if err := a.decode(b); err != nil {
		t.Fatalf("protobuf accepts what is refused: %v", err)
	}
	if !slices.Equal(a.held, held) || !slices.Equal(a.pods, pods) {
		t.Fatalf("held are\n%q of %q, protobuf has\n%q of %q", a.held, a.pods, held, pods)
	}
}

// random is a message with fields in any order, some of them twice. Most have the
// kind that they should have at that depth.
func random(chance *rand.Rand, depth int) []byte {
	messages := []protowire.Number{listPods, podContainers, containerDevices, 0}[depth]
	var fields []field
	for range chance.IntN(6) {
		number := protowire.Number(1 + chance.IntN(3))
		switch odd := chance.IntN(30); {
		case odd == 0:
			fields = append(fields, varint(number, chance.Uint64()))
		case (number == messages) != (odd == 1):
			fields = append(fields, message(number, random(chance, min(depth+1, 3))))
		default:
			fields = append(fields, text(number, string(rune('a'+chance.IntN(5)))))
		}
	}
	return slices.Concat(fields...)
}

func TestDecodeAgainstProtobuf(t *testing.T) {
	chance := rand.New(rand.NewPCG(1, 2))
	a := newAnswer()
	accepted, rows := 0, 0
	for range 50000 {
		b := random(chance, 0)
		agrees(t, &a, b)
		if held, _, err := reference(b); err == nil {
			accepted, rows = accepted+1, rows+len(held)
		}
	}
	if accepted < 10000 || rows < 2000 {
		t.Errorf("of 50,000 messages %d were accepted, with %d rows", accepted, rows)
	}
}

func FuzzDecode(f *testing.F) {
	b, err := proto.Marshal(node(3, 2))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte(message(1, message(3, message(2, text(2, "a"), text(1, "r")), text(1, "c")), text(2, "n"), text(1, "p"), text(1, "q"))))
	f.Add([]byte{0x0b, 0x0c}) // an empty group
	f.Fuzz(func(t *testing.T, b []byte) {
		a := newAnswer()
		err := rawCodec{}.Unmarshal(mem.BufferSlice{mem.SliceBuffer(b)}, &a)
		if err == nil {
			for _, h := range a.held {
				h.Offered.Device()
			}
		}
		agrees(t, &a, b)
	})
}

// node is a List of that many pods of two containers, of which some hold a device.
func node(pods, devices int) *api.ListPodResourcesResponse {
	answer := &api.ListPodResourcesResponse{}
	for i := range pods {
		p := podOf(fmt.Sprintf("some-deployment-6d4cf56db6-x%04d", i),
			container("main"), container("istio-proxy"))
		if i < devices {
			p.Containers[0] = container("main", fmt.Sprintf("GPU-8f4b1c52-0000-0000-0000-%012d", i))
		}
		for _, c := range p.Containers {
			c.CpuIds = []int64{1, 2, 3, 4}
		}
		answer.PodResources = append(answer.PodResources, p)
	}
	return answer
}
