package metric

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/podgauge/podgauge/internal/nvml/lib"
)

// TotalMemory is the memory of a GPU or of a slice in bytes; 0 when unknown.
func TotalMemory(handle nvml.Device, has lib.Symbols) uint64 {
	var r Values
	for i := range Calls {
		if c := &Calls[i]; has[c.Symbol] && c.Provides(memoryTotal) && !r.Present[memoryTotal] {
			_ = c.Get(handle, &r) // without it the slot stays empty
		}
	}
	v, ok := inBytes.Convert(r.Values[memoryTotal])
	if !ok {
		return 0
	}
	return uint64(v)
}
