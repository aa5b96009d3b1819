package metric

import (
	"encoding/binary"
	"math"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// Conversion turns the driver's number into the base unit of a row's name.
// Numbers outside of min and max are no values: some types encode "unknown" as
// a negative number or as all bits set.
type Conversion struct {
	Multiplier, Divisor, min, max float64
	// trueStates are the states with the value 1, as bits; all further states
	// have the value 0. 0: the number is no state.
	trueStates uint64
	// capAtOne caps ratios at 1: the driver measures a little more at times.
	capAtOne bool
}

var (
	inBytes     = Conversion{Multiplier: 1, Divisor: 1, max: 1 << 50}
	inByteCount = Conversion{Multiplier: 1, Divisor: 1, max: 1 << 62} // a counter of bytes
	inKibibytes = Conversion{Multiplier: 1 << 10, Divisor: 1, max: 1 << 62}
	inMegabytes = Conversion{Multiplier: 1e6, Divisor: 1, max: 1e9} // per second
	inPercent   = Conversion{Multiplier: 1, Divisor: 100, max: 100} // divided: 29 * 0.01 is not 0.29
	// may exceed 100 (nvml.h, nvmlDeviceGetFanSpeed_v2)
	inFanPercent    = Conversion{Multiplier: 1, Divisor: 100, max: 200}
	inCyclePercent  = Conversion{Multiplier: 1, Divisor: 100, max: 102, capAtOne: true}
	inCelsius       = Conversion{Multiplier: 1, Divisor: 1, max: 1000}
	inCelsiusMargin = Conversion{Multiplier: 1, Divisor: 1, min: -1000, max: 1000} // degrees below a limit
	inMilliwatts    = Conversion{Multiplier: 1, Divisor: 1000, max: 1e8}
	inMillijoules   = Conversion{Multiplier: 1, Divisor: 1000, max: 1 << 53} // beyond, a float64 cannot count by one
	inNanoseconds   = Conversion{Multiplier: 1, Divisor: 1e9, max: 1 << 62}
	inMegahertz     = Conversion{Multiplier: 1e6, Divisor: 1, max: 1e5}
	inCount         = Conversion{Multiplier: 1, Divisor: 1, max: 1 << 53}
	inBool          = Conversion{Multiplier: 1, Divisor: 1, max: 1}
	inPState        = Conversion{Multiplier: 1, Divisor: 1, max: 15}
	inLinkState     = Conversion{
		Multiplier: 1, Divisor: 1, max: nvml.NVLINK_STATE_ACTIVE_TRAFFIC_DISABLED,
		trueStates: 1<<nvml.NVLINK_STATE_ACTIVE | 1<<nvml.NVLINK_STATE_SLEEP,
	}
	// inRecoveryAction accepts nvmlDeviceGpuRecoveryAction_t. Undefined values
	// have no name.
	inRecoveryAction = Conversion{Multiplier: 1, Divisor: 1, max: float64(nvml.GPU_RECOVERY_ACTION_SYSTEM_REBOOT)}
)

// Convert returns the value in the base unit, and false if the number is no
// value.
func (c Conversion) Convert(v float64) (float64, bool) {
	if !(v >= c.min && v <= c.max) { // NaN fails both
		return 0, false
	}
	if c.trueStates != 0 {
		return float64(c.trueStates >> uint64(v) & 1), true
	}
	if v = v * c.Multiplier / c.Divisor; c.capAtOne {
		v = min(v, 1)
	}
	return v, true
}

// IsRecoveryAction reports whether NVML defines a value of RecoveryField.
func IsRecoveryAction(value float64) bool {
	_, ok := inRecoveryAction.Convert(value)
	return ok && value == math.Trunc(value)
}

// DecodeField reads the union of nvmlFieldValue_t. Unknown types, NaN and
// infinity are no values, nor are unsigned numbers with all bits set, which
// encode "unknown".
func DecodeField(valueType uint32, value [8]byte, ret nvml.Return) (float64, bool) {
	if ret != nvml.SUCCESS {
		return 0, false
	}
	bits := binary.NativeEndian.Uint64(value[:])
	low := binary.NativeEndian.Uint32(value[:])
	short := binary.NativeEndian.Uint16(value[:])
	switch nvml.ValueType(valueType) {
	case nvml.VALUE_TYPE_DOUBLE:
		f := math.Float64frombits(bits)
		return f, !math.IsNaN(f) && !math.IsInf(f, 0)
	case nvml.VALUE_TYPE_UNSIGNED_INT:
		return float64(low), low != math.MaxUint32
	case nvml.VALUE_TYPE_SIGNED_INT:
		return float64(int32(low)), true
	case nvml.VALUE_TYPE_UNSIGNED_SHORT:
		return float64(short), short != math.MaxUint16
	// both have 8 bytes on the platforms of podgauge
	case nvml.VALUE_TYPE_UNSIGNED_LONG, nvml.VALUE_TYPE_UNSIGNED_LONG_LONG:
		return float64(bits), bits != math.MaxUint64
	case nvml.VALUE_TYPE_SIGNED_LONG_LONG:
		return float64(int64(bits)), true
	default:
		return 0, false
	}
}

// enumState selects the numbers from first to last, or all numbers outside.
type enumState struct {
	first, last float64
	outside     bool
}
