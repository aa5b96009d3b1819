package lib

import (
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/dl"
	"github.com/NVIDIA/go-nvml/pkg/nvml"
	securejoin "github.com/cyphar/filepath-securejoin"
)

// Soname is the library's name for the dynamic linker.
const Soname = "libnvidia-ml.so.1"

// libraryDirs are the folders of distributions, NVIDIA's driver containers and
// GKE's installer, relative to a driver root.
var libraryDirs = [...]string{
	"usr/lib64", "usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu",
	"lib64", "lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu", "usr/lib",
	"usr/local/nvidia/lib64", "nvidia/lib64", "lib",
}

// FindLibrary returns the first usable library below the roots, or the dynamic
// linker's. go-nvml binds its calls to the first library for the whole process,
// so each library is examined first. The dynamic linker alone misses folders
// created after its first search.
func FindLibrary(roots []string) (nvml.Interface, error) {
	var paths []string
	for _, root := range roots {
		for _, dir := range libraryDirs {
			// Links end below the root, which is not the working directory.
			path, err := securejoin.SecureJoin(filepath.Clean(root), filepath.Join(dir, Soname))
			if err == nil && root != "" {
				paths = append(paths, path)
			}
		}
	}
	var firstErr error
	for _, path := range append(paths, Soname) {
		err := checkUsable(path)
		if err == nil {
			return nvml.New(nvml.WithLibraryPath(path)), nil
		}
		if firstErr == nil && !errors.Is(err, fs.ErrNotExist) { // an unusable file explains more than the linker
			firstErr = err
		}
	}
	return nil, firstErr
}

// checkComplete rejects a partially written library: access to the missing part
// would end the process by SIGBUS.
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
			return fmt.Errorf("read %s: the file is incomplete", path)
		}
	}
	return nil
}

// checkUsable opens a library without binding calls. A usable library stays
// open: Init gets the same file.
func checkUsable(path string) error {
	if path != Soname {
		if err := checkComplete(path); err != nil {
			return err
		}
	}
	library := dl.New(path, dl.RTLD_LAZY|dl.RTLD_LOCAL)
	if err := library.Open(); err != nil {
		return err
	}
	has := lookUp(library.Lookup, nil)
	if i := slices.IndexFunc(RequiredFunctions, func(symbol string) bool { return !has[symbol] }); i >= 0 {
		return errors.Join(fmt.Errorf("use %s: the library lacks %s", path, RequiredFunctions[i]), library.Close())
	}
	return nil
}

// LibraryFile identifies a library's file. The zero value is an unknown file.
type LibraryFile struct {
	Path string
	info fs.FileInfo // nil: deleted
}

// LoadedFile returns the library that this process has mapped, with all links
// resolved.
func LoadedFile() LibraryFile {
	maps, _ := os.ReadFile("/proc/self/maps") // unreadable: the file is unknown
	stem, _, _ := strings.Cut(Soname, ".")
	for line := range strings.Lines(string(maps)) {
		if at := strings.IndexByte(line, '/'); at >= 0 && strings.HasPrefix(filepath.Base(line[at:]), stem) {
			path := strings.TrimSuffix(strings.TrimSpace(line[at:]), " (deleted)")
			info, _ := os.Stat(path)
			return LibraryFile{path, info}
		}
	}
	return LibraryFile{}
}

// Changed reports whether the path now leads to another file or to none.
func (f LibraryFile) Changed() bool {
	now, err := os.Stat(f.Path)
	return f.Path != "" && (err != nil || !os.SameFile(now, f.info) || now.Size() != f.info.Size() || !now.ModTime().
		Equal(f.info.ModTime()))
}
