package nvml

import (
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/nvml/lib"
	"github.com/podgauge/podgauge/internal/nvml/metric"
)

// ensureInitialized makes sure that the library is loaded and initialised. It is tried anew
// on each call until it succeeds.
func (b *Backend) ensureInitialized() error {
	if b.session != nil {
		return nil
	}
	// One that was found stays, also while it does not start: it may have been bound
	// to by the attempt.
	if b.lib == nil {
		found, err := lib.FindLibrary(b.options.DriverRoots)
		if err != nil {
			return err
		}
		b.lib = found
		b.libraryInfo.Store(&LibraryInfo{Library: lib.LoadedFile().Path}) // it was opened to be looked at
	}
	// A first Init loads the library, and each one leaves it loaded, whatever it
	// answers: so what is probed below is what is called later.
	ret := b.lib.Init()
	if b.libraryFile == (lib.LibraryFile{}) {
		b.libraryFile = lib.LoadedFile()
	}
	switch ret {
	case nvml.SUCCESS:
		b.initialized = true
	case nvml.ERROR_LIB_RM_VERSION_MISMATCH:
		return fmt.Errorf("initialise NVML: %w", b.versionMismatch())
	default:
		return fmt.Errorf("initialise NVML: %w", lib.Error(ret))
	}
	session := lib.NewSession(b.lib, metric.Symbols())
	b.session = &nvmlSession{
		Session: session, pendingCalls: b.pendingCalls, commonLabels: systemLabels(session),
		eventsNameInstances: b.lib.Extensions().LookupSymbol("nvmlEventSetWait_v2") == nil,
	}
	missing := metric.MissingFamilies(session.Symbols)
	b.missingFamilies.Store(&missing)
	b.libraryInfo.Store(&LibraryInfo{Library: b.libraryFile.Path, Version: session.Version, MissingFunctions: session.Symbols.Missing()})
	if b.driverRestarted { // a driver that has forgotten us was loaded anew
		b.driverRestarted = false
		b.histories.AddReset()
	}
	return nil
}

// versionMismatch is for a kernel module of another version than the library. The library
// cannot be unloaded, glibc keeps what lazily bound symbols point into, so only a new
// process can load another one. That helps where there is another: the driver was
// replaced while we used it, or the file is no longer the one that was loaded. It does
// not where only the files were installed, and the module waits for the node to be
// booted: that is a node without a driver, and no reason to start again and again.
func (b *Backend) versionMismatch() error {
	const ret = lib.Error(nvml.ERROR_LIB_RM_VERSION_MISMATCH)
	if b.initialized || b.libraryFile.Changed() {
		return fmt.Errorf("%w: %w", device.ErrDriverReplaced, ret)
	}
	return fmt.Errorf("%w: the kernel's module and %s are of different versions", ret, b.libraryFile.Path)
}
