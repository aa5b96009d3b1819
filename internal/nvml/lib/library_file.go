package lib

import (
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/dl"
	"github.com/NVIDIA/go-nvml/pkg/nvml"
	securejoin "github.com/cyphar/filepath-securejoin"
)

// Soname is the library's name for the dynamic linker.
const Soname = "libnvidia-ml.so.1"

// libraryDirs are the folders of distributions, NVIDIA's driver containers and GKE's installer, relative to a driver root.
var libraryDirs = [...]string{
	"usr/lib64", "usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu",
	"lib64", "lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu", "usr/lib",
	"usr/local/nvidia/lib64", "nvidia/lib64", "lib",
}

// FindLibrary returns the first usable library below the roots, or the dynamic linker's. go-nvml binds its calls to the first library for
// the whole process, so each library is examined first. The dynamic linker alone misses folders created after its first search.
func FindLibrary(roots []string) (nvml.Interface, error) {
	var errs []error
	for _, root := range roots {
		if root == "" { // not the working directory
			continue
		}
		for _, dir := range libraryDirs {
			path, err := securejoin.SecureJoin(filepath.Clean(root), filepath.Join(dir, Soname)) // links end below the root
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
	err := checkUsable(Soname)
	if err == nil {
		return nvml.New(nvml.WithLibraryPath(Soname)), nil
	}
	if len(errs) > 0 { // an unusable file explains more
		return nil, errs[0]
	}
	return nil, err
}

// checkComplete rejects a partially written library: access to the missing part would end the process by SIGBUS.
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

// checkUsable opens a library without binding calls. A usable library stays open: Init gets the same file.
func checkUsable(name string) error {
	library := dl.New(name, dl.RTLD_LAZY|dl.RTLD_LOCAL)
	if err := library.Open(); err != nil {
		return err
	}
	if err := lookUp(library.Lookup, nil).checkRequired(); err != nil {
		return errors.Join(fmt.Errorf("use %s: %w", name, err), library.Close())
	}
	return nil
}

// LibraryFile identifies a library's file. The zero value is an unknown file.
type LibraryFile struct {
	Path    string
	inode   uint64
	size    int64
	modTime time.Time
}

// LoadedFile returns the library that this process has mapped, with all links resolved.
func LoadedFile() LibraryFile {
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return LibraryFile{}
	}
	stem, _, _ := strings.Cut(Soname, ".")
	for line := range strings.Lines(string(maps)) {
		at := strings.IndexByte(line, '/')
		if at < 0 || !strings.HasPrefix(filepath.Base(line[at:]), stem) {
			continue
		}
		path := strings.TrimSuffix(strings.TrimSpace(line[at:]), " (deleted)")
		if f, err := statLibrary(path); err == nil {
			return f
		}
		return LibraryFile{Path: path} // deleted since
	}
	return LibraryFile{}
}

// Changed reports whether the path now leads to another file or to none.
func (f LibraryFile) Changed() bool {
	if f == (LibraryFile{}) {
		return false
	}
	now, err := statLibrary(f.Path)
	return err != nil || now != f
}

func statLibrary(path string) (LibraryFile, error) {
	info, err := os.Stat(path)
	if err != nil {
		return LibraryFile{}, err
	}
	f := LibraryFile{Path: path, size: info.Size(), modTime: info.ModTime()}
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		f.inode = stat.Ino
	}
	return f, nil
}
