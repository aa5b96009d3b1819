package nvml

import (
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/dl"
	"github.com/NVIDIA/go-nvml/pkg/nvml"
	securejoin "github.com/cyphar/filepath-securejoin"
	"github.com/podgauge/podgauge/internal/device"
)

// soname is what the dynamic linker is asked for where no driver root has it.
const soname = "libnvidia-ml.so.1"

// libraryDirs are where distributions, NVIDIA's driver containers and GKE's
// installer put the library, relative to a driver root.
var libraryDirs = [...]string{
	"usr/lib64", "usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu",
	"lib64", "lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu", "usr/lib",
	"usr/local/nvidia/lib64", "nvidia/lib64", "lib",
}

// ensureInitialized makes sure that the library is loaded and initialised. It is tried anew
// on each call until it succeeds.
func (b *Backend) ensureInitialized() error {
	if b.session != nil {
		return nil
	}
	// One that was found stays, also while it does not start: it may have been bound
	// to by the attempt.
	if b.lib == nil {
		lib, err := b.findLibrary()
		if err != nil {
			return err
		}
		b.lib = lib
		b.libraryInfo.Store(&LibraryInfo{Library: loadedFile().path}) // it was opened to be looked at
	}
	// A first Init loads the library, and each one leaves it loaded, whatever it
	// answers: so what is probed below is what is called later.
	ret := b.lib.Init()
	if b.libraryFile == (libraryFile{}) {
		b.libraryFile = loadedFile()
	}
	switch ret {
	case nvml.SUCCESS:
		b.initialized = true
	case nvml.ERROR_LIB_RM_VERSION_MISMATCH:
		return fmt.Errorf("initialise NVML: %w", b.versionMismatch())
	default:
		return fmt.Errorf("initialise NVML: %w", nvmlError(ret))
	}
	has := lookupSymbols(b.lib.Extensions().LookupSymbol)
	version := driverVersion(b.lib, has)
	b.session = &nvmlSession{
		lib: b.lib, symbols: has, pendingCalls: b.pendingCalls, raw: findRawSymbols(), plan: b.plan, commonLabels: systemLabels(b.lib, has, version),
		renumberedFields:    !atLeast58082(version),
		eventsNameInstances: b.lib.Extensions().LookupSymbol("nvmlEventSetWait_v2") == nil,
	}
	for i := range calls {
		b.session.callable[i] = has[calls[i].symbol]
	}
	missing := has.missingFamilies()
	b.missingFamilies.Store(&missing)
	b.libraryInfo.Store(&LibraryInfo{Library: b.libraryFile.path, Version: version, MissingFunctions: has.missingFunctions()})
	if b.driverRestarted {
		b.driverRestarted = false
		for _, h := range b.histories { // who has forgotten us has been loaded anew
			h.resets.Add(1)
		}
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
	const ret = nvmlError(nvml.ERROR_LIB_RM_VERSION_MISMATCH)
	if b.initialized || b.libraryFile.changed() {
		return fmt.Errorf("%w: %w", device.ErrDriverReplaced, ret)
	}
	return fmt.Errorf("%w: the kernel's module and %s are of different versions", ret, b.libraryFile.path)
}

// libraryFile tells a library's file from another one under its path. The zero file is not
// known.
type libraryFile struct {
	path    string
	inode   uint64
	size    int64
	modTime time.Time
}

func statLibrary(path string) (libraryFile, error) {
	info, err := os.Stat(path)
	if err != nil {
		return libraryFile{}, err
	}
	f := libraryFile{path: path, size: info.Size(), modTime: info.ModTime()}
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		f.inode = stat.Ino
	}
	return f, nil
}

// changed tells whether the path leads to another file now, or to none.
func (f libraryFile) changed() bool {
	if f == (libraryFile{}) {
		return false
	}
	now, err := statLibrary(f.path)
	return err != nil || now != f
}

// loadedFile is the library that this process has mapped, where the links that led to
// it end.
func loadedFile() libraryFile {
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return libraryFile{}
	}
	stem, _, _ := strings.Cut(soname, ".")
	for line := range strings.Lines(string(maps)) {
		at := strings.IndexByte(line, '/')
		if at < 0 || !strings.HasPrefix(filepath.Base(line[at:]), stem) {
			continue
		}
		path := strings.TrimSuffix(strings.TrimSpace(line[at:]), " (deleted)")
		if f, err := statLibrary(path); err == nil {
			return f
		}
		return libraryFile{path: path} // it went between
	}
	return libraryFile{}
}

