package pods

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	api "k8s.io/kubelet/pkg/apis/pods/v1alpha1"
)

func newEvent(t testing.TB, labels ...string) *watchEvent {
	t.Helper()
	allowed, err := newAllowlist(labels)
	if err != nil {
		t.Fatal(err)
	}
	return &watchEvent{allowlist: allowed}
}

// Read decodes a marshaled event.
func (e *watchEvent) Read(b []byte) error {
	var event api.WatchPodsEvent
	if err := proto.Unmarshal(b, &event); err != nil {
		return err
	}
	return e.readEvent(&event)
}

// eventBytes returns a marshaled event.
func eventBytes(t testing.TB, kind api.EventType, pod []byte) []byte {
	t.Helper()
	b, err := proto.Marshal(&api.WatchPodsEvent{Type: kind, Pod: pod})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestDecodeFixtures decodes protobuf and JSON of the same objects, both marshaled by Kubernetes.
func TestDecodeFixtures(t *testing.T) {
	for _, prefix := range []string{"", "app.kubernetes.io/", "nothing"} {
		e := newEvent(t, prefix+"*") // reused: no field of the previous pod may remain
		for _, name := range fixtures(t) {
			pod, same := fixture(t, name)
			if err := e.Read(eventBytes(t, api.EventType_MODIFIED, pod)); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if want := same.pod(prefix); !e.pod.equal(&want) || e.kind != api.EventType_MODIFIED {
				t.Errorf("%s: got\n%+v, want\n%+v", name, e.pod, want)
			}
			if err := e.readJSON(api.EventType_ADDED, fixtureJSON(t, name)); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if want := same.pod(prefix); !e.pod.equal(&want) || e.kind != api.EventType_ADDED {
				t.Errorf("%s: got of JSON\n%+v, want\n%+v", name, e.pod, want)
			}
		}
	}
}

// TestDecodeJSONLimits has objects larger than any of the API server.
func TestDecodeJSONLimits(t *testing.T) {
	e := newEvent(t, "*")
	labels, containers := map[string]string{}, slices.Repeat([]struct{}{{}}, maxContainers+1)
	for i := range 100 {
		labels[fmt.Sprintf("%03d", i)] = strings.Repeat("x", 1000)
	}
	object, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"name": "p", "namespace": "n", "uid": "u", "labels": labels},
		"status":   map[string]any{"containerStatuses": containers},
	})
	if err == nil {
		err = e.readJSON(api.EventType_ADDED, object)
	}
	if err != nil {
		t.Fatal(err)
	}
	p := e.pod
	if len(p.Labels) != maxLabels || len(p.Containers) != maxContainers || p.Labels[63].Name != "063" || len(p.Labels[0].Value) != maxNameBytes {
		t.Errorf("got %d labels to %v and %d containers, want maxLabels and maxContainers", len(p.Labels), p.Labels[len(p.Labels)-1], len(p.Containers))
	}
	for _, invalid := range []string{"", "null", "[]", `{"metadata":{"name":"p","uid":"u"}}`, `{"metadata":{"name":7,"namespace":"n","uid":"u"}}`} {
		if e.readJSON(api.EventType_ADDED, []byte(invalid)) == nil {
			t.Errorf("%q: got no error", invalid)
		}
	}
}

