package podresources

import (
	"encoding/json"
	"maps"
	"runtime"
	"slices"
	"testing"

	"github.com/podgauge/podgauge/internal/device"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	api "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// The tests in this file are for functions that read the kubelet's input.

// FuzzCodec reads messages, of which valid ones are decoded as by protobuf.
func FuzzCodec(f *testing.F) {
	response := &api.ListPodResourcesResponse{PodResources: []*api.PodResources{{}, {
		Name: "pod", Namespace: "team", CpuIds: []int64{1, 300},
		Containers: []*api.ContainerResources{{
			Name: "main",
			Devices: []*api.ContainerDevices{{
				ResourceName: "r", DeviceIds: []string{"a"},
				Topology: &api.TopologyInfo{Nodes: []*api.NUMANode{{ID: 1}}},
			}},
			DynamicResources: []*api.DynamicResource{{
				ClaimName:      "claim",
				ClaimResources: []*api.ClaimResource{{DriverName: "d", CdiDevices: []*api.CDIDevice{{Name: "x/y=z"}}}},
			}},
		}},
	}}}
	b, err := proto.Marshal(response)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte{0x0a, 0xff})
	f.Fuzz(func(t *testing.T, b []byte) {
		var got, want api.ListPodResourcesResponse
		wantErr := proto.Unmarshal(b, &want)
		err := newBoundedCodec().Unmarshal(mem.BufferSlice{mem.SliceBuffer(slices.Clone(b))}, &got)
		switch {
		case wantErr == nil && err == nil && !proto.Equal(&got, &want):
			t.Fatalf("got %v, protobuf has %v", &got, &want)
		case wantErr == nil && err != nil && len(b) <= maxNameBytes:
			t.Fatalf("got %v, protobuf accepts the message", err)
		case err == nil:
			if _, err := newListing(got.PodResources, &Options{}); err != nil {
				t.Error(err)
			}
		}
	})
}

// FuzzCheckpoint compares the entries with those of the kubelet's types.
func FuzzCheckpoint(f *testing.F) {
	f.Add([]byte(`{"Data":{"PodDeviceEntries":[
		{"PodUID":"6b1c","ContainerName":"main","ResourceName":"nvidia.com/gpu",
		"DeviceIDs":{"-1":["a","b"]},"AllocResp":"CgA="},
		{"PodUID":"6b1c","ContainerName":"init","ResourceName":"nvidia.com/mig",
		"DeviceIDs":{"0":["a"],"1":["a","c"]},"AllocResp":""}
	],"RegisteredDevices":{"nvidia.com/gpu":["a","b","d"]}},"Checksum":3816129530}`)) // by a kubelet 1.37
	for _, invalid := range []string{
		`{}`, `null`, `[]`, `{"Data":{}}`, `{"Data":{"PodDeviceEntries":[null]}}`,
		`{"Data":{"PodDeviceEntries":[{"ResourceName":"r","DeviceIDs":["a"]}]}}`, // before 1.20
	} {
		if c, err := parseCheckpoint([]byte(invalid)); err == nil {
			f.Errorf("%s: got %v, want an error", invalid, c)
		}
		f.Add([]byte(invalid))
	}
	f.Add([]byte(`{"Data":{"PodDeviceEntries":null}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := parseCheckpoint(b)
		var theirs struct { // checkpoint.Data
			Data struct {
				PodDeviceEntries []struct {
					PodUID, ContainerName, ResourceName string
					DeviceIDs                           map[int64][]device.AdvertisedID
					AllocResp                           []byte
				}
				RegisteredDevices map[string][]string
			}
			Checksum uint64
		}
		if err != nil || json.Unmarshal(b, &theirs) != nil {
			return
		}
		uids := map[allocationKey]map[string]bool{}
		for _, e := range theirs.Data.PodDeviceEntries {
			for _, id := range slices.Concat(slices.Collect(maps.Values(e.DeviceIDs))...) {
				key := allocationKey{e.ResourceName, id}
				if uids[key] == nil {
					uids[key] = map[string]bool{}
				}
				uids[key][e.PodUID] = true
			}
		}
		for key, uid := range got.allocated {
			if !uids[key][uid] && (uid != "" || len(uids[key]) < 2) {
				t.Errorf("%v: got UID %q, the kubelet has %v", key, uid, uids[key])
			}
		}
		if len(got.allocated) != len(uids) {
			t.Errorf("allocations: got %v, the kubelet has %v", got.allocated, uids)
		}
	})
}

// TestEstimate decodes the kinds of messages that take the most memory.
func TestEstimate(t *testing.T) {
	repeat := func(n int, p *api.PodResources) *api.ListPodResourcesResponse {
		return &api.ListPodResourcesResponse{PodResources: slices.Repeat([]*api.PodResources{p}, n)}
	}
	with := func(n int, c *api.ContainerResources) *api.ListPodResourcesResponse {
		return repeat(n, &api.PodResources{Name: "pod", Namespace: "team", Containers: []*api.ContainerResources{c}})
	}
	for name, response := range map[string]*api.ListPodResourcesResponse{
		"empty pods": repeat(50_000, &api.PodResources{}),
		"devices": with(50_000, &api.ContainerResources{Name: "main", Devices: []*api.ContainerDevices{{
			ResourceName: "nvidia.com/gpu", DeviceIds: []string{"GPU-6f1a6f7c-0e4a-4f55-9a6e-7b4f3c2d1e00::17"},
			Topology: &api.TopologyInfo{Nodes: []*api.NUMANode{{ID: 1}}},
		}}}),
		"empty claims": with(10, &api.ContainerResources{DynamicResources: []*api.DynamicResource{{
			ClaimResources: slices.Repeat([]*api.ClaimResource{{CdiDevices: []*api.CDIDevice{{}}}}, 10_000),
		}}}),
		"CPU ids": with(10, &api.ContainerResources{CpuIds: make([]int64, 1_000_000)}),
	} {
		b, err := proto.Marshal(response)
		if err != nil {
			t.Fatal(err)
		}
		estimate, err := prepare(b, response.ProtoReflect().Descriptor())
		if err != nil {
			t.Fatal(err)
		}
		var before, after runtime.MemStats
		var decoded api.ListPodResourcesResponse
		runtime.GC()
		runtime.ReadMemStats(&before)
		if err := proto.Unmarshal(b, &decoded); err != nil {
			t.Fatal(err)
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		size := int(after.HeapAlloc) - int(before.HeapAlloc)
		t.Logf("%s: %d bytes encoded, %d decoded, estimate %d", name, len(b), size, estimate)
		if estimate < size {
			t.Errorf("%s: got an estimate of %d bytes, want at least %d", name, estimate, size)
		}
		runtime.KeepAlive(&decoded)
	}
}
