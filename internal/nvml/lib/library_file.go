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

// Soname is what the dynamic linker is asked for where no driver root has it.
const Soname = "libnvidia-ml.so.1"

// libraryDirs are where distributions, NVIDIA's driver containers and GKE's
// installer put the library, relative to a driver root.
var libraryDirs = [...]string{
	"usr/lib64", "usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu",
	"lib64", "lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu", "usr/lib",
	"usr/local/nvidia/lib64", "nvidia/lib64", "lib",
}

// LibraryFile tells a library's file from another one under its path. The zero file is not
// known.
type LibraryFile struct {
	Path    string
	inode   uint64
	size    int64
	modTime time.Time
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

// Changed tells whether the path leads to another file now, or to none.
func (f LibraryFile) Changed() bool {
	if f == (LibraryFile{}) {
		return false
	}
	now, err := statLibrary(f.Path)
	return err != nil || now != f
}

// LoadedFile is the library that this process has mapped, where the links that led to
// it end.
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
		return LibraryFile{Path: path} // it went between
	}
	return LibraryFile{}
}

// FindLibrary looks for a library that can be used. Once one was initialised there is no
// going back: go-nvml's calls are bound to the first library that they reach, for
// all Backends of the process. So a library is looked at closely before that.
//
// The files are looked for here and not left to the dynamic linker, since that one
// never again looks into a folder that was absent when it first did.
func FindLibrary(roots []string) (nvml.Interface, error) {
	var errs []error
	for _, root := range roots {
		if root == "" { // no root is not the folder that this process was started in
			continue
		}
		for _, dir := range libraryDirs {
			// A link's end is meant below the root, wherever that is mounted.
			path, err := securejoin.SecureJoin(filepath.Clean(root), filepath.Join(dir, Soname))
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