// TestFixtureContent checks that the JSON fixtures are not empty.
func TestFixtureContent(t *testing.T) {
	pods := map[string]Pod{}
	for _, name := range fixtures(t) {
		_, same := fixture(t, name)
		pods[name] = same.pod("")
	}
	training := pods["training"]
	if !slices.Contains(training.Labels, device.Label{Name: "team", Value: "team-a"}) || len(training.Containers) != 4 {
		t.Errorf("training: got %+v", training)
	}
	if c := training.Containers[3]; c.Name != "proxy" || c.LastState.ExitCode != 255 || c.Restarts != 1 || len(c.ID) != 64 {
		t.Errorf("sidecar: got %+v", c)
	}
	if c := pods["crashloop"].Containers[0]; c.State.Type != Waiting || c.LastState.Reason != "Error" || c.LastState.ExitCode != 1 || c.Restarts != 7 {
		t.Errorf("crashloop: got %+v", c)
	}
	if c := pods["oomkilled"].Containers[0]; c.State.Reason != "OOMKilled" || c.State.ExitCode != 137 || c.State.Finished.IsZero() {
		t.Errorf("oomkilled: got %+v", c)
	}
	if c := pods["signalled"].Containers[0]; c.State.ExitCode != -1 {
		t.Errorf("signalled: got %+v", c)
	}
	if p := pods["debugged"]; len(p.Containers) != 2 || len(p.Containers[0].ID) != 64 {
		t.Errorf("debugged: got %+v", p)
	}
	for name, want := range map[string][2]bool{ // Terminal, Ended
		"training": {}, "crashloop": {}, "starting": {}, "deleted": {}, "terminating": {}, "evicted": {true, false},
		"oomkilled": {true, true}, "completed": {true, true}, "rejected": {true, true}, "signalled": {true, true},
	} {
		if p := pods[name]; p.Terminal() != want[0] || p.Ended() != want[1] {
			t.Errorf("%s: got Terminal %t, Ended %t, want %v", name, p.Terminal(), p.Ended(), want)
		}
	}
}

func TestDecodeCopiesStrings(t *testing.T) {
	e := newEvent(t, "*")
	pod, same := fixture(t, "training")
	b := eventBytes(t, api.EventType_ADDED, pod)
	if err := e.Read(b); err != nil {
		t.Fatal(err)
	}
	kept := e.pod
	clear(b) // as the next message in the same buffer does
	if err := e.Read(eventBytes(t, api.EventType_ADDED, []byte(message(1, text(1, "x"), text(3, "y"), text(5, "z"))))); err != nil {
		t.Fatal(err)
	}
	if want := same.pod(""); !kept.equal(&want) {
		t.Errorf("kept pod: got %+v, want %+v", kept, want)
	}
}

// encodedFields is one or more marshaled fields of a message.
type encodedFields []byte

func text(number protowire.Number, value string) encodedFields {
	return message(number, encodedFields(value))
}

func message(number protowire.Number, fields ...encodedFields) encodedFields {
	return protowire.AppendBytes(protowire.AppendTag(nil, number, protowire.BytesType), slices.Concat(fields...))
}

func number(number protowire.Number, value uint64) encodedFields {
	return protowire.AppendVarint(protowire.AppendTag(nil, number, protowire.VarintType), value)
}

func identity(fields ...encodedFields) encodedFields {
	return message(1, append([]encodedFields{text(1, "p"), text(3, "n"), text(5, "u")}, fields...)...)
}

