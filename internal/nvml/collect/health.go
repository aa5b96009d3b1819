package collect

import (
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/nvml/lib"
	"github.com/podgauge/podgauge/internal/nvml/metric"
)

// Check returns an error if the GPU is unhealthy. A single call reads a few
// fields; denials are answers. Values without a field come from the newest
// call, of a check or of a collection.
func (g *GPUReader) Check() (device.ResetEvidence, error) {
	g.Mu.Lock()
	defer g.Mu.Unlock()
	fault, err := g.runChecks(time.Now())
	if err != nil {
		g.forget()
	} else {
		g.takeSamples(time.Now())
	}
	if fault != nil {
		err = fault
	}
	_, isFault := errors.AsType[*device.Fault](err)
	g.Responsive.Store(err == nil || isFault)
	return device.ResetEvidence{
		Resets: g.history.resets.Load(), EnergyCounter: g.history.energyMillijoules.Load(),
		RepairPending: g.repairPending,
	}, err
}

// runChecks reads and evaluates. The error is a call's.
func (g *GPUReader) runChecks(now time.Time) (*device.Fault, error) {
	f := &g.checkFields
	answered, ret := f.read(g.Handle, now)
	action, reported := f.value(recoveryIndex)
	g.ReportsRecovery.Store(reported && metric.IsRecoveryAction(action))
	if ret != nvml.SUCCESS && !lib.IsNotSupported(ret) {
		return nil, callError(lib.FieldValuesSymbol, ret)
	}
	if ret != nvml.ERROR_NOT_SUPPORTED && !answered { // the GPU may support no field
		if err := g.ping(); err != nil {
			return nil, err
		}
	} else {
		g.detectReset(f)
	}
	remap, _ := f.value(remapPendingIndex)
	retirement, _ := f.value(retirementPendingIndex)
	unknown := f.failed(remapPendingIndex) || f.failed(retirementPendingIndex)
	g.repairPending = remap > 0 || retirement > 0 || unknown && g.repairPending
	g.results = callResults{}
	g.makeCalls(&g.target, isCheckCall, now)
	if g.results.aborted {
		return nil, g.results.failure
	}
	return g.evaluateChecks(now), nil
}

// evaluateChecks returns the first fault. A fault stands until a value without
// fault: a partitioned GPU hides remapped rows without repairing them. A
// recovery action ends with the driver's report.
func (g *GPUReader) evaluateChecks(now time.Time) (first *device.Fault) {
	g.history.mu.Lock()
	defer g.history.mu.Unlock()
	found := g.history.faults
	for i := range healthChecks {
		c := &healthChecks[i]
		value, known := g.latest.Values[c.valueID], g.latest.Present[c.valueID]
		if c.fieldIndex != 0 {
			value, known = g.checkFields.value(c.fieldIndex)
		}
		switch {
		case known:
			found[i] = c.evaluate(g, c, value, now)
		case c.fieldIndex == recoveryIndex && !g.checkFields.failed(c.fieldIndex):
			found[i] = nil
		}
		if first == nil {
			first = found[i]
		}
	}
	return first
}

// Checks returns all checks, in order of precedence.
func Checks() []HealthCheck { return slices.Clone(healthChecks[:]) }

// Source returns the field or function of a check.
func (c *HealthCheck) Source() string {
	if c.fieldIndex != 0 {
		return "field " + strconv.Itoa(int(checkedFields[c.fieldIndex].ID))
	}
	return metric.Calls[slices.IndexFunc(metric.Calls,
		func(call metric.Call) bool { return call.Provides(c.valueID) })].Symbol
}
