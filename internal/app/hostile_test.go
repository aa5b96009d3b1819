package app_test

import (
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/sim"
	"github.com/podgauge/podgauge/test/helpers/expect"
	"github.com/podgauge/podgauge/test/helpers/program"
	"github.com/podgauge/podgauge/test/helpers/require"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// Text that no kubelet should send, and its value in a label.
const (
	hostileText   = "a\"b\\c\nd\xffe{}=,#\tf"
	sanitizedText = "a\"b\\c\nd?e{}=,#\tf"
)

// protoBytes encodes protobuf without the check of strings.
type protoBytes []byte

func (w protoBytes) appendString(field protowire.Number, s string) protoBytes {
	return protowire.AppendString(protowire.AppendTag(w, field, protowire.BytesType), s)
}

func (w protoBytes) appendMessage(field protowire.Number, m protoBytes) protoBytes {
	return w.appendString(field, string(m))
}

// rawCodec is a codec that does not change bytes.
type rawCodec struct{}

func (rawCodec) Name() string { return "proto" }

func (rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.(protoBytes))}, nil
}

func (rawCodec) Unmarshal(mem.BufferSlice, any) error { return nil }

// serveRaw responds to methods, named without the service, with these bytes.
func serveRaw(t *testing.T, socket string, responses map[string][]protoBytes) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(socket), 0o755))
	listener, err := net.Listen("unix", socket)
	require.NoError(t, err)
	old := time.Now().Add(-time.Hour) // a kubelet with a long uptime is trusted at once
	require.NoError(t, os.Chtimes(socket, old, old))
	server := grpc.NewServer(grpc.WaitForHandlers(true), grpc.ForceServerCodecV2(rawCodec{}),
		grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
			method, _ := grpc.MethodFromServerStream(stream)
			if err := stream.RecvMsg(nil); err != nil {
				return err
			}
			name := method[strings.LastIndexByte(method, '/')+1:]
			for _, a := range responses[name] {
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
		expect.NoError(t, <-served)
	})
}

// TestHostileLabels sends invalid text in each kubelet field that becomes a label: the scrape succeeds and keeps the values.
func TestHostileLabels(t *testing.T) {
	t.Parallel()
	dir := program.ShortDir(t)
	m := newMachine(sim.T4)
	allocated := protoBytes{}.appendString(1, gpuResource).appendString(2, string(m.AllocatableIDs()[0]))
	foreign := protoBytes{}.appendString(1, "example.com/"+hostileText).appendString(2, hostileText)
	claim := protoBytes{}.appendString(2, hostileText).appendString(3, hostileText).appendMessage(4, protoBytes{}.appendString(2, hostileText).appendString(3, hostileText).appendString(4, hostileText))
	container := protoBytes{}.appendString(1, hostileText).appendMessage(2, allocated).appendMessage(2, foreign).appendMessage(5, claim)
	serveRaw(t, filepath.Join(dir, "pod-resources", "kubelet.sock"), map[string][]protoBytes{
		"List":                    {protoBytes{}.appendMessage(1, protoBytes{}.appendString(1, hostileText).appendString(2, hostileText).appendMessage(3, container))},
		"GetAllocatableResources": {protoBytes{}.appendMessage(1, foreign)},
	})
	label := protoBytes{}.appendString(1, "team").appendString(2, hostileText)
	metadata := protoBytes{}.appendString(1, hostileText).appendString(3, hostileText).appendString(5, hostileText).appendMessage(11, label)
	added := protoBytes(protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), 1)).appendMessage(2, protoBytes{}.appendMessage(1, metadata))
	synced := protoBytes(protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), 4))
	serveRaw(t, filepath.Join(dir, "pods-api", "pods-api.sock"), map[string][]protoBytes{"WatchPods": {added, synced}})

	w := newTestAppWith(t, testSetup{machine: m, noKubelet: true, dir: dir}, "--device-plugin=false", "--metrics.pod-uid", "--metrics.labels-allowlist=team", "--metrics.dcgm")
	w.waitLine("nvidia_gpu_allocation_info{", " 1")
	w.waitLine("podgauge_resource_device_info{", " 1")
	w.waitLine("podgauge_claim_info{", " 1")
	escaped := strings.NewReplacer("\\", `\\`, "\n", `\n`, `"`, `\"`).Replace(sanitizedText)
	text := w.waitLine(`nvidia_gpu_allocation_info{claim="",container="`+escaped+`",device_id="`+string(m.AllocatableIDs()[0])+`",label_team="`+escaped+`"`, " 1")
	lint(t, "hostile", text)
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(text))
	require.NoError(t, err)
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
			t.Errorf("%s is missing", family)
			continue
		}
		for _, l := range families[family].GetMetric()[0].GetLabel() {
			if slices.Contains(labels, l.GetName()) && l.GetValue() != sanitizedText {
				t.Errorf("%s: label %s: got %q, want %q", family, l.GetName(), l.GetValue(), sanitizedText)
			}
		}
	}
	w.checkOpenMetrics(text)
}

// checkOpenMetrics checks that gauges have the same names and labels in OpenMetrics. test/e2e/openmetrics runs Prometheus' own parser.
func (w *testApp) checkOpenMetrics(text string) {
	w.t.Helper()
	open := w.scrape("application/openmetrics-text;version=1.0.0")
	for line := range strings.Lines(text) {
		series, _, _ := strings.Cut(line, "} ")
		if strings.HasPrefix(line, "nvidia_") && !strings.Contains(open, "\n"+series+"} ") {
			w.t.Errorf("OpenMetrics lacks %s}", series)
		}
	}
}