// TestDecodeInAnyOrder decodes valid messages that no current marshaler writes.
func TestDecodeInAnyOrder(t *testing.T) {
	long := strings.Repeat("x", 253) + "/" + strings.Repeat("y", 62)
	tests := map[string]struct {
		pod  []encodedFields
		want Pod
	}{
		"no status":                   {pod: []encodedFields{identity()}},
		"repeated names":              {pod: []encodedFields{message(1, text(5, "x"), text(1, "x")), identity()}},
		"status first":                {pod: []encodedFields{message(3, text(1, "Running")), identity()}, want: Pod{Phase: "Running"}},
		"status in parts":             {pod: []encodedFields{message(3, text(1, "Failed")), identity(), message(3, text(4, "Evicted"))}, want: Pod{Phase: "Failed", Reason: "Evicted"}},
		"unknown fields":              {pod: []encodedFields{number(99, 1), identity(number(88, 7), text(77, "x")), message(3, text(1, "Running"), number(66, 5))}, want: Pod{Phase: "Running"}},
		"fields of another wire type": {pod: []encodedFields{number(1, 1), identity(number(1, 7), text(7, "x")), message(3, number(1, 5))}},
		"repeated label":              {pod: []encodedFields{identity(label("b", "1"), label("a", "2"), label("b", "3"))}, want: Pod{Labels: []device.Label{{Name: "a", Value: "2"}, {Name: "b", Value: "3"}}}},
		"labels with a long common prefix": {
			pod:  []encodedFields{identity(label(long+"a", "1"), label(long+"b", "2"))},
			want: Pod{Labels: []device.Label{{Name: long + "a", Value: "1"}, {Name: long + "b", Value: "2"}}},
		},
		"value before key": {pod: []encodedFields{identity(message(11, text(2, "v"), text(1, "k")))}, want: Pod{Labels: []device.Label{{Name: "k", Value: "v"}}}},
		"invalid UTF-8":    {pod: []encodedFields{identity(label("k", "a\xffb"))}, want: Pod{Labels: []device.Label{{Name: "k", Value: "a?b"}}}},
		"before 1970":      {pod: []encodedFields{identity(message(8, number(1, ^uint64(0))))}, want: Pod{Created: time.Unix(-1, 0)}},
		"long reason":      {pod: []encodedFields{identity(), message(3, text(4, strings.Repeat("x", 1000)))}, want: Pod{Reason: strings.Repeat("x", maxNameBytes)}},
		"containers of all kinds": {
			pod:  []encodedFields{identity(), message(3, message(13, text(1, "e")), message(8, text(1, "b")), message(10, text(1, "i")), message(8, text(1, "a")))},
			want: Pod{Containers: []Container{{Name: "b"}, {Name: "a"}, {Name: "i"}, {Name: "e"}}},
		},
		"id without runtime": {pod: []encodedFields{identity(), message(3, message(8, text(8, "abc")))}, want: Pod{Containers: []Container{{ID: "abc"}}}},
		"two states": { // terminated is later
			pod:  []encodedFields{identity(), message(3, message(8, message(2, message(3, number(1, 7)), message(2))))},
			want: Pod{Containers: []Container{{State: ContainerState{Type: Terminated, ExitCode: 7}}}},
		},
		"long name of a label": {pod: []encodedFields{identity(label(strings.Repeat("x", maxNameBytes+1), "v"))}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			e := newEvent(t, "*")
			if err := e.Read(eventBytes(t, api.EventType_ADDED, slices.Concat(test.pod...))); err != nil {
				t.Fatal(err)
			}
			test.want.Name, test.want.Namespace, test.want.UID = "p", "n", "u"
			if !e.pod.equal(&test.want) {
				t.Errorf("got\n%+v, want\n%+v", e.pod, test.want)
			}
		})
	}
}

func label(name, value string) encodedFields { return message(11, text(1, name), text(2, value)) }

func TestDecodeErrors(t *testing.T) {
	for name, pod := range map[string][]byte{
		"no pod":                     nil,
		"no uid":                     message(1, text(1, "p"), text(3, "n")),
		"no name":                    message(1, text(3, "n"), text(5, "u")),
		"no namespace":               message(1, text(1, "p"), text(5, "u")),
		"long name":                  message(1, text(1, strings.Repeat("x", maxNameBytes+1)), text(3, "n"), text(5, "u")),
		"truncated pod":              identity()[:5],
		"truncated status":           slices.Concat(identity(), message(3, text(1, "Running")[:4])),
		"truncated container":        slices.Concat(identity(), message(3, message(8, text(1, "main")[:3]))),
		"truncated state":            slices.Concat(identity(), message(3, message(8, message(2, message(3, number(1, 300)[:2]))))),
		"truncated label":            identity(message(11, text(1, "abc")[:3])),
		"truncated time":             identity(message(8, number(1, 1<<40)[:3])),
		"field zero":                 {0x00, 0x00},
		"end of group without start": {0x0c},
		"length beyond the end":      {0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f},
	} {
		if e := newEvent(t, "*"); e.Read(eventBytes(t, api.EventType_ADDED, pod)) == nil {
			t.Errorf("%s: got no error", name)
		}
	}
	if e := newEvent(t); e.Read([]byte{0x08}) == nil {
		t.Error("truncated event: got no error")
	}
}

func TestDecodeLimitsLabelsAndContainers(t *testing.T) {
	e := newEvent(t, "*")
	containers := slices.Repeat([]encodedFields{message(8)}, maxContainers+1)
	var labels []encodedFields
	for i := range 100 {
		labels = append(labels, label(fmt.Sprint(i), "x"))
	}
	if err := e.Read(eventBytes(t, api.EventType_ADDED, slices.Concat(identity(labels...), message(3, containers...)))); err != nil {
		t.Fatal(err)
	}
	if len(e.pod.Labels) != maxLabels || len(e.pod.Containers) != maxContainers {
		t.Errorf("got %d labels and %d containers, want maxLabels and maxContainers", len(e.pod.Labels), len(e.pod.Containers))
	}
}

