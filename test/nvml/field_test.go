package nvmltest

import (
	"slices"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

func TestFieldScopes(t *testing.T) {
	runOnNode(t, func(n *testNode) {
		n.setup("gpu 0 field 138 none", "gpu 0 field 138/2 222", "gpu 0 field 138/4294967295 999")
		values := []nvml.FieldValue{
			{FieldId: nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_TX, ScopeId: 2},
			{FieldId: nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_TX, ScopeId: 1<<32 - 1},
			{FieldId: nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_TX, ScopeId: 3},
			{FieldId: nvml.FI_DEV_POWER_INSTANT, ScopeId: nvml.POWER_SCOPE_GPU},
			{FieldId: nvml.FI_DEV_POWER_INSTANT, ScopeId: nvml.POWER_SCOPE_MODULE},
		}
		before := time.Now()
		n.want(nvml.SUCCESS, n.gpu(0).GetFieldValues(values))
		for i, want := range []struct {
			ret   nvml.Return
			value uint64
		}{
			{nvml.SUCCESS, 222},
			{nvml.SUCCESS, 999},
			{nvml.ERROR_NOT_SUPPORTED, 0},
			{nvml.SUCCESS, 70000},
			{nvml.ERROR_NOT_SUPPORTED, 0},
		} {
			v := values[i]
			n.want(want.ret, nvml.Return(v.NvmlReturn))
			if want.ret == nvml.SUCCESS && decodeField(v) != want.value {
				n.Errorf("entry %d is %d, want %d", i, decodeField(v), want.value)
			}
			if age := time.UnixMicro(v.Timestamp).Sub(before); age < -time.Second || age > waitTimeout {
				n.Errorf("entry %d has timestamp %v after the start of the call", i, age)
			}
		}
	})
}

// allLinks is the scope of the sum of all NVLinks.
const allLinks = 1<<32 - 1

// readScopes returns the values of a field with several scopes, -1 without a value.
func (n *testNode) readScopes(gpu nvml.Device, id uint32, scopes ...uint32) (got []int64) {
	n.Helper()
	values := make([]nvml.FieldValue, len(scopes))
	for i, scope := range scopes {
		values[i] = nvml.FieldValue{FieldId: id, ScopeId: scope}
	}
	n.want(nvml.SUCCESS, gpu.GetFieldValues(values))
	for _, v := range values {
		if nvml.Return(v.NvmlReturn) != nvml.SUCCESS {
			got = append(got, -1)
			continue
		}
		got = append(got, int64(decodeField(v)))
	}
	return got
}

// TestFieldsOfLinks checks that the sum includes a link with a different value and excludes a link that is off.
func TestFieldsOfLinks(t *testing.T) {
	runOnNode(t, func(n *testNode) {
		n.setup("gpu 0 field 138/link 100", "gpu 0 field 138/3 7", "gpu 0 link 17 off", "gpu 0 nvlink_speed 26562")
		gpu := n.gpu(0)
		for id, want := range map[uint32][]int64{
			nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_TX:      {100, 7, -1, -1, 16*100 + 7},
			nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_RX:      {0, 0, -1, -1, 0},
			nvml.FI_DEV_NVLINK_GET_STATE:               {1, 1, 0, -1, -1},
			nvml.FI_DEV_NVLINK_GET_SPEED:               {26562, 26562, 0, -1, -1},
			nvml.FI_DEV_NVLINK_GET_VERSION:             {6, 6, 6, -1, -1},
			nvml.FI_DEV_NVLINK_LINK_COUNT:              {18, 18, 18, 18, 18},
			nvml.FI_DEV_NVSWITCH_CONNECTED_LINK_COUNT:  {17, 17, 17, 17, 17},
			nvml.FI_DEV_NVLINK_COUNT_XMIT_BYTES:        {-1, -1, -1, -1, -1},
			nvml.FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_L0: {-1, -1, -1, -1, -1},
		} {
			if got := n.readScopes(gpu, id, 0, 3, 17, 18, allLinks); !slices.Equal(got, want) {
				n.Errorf("field %d is %v, want %v", id, got, want)
			}
		}
		n.setLines("gpu 0 link 0-17 none")
		for _, id := range []uint32{nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_TX, nvml.FI_DEV_NVLINK_GET_STATE, nvml.FI_DEV_NVLINK_LINK_COUNT} {
			if got := n.readScopes(gpu, id, 0, allLinks); got[0] != -1 || got[1] != -1 {
				n.Errorf("field %d of a GPU without links is %v", id, got)
			}
		}
	})
}
