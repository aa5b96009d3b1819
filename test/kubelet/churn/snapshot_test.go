package churn

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/test/helpers/require"
)

func TestParse(t *testing.T) {
	const text = `# TYPE nvidia_gpu_allocated gauge
nvidia_gpu_allocated{container="main",gpu="0",mig_uuid="",namespace="default",pod="one",uuid="GPU-0"} 1
nvidia_gpu_allocated{container="",gpu="1",mig_uuid="",namespace="",pod="",uuid="GPU-1"} 1
nvidia_gpu_allocated{container="",gpu="2",mig_uuid="",namespace="",pod="",uuid="GPU-2"} 0
nvidia_gpu_allocated{container="",gpu="4",mig_uuid="MIG-1",namespace="",pod="",uuid="GPU-4"} 0
# TYPE nvidia_gpu_energy_joules_total counter
nvidia_gpu_energy_joules_total{container="main",gpu="0",mig_uuid="",namespace="default",pod="one",uuid="GPU-0"} 12.5
# TYPE nvidia_gpu_up gauge
nvidia_gpu_up{container="",gpu="3",mig_uuid="",namespace="",pod="",uuid="GPU-3"} 1
# TYPE nvidia_gpu_allocation_info gauge
nvidia_gpu_allocation_info{container="main",device_id="GPU-1",mig_uuid="",namespace="default",pod="two",resource="nvidia.com/gpu",uuid="GPU-1"} 1
nvidia_gpu_allocation_info{container="main",device_id="GPU-1",mig_uuid="",namespace="default",pod="three",resource="nvidia.com/gpu",uuid="GPU-1"} 1
# TYPE nvidia_gpu_allocation_last_seen_timestamp_seconds gauge
nvidia_gpu_allocation_last_seen_timestamp_seconds{container="main",mig_uuid="",namespace="default",pod="past",uuid="GPU-2"} 1700000000
# TYPE podgauge_resource_allocation_info gauge
podgauge_resource_allocation_info{container="main",device_id="GPU-5::1",namespace="default",numa_node="",pod="four",resource="nvidia.com/gpu"} 1
# TYPE podgauge_kubelet_up gauge
podgauge_kubelet_up 1
# TYPE podgauge_collection_begin_timestamp_seconds gauge
podgauge_collection_begin_timestamp_seconds 1700000000.25
# TYPE podgauge_collection_end_timestamp_seconds gauge
podgauge_collection_end_timestamp_seconds 1700000000.5
`
	got, err := Parse(strings.NewReader(text))
	require.NoError(t, err)
	one := containerKey("one")
	want := MetricsSnapshot{
		Span: Span{time.Unix(1700000000, 25e7), time.Unix(1700000000, 5e8)}, KubeletUp: true,
		Devices: map[string]ShownDevice{
			"GPU-0": {State: StateNamed, Owner: one, Owners: []ContainerKey{one}, AttributedJoules: 12.5, EnergyOwner: one, HasEnergy: true},
			"GPU-1": {State: StateUnnamed, Owners: []ContainerKey{containerKey("two"), containerKey("three")}},
			"GPU-2": {State: StateIdle},
			"GPU-3": {},
			"MIG-1": {State: StateIdle},
			"GPU-5": {Owners: []ContainerKey{containerKey("four")}},
		},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
	for _, broken := range []string{"", "podgauge_kubelet_up 1\n", "nvidia_gpu_allocated{"} {
		if _, err := Parse(strings.NewReader(broken)); err == nil {
			t.Errorf("Parse(%q): got no error", broken)
		}
	}
}