// TestDecodeLimitsStatus has more containers than are decoded, in two parts. Metadata, phase and first containers are kept.
func TestDecodeLimitsStatus(t *testing.T) {
	e := newEvent(t, "*")
	containers := slices.Concat(slices.Repeat([]encodedFields{message(8, text(1, "main"))}, 3*maxContainers)...)
	pod := slices.Concat(message(3, text(1, "Failed"), text(4, "Evicted"), containers), message(3, containers), identity(label("k", "v")))
	for _, test := range []struct {
		pod []byte
		cut bool
	}{{pod, true}, {identity(), false}} {
		if err := e.Read(eventBytes(t, api.EventType_ADDED, test.pod)); err != nil || e.cut != test.cut {
			t.Fatalf("got cut %t, error %v, want cut %t", e.cut, err, test.cut)
		}
		if p := e.pod; test.cut && (p.Phase != "Failed" || p.Reason != "Evicted" || len(p.Labels) != 1 || len(p.Containers) != maxContainers || p.Containers[0].Name != "main") {
			t.Errorf("got %d containers of %s %s, labels %v", len(p.Containers), p.Phase, p.Reason, p.Labels)
		}
	}
}

func TestAllowlist(t *testing.T) {
	a, err := newAllowlist([]string{"team", "app.kubernetes.io/*"})
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{
		"team": true, "teams": false, "tea": false, "": false, "app.kubernetes.io/": true, "app.kubernetes.io/name": true, "app.kubernetes.io": false, "x/team": false,
	} {
		if got := a.has(name); got != want {
			t.Errorf("%q: got %t, want %t", name, got, want)
		}
	}
	all, err := newAllowlist([]string{"*"})
	if err != nil || !all.has("") || !all.has("x") {
		t.Errorf("allowlist *: want all labels, error %v", err)
	}
	for _, invalid := range []string{"", "a*b", "**", "*a"} {
		_, err := New("socket", Options{Labels: []string{"team", invalid}})
		if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("%q", invalid)) {
			t.Errorf("label %q: got %v, want an error with the label", invalid, err)
		}
	}
}

// FuzzDecode checks that decoding is deterministic, agrees with protobuf, and returns pods within the limits.
func FuzzDecode(f *testing.F) {
	for _, name := range fixtures(f) {
		pod, _ := fixture(f, name)
		f.Add(eventBytes(f, api.EventType_ADDED, pod))
	}
	f.Add(eventBytes(f, api.EventType_INITIAL_SYNC_COMPLETE, nil))
	f.Add(eventBytes(f, api.EventType_DELETED, identity(label("a", "b"))))
	used := newEvent(f, "*")
	f.Fuzz(func(t *testing.T, b []byte) {
		var reference api.WatchPodsEvent
		fresh := newEvent(t, "*")
		errFresh, errUsed := fresh.Read(b), used.Read(b)
		if (errFresh == nil) != (errUsed == nil) {
			t.Fatalf("error of a new decoder: %v; of a used one: %v", errFresh, errUsed)
		}
		if errFresh != nil {
			return
		}
		if !fresh.pod.equal(&used.pod) || fresh.kind != used.kind {
			t.Fatalf("new decoder: %+v; used decoder: %+v", fresh.pod, used.pod)
		}
		if proto.Unmarshal(b, &reference) == nil && reference.Type != fresh.kind {
			t.Fatalf("kind: got %v, want %v as by protobuf", fresh.kind, reference.Type)
		}
		p := fresh.pod
		if fresh.hasPod() && (p.Name == "" || p.Namespace == "" || p.UID == "") {
			t.Fatalf("got a pod without a name: %+v", p)
		}
		if len(p.Labels) > maxLabels || len(p.Containers) > maxContainers || !slices.IsSortedFunc(p.Labels, func(a, b device.Label) int { return strings.Compare(a.Name, b.Name) }) {
			t.Fatalf("labels: got %v, want them sorted and limited", p.Labels)
		}
	})
}
