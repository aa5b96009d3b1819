package nvml

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/podgauge/podgauge/internal/nvml/lib"
)

// totalMemory is the memory of a GPU or of a slice in bytes; 0 when unknown.
func totalMemory(handle nvml.Device, has lib.Symbols) uint64 {
	var r valueSet
	for i := range calls {
		if c := &calls[i]; has[c.symbol] && c.provides(memoryTotal) && !r.present[memoryTotal] {
			_ = c.get(handle, &r) // without it the slot stays empty
		}
	}
	v, ok := inBytes.convert(r.values[memoryTotal])
	if !ok {
		return 0
	}
	return uint64(v)
}
