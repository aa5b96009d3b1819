package app

import (
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/sim"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// What no kubelet should say, and what stands for it in a label.
const (
	hostile  = "a\"b\\c\nd\xffe{}=,#\tf"
	harmless = "a\"b\\c\nd\uFFFDe{}=,#\tf"
)

// wire writes protobuf as nothing would that checks its strings.
type wire []byte

func (w wire) text(field protowire.Number, s string) wire {
	return protowire.AppendString(protowire.AppendTag(w, field, protowire.BytesType), s)
}

func (w wire) message(field protowire.Number, m wire) wire { return w.text(field, string(m)) }

// rawBytes is a codec that passes bytes on.
type rawBytes struct{}

func (rawBytes) Name() string { return "proto" }

func (rawBytes) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.(wire))}, nil
}

func (rawBytes) Unmarshal(mem.BufferSlice, any) error { return nil }

// serveRaw answers methods, by their names without the service's, with these bytes.
func serveRaw(t *testing.T, socket string, answers map[string][]wire) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(socket), 0o755); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	long := time.Now().Add(-time.Hour) // a kubelet that has been up for long is trusted at once
	if err := os.Chtimes(socket, long, long); err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.WaitForHandlers(true), grpc.ForceServerCodecV2(rawBytes{}),
		grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
			method, _ := grpc.MethodFromServerStream(stream)
			if err := stream.RecvMsg(nil); err != nil {
				return err
			}
			name := method[strings.LastIndexByte(method, '/')+1:]
			for _, a := range answers[name] {
				if err := stream.SendMsg(a); err != nil {
					return err
				}
			}
			if strings.HasPrefix(name, "Watch") {
				<-stream.Context().Done()
			}
			return nil
		}))
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
}

// TestHostileLabels has a kubelet say what no label of Prometheus' could have, wherever it
// says what becomes one: the scrape survives, and so does what is told.
func TestHostileLabels(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	m := machineWith(sim.T4)
	held := wire{}.text(1, resource).text(2, string(m.IDs()[0]))
	foreign := wire{}.text(1, "example.com/"+hostile).text(2, hostile)
	claim := wire{}.text(2, hostile).text(3, hostile).message(4, wire{}.text(2, hostile).text(3, hostile).text(4, hostile))
	container := wire{}.text(1, hostile).message(2, held).message(2, foreign).message(5, claim)
	serveRaw(t, filepath.Join(dir, "pod-resources", "kubelet.sock"), map[string][]wire{
		"List":                    {wire{}.message(1, wire{}.text(1, hostile).text(2, hostile).message(3, container))},
		"GetAllocatableResources": {wire{}.message(1, foreign)},
	})
	label := wire{}.text(1, "team").text(2, hostile)
	metadata := wire{}.text(1, hostile).text(3, hostile).text(5, hostile).message(11, label)
	added := wire(protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), 1)).message(2, wire{}.message(1, metadata))
	synced := wire(protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), 4))
	serveRaw(t, filepath.Join(dir, "pods-api", "pods-api.sock"), map[string][]wire{"WatchPods": {added, synced}})

	w := newWorldOf(t, setting{machine: m, without: true, dir: dir}, "--device-plugin=false", "--metrics.pod-uid", "--metrics.labels-allowlist=team", "--metrics.dcgm")
	w.until("nvidia_gpu_allocation_info{", " 1")
	w.until("podgauge_resource_device_info{", " 1")
	w.until("podgauge_claim_info{", " 1")
	escaped := strings.NewReplacer("\\", `\\`, "\n", `\n`, `"`, `\"`).Replace(harmless)
	text := w.until(`nvidia_gpu_allocation_info{container="`+escaped+`",device_id="`+string(m.IDs()[0])+`",label_team="`+escaped+`"`, " 1")
	lint(t, "hostile", text)
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	for family, labels := range map[string][]string{
		"nvidia_gpu_energy_joules_total":                    {"namespace", "pod", "container"},
		"nvidia_gpu_allocation_info":                        {"namespace", "pod", "container", "pod_uid", "label_team"},
		"podgauge_resource_allocation_info":                 {"namespace", "pod", "container", "device_id"},
		"podgauge_resource_device_info":                     {"device_id"},
		"podgauge_claim_info":                               {"namespace", "pod", "container", "claim_namespace", "claim", "driver", "pool", "device"},
		"DCGM_FI_DEV_POWER_USAGE":                           {"namespace", "pod", "container"},
		"nvidia_gpu_allocation_last_seen_timestamp_seconds": {"namespace", "pod", "container"},
	} {
		if len(families[family].GetMetric()) == 0 {
			t.Errorf("there is no %s", family)
			continue
		}
		for _, l := range families[family].GetMetric()[0].GetLabel() {
			if slices.Contains(labels, l.GetName()) && l.GetValue() != harmless {
				t.Errorf("%s has %s=%q, want %q", family, l.GetName(), l.GetValue(), harmless)
			}
		}
	}
	w.sameInOpenMetrics(text)
}

// sameInOpenMetrics has the same series in the other format, gauges' by name and labels:
// test/openmetrics has Prometheus' own parser read that.
func (w *world) sameInOpenMetrics(text string) {
	w.t.Helper()
	open := w.get("application/openmetrics-text;version=1.0.0")
	for line := range strings.Lines(text) {
		series, _, _ := strings.Cut(line, "} ")
		if strings.HasPrefix(line, "nvidia_") && !strings.Contains(open, "\n"+series+"} ") {
			w.t.Errorf("OpenMetrics has no %s}", series)
		}
	}
}