// findLibrary looks for a library that can be used. Once one was initialised there is no
// going back: go-nvml's calls are bound to the first library that they reach, for
// all Backends of the process. So a library is looked at closely before that.
//
// The files are looked for here and not left to the dynamic linker, since that one
// never again looks into a folder that was absent when it first did.
func (b *Backend) findLibrary() (nvml.Interface, error) {
	var errs []error
	for _, root := range b.options.DriverRoots {
		if root == "" { // no root is not the folder that this process was started in
			continue
		}
		for _, dir := range libraryDirs {
			// A link's end is meant below the root, wherever that is mounted.
			path, err := securejoin.SecureJoin(filepath.Clean(root), filepath.Join(dir, soname))
			if err == nil {
				err = checkComplete(path)
			}
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err == nil {
				err = checkUsable(path)
			}
			if err == nil {
				return nvml.New(nvml.WithLibraryPath(path)), nil
			}
			errs = append(errs, err)
		}
	}
	err := checkUsable(soname)
	if err == nil {
		return nvml.New(nvml.WithLibraryPath(soname)), nil
	}
	if len(errs) > 0 { // a file that is there and cannot be used says more
		return nil, errs[0]
	}
	return nil, err
}

// checkComplete refuses a library that is still being written. Opening one would not
// fail: it would end the process by SIGBUS when the missing part is touched. Of an
// ELF file the section table comes last.
func checkComplete(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close() //nolint:errcheck // it is only read
	info, err := file.Stat()
	if err != nil {
		return err
	}
	parsed, err := elf.NewFile(file)
	if err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	for _, p := range parsed.Progs {
		if p.Type == elf.PT_LOAD && p.Off+p.Filesz > uint64(info.Size()) {
			return fmt.Errorf("read %s: it is not whole", path)
		}
	}
	return nil
}

// checkUsable opens a library for a look, without binding anything to it. One that has
// what is needed stays open, so that Init gets the very same.
func checkUsable(name string) error {
	library := dl.New(name, dl.RTLD_LAZY|dl.RTLD_LOCAL)
	if err := library.Open(); err != nil {
		return err
	}
	err := lookupSymbols(library.Lookup).checkRequired()
	if err != nil {
		return errors.Join(fmt.Errorf("use %s: %w", name, err), library.Close())
	}
	return nil
}

// systemLabels are the labels that are the same for all GPUs of a node.
func systemLabels(lib nvml.Interface, has symbols, version string) []device.Label {
	var cuda string
	if has["nvmlSystemGetCudaDriverVersion"] {
		if v, ret := lib.SystemGetCudaDriverVersion(); ret == nvml.SUCCESS {
			// 12080 is 12.8 (nvml.h, NVML_CUDA_DRIVER_VERSION_MAJOR).
			cuda = strconv.Itoa(v/1000) + "." + strconv.Itoa(v%1000/10)
		}
	}
	return []device.Label{
		{Name: "driver_version", Value: version},
		{Name: "cuda_version", Value: cuda},
		{Name: "confidential_computing", Value: confidentialComputing(lib, has)},
	}
}

// confidentialComputing is whether the node's GPUs compute confidentially; empty: it is not known.
func confidentialComputing(lib nvml.Interface, has symbols) string {
	if !has["nvmlSystemGetConfComputeState"] {
		return ""
	}
	switch s, ret := lib.SystemGetConfComputeState(); {
	case ret != nvml.SUCCESS:
		return ""
	case s.CcFeature != nvml.CC_SYSTEM_FEATURE_ENABLED:
		return "off"
	case s.DevToolsMode == nvml.CC_SYSTEM_DEVTOOLS_MODE_ON:
		return "devtools"
	default:
		return "on"
	}
}

func driverVersion(lib nvml.Interface, has symbols) string {
	if !has["nvmlSystemGetDriverVersion"] {
		return ""
	}
	v, ret := lib.SystemGetDriverVersion()
	if ret != nvml.SUCCESS {
		return ""
	}
	return toValidUTF8(v)
}

// majorMinor returns the first two numbers of a driver's version, and false where it has
// none.
func majorMinor(version string) (major, minor int, ok bool) {
	a, rest, _ := strings.Cut(version, ".")
	b, _, _ := strings.Cut(rest, ".")
	major, errA := strconv.Atoi(a)
	minor, errB := strconv.Atoi(b)
	return major, minor, errA == nil && errB == nil
}

// atLeast58082 reports whether a driver has the field numbers of today. One whose version
// cannot be read is taken for an old one.
func atLeast58082(version string) bool {
	major, minor, ok := majorMinor(version)
	return ok && (major > 580 || major == 580 && minor >= 82)
}
