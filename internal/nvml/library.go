package nvml

import (
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/nvml/lib"
	"github.com/podgauge/podgauge/internal/nvml/metric"
)

// ensureInitialized loads and initializes the library. Each call tries again
// until the first success. The error is device.ErrNoDriver if a new process
// would find no driver either.
func (b *Backend) ensureInitialized() error {
	if b.session != nil {
		return nil
	}
	if b.lib == nil { // kept from now on: calls may already be bound to it
		found, err := lib.FindLibrary(b.options.DriverRoots)
		if err != nil {
			return fmt.Errorf("%w: %w", device.ErrNoDriver, err)
		}
		b.lib = found
		b.library.Store(&device.Library{Path: lib.LoadedFile().Path}) // opened for examination
	}
	ret := b.lib.Init() // the library stays loaded after a failure too: the symbols below are those of later calls
	if b.libraryFile.Path == "" {
		b.libraryFile = lib.LoadedFile()
	}
	switch ret {
	case nvml.SUCCESS:
		b.initialized = true
	case nvml.ERROR_LIB_RM_VERSION_MISMATCH:
		return fmt.Errorf("%w: initialize NVML: %w", device.ErrNoDriver, b.versionMismatch())
	case nvml.ERROR_DRIVER_NOT_LOADED, nvml.ERROR_LIBRARY_NOT_FOUND:
		return fmt.Errorf("%w: initialize NVML: %w", device.ErrNoDriver, lib.Error(ret))
	default: // the container may lack access to the driver
		return fmt.Errorf("initialize NVML: %w", lib.Error(ret))
	}
	session := lib.NewSession(b.lib, metric.Symbols())
	mode := confidentialComputing(session)
	b.session = &nvmlSession{
		Session: session, pendingCalls: b.pendingCalls, commonLabels: systemLabels(session, mode),
		confidential:        mode == "on" || mode == "devtools",
		eventsNameInstances: b.lib.Extensions().LookupSymbol("nvmlEventSetWait_v2") == nil,
	}
	b.library.Store(&device.Library{
		Path: b.libraryFile.Path, Version: session.Version,
		MissingFunctions: session.Symbols.Missing(), MissingFamilies: metric.MissingFamilies(session.Symbols),
	})
	if b.driverRestarted { // a reload of the kernel module resets all GPUs
		b.driverRestarted = false
		b.histories.AddReset()
	}
	return nil
}

// versionMismatch is the error of a kernel module with another version than the
// library. Only a new process can load another library: glibc never unloads the
// target of lazily bound symbols. A new process helps after the driver or its
// file was replaced. Newly installed files alone wait for a reboot, without a
// driver until then, and justify no restart.
func (b *Backend) versionMismatch() error {
	const ret = lib.Error(nvml.ERROR_LIB_RM_VERSION_MISMATCH)
	if b.initialized || b.libraryFile.Changed() {
		return fmt.Errorf("%w: %w", device.ErrDriverReplaced, ret)
	}
	return fmt.Errorf("%w: the kernel module and %s have different versions", ret, b.libraryFile.Path)
}

// Close shuts the library down, after all pending calls: NVML does not survive
// a shutdown during a call. No further call may be under way. A later Devices
// starts the library again.
func (b *Backend) Close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.eventsMu.Lock()
	defer b.eventsMu.Unlock()
	inv := b.inventory.Swap(nil)
	b.lastInventory.Store(inv)
	b.pendingCalls.Wait()
	if b.session == nil { // without an Init no library may have Shutdown
		return
	}
	if inv != nil {
		for _, g := range inv.gpus {
			g.FreeSamples(b.session.Session)
		}
	}
	if b.eventSet.session == b.session { // a set of an earlier Init is gone
		b.eventSet.free()
	}
	b.session = nil
	_ = b.lib.Shutdown() // without consequences
}
