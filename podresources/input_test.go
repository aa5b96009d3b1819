package podresources

import (
	"encoding/json"
	"maps"
	"slices"
	"testing"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/test/helpers/require"
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
	require.NoError(f, err)
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
			if _, err := newListing(got.PodResources, nil, &Options{}); err != nil {
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
		if c, err := parseCheckpoint([]byte(invalid), nil); err == nil {
			f.Errorf("%s: got %v, want an error", invalid, c)
		}
		f.Add([]byte(invalid))
	}
	f.Add([]byte(`{"Data":{"PodDeviceEntries":null}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := parseCheckpoint(b, nil)
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
		uids := map[allocationKey][]string{}
		for _, e := range theirs.Data.PodDeviceEntries {
			for _, id := range slices.Concat(slices.Collect(maps.Values(e.DeviceIDs))...) {
				key := allocationKey{e.ResourceName, id}
				uids[key] = append(uids[key], e.PodUID)
			}
		}
		for key, all := range uids {
			if uid, found := got.allocated[key]; !found || uid != "" && !slices.Contains(all, uid) {
				t.Errorf("%v: got UID %q, %t, the kubelet has %q", key, uid, found, all)
			}
		}
		if len(got.allocated) != len(uids) {
			t.Errorf("allocations: got %v, the kubelet has %v", got.allocated, uids)
		}
	})
}
