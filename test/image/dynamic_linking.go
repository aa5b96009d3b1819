package main

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
)

// openELF reads a file of the image as a program or library.
func (i *ociImage) openELF(name string) (*elf.File, error) {
	f, _, found := i.followLinks(name)
	if !found {
		return nil, fmt.Errorf("%s is missing", name)
	}
	parsed, err := elf.NewFile(bytes.NewReader(f.content))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return parsed, nil
}

// checkArchitecture: the binary is for the machine that the image says it is for.
func checkArchitecture(img *ociImage) (string, error) {
	want, known := elfMachines[img.config.Architecture]
	if !known || img.config.OS != "linux" {
		return "", fmt.Errorf("no image is made for %s/%s", img.config.OS, img.config.Architecture)
	}
	bin, err := img.openELF(programPath)
	if err != nil {
		return "", err
	}
	if bin.Machine != want {
		return "", fmt.Errorf("%s is for %v, the image for %s", programPath, bin.Machine, img.config.Architecture)
	}
	return fmt.Sprintf("%s, %v", img.config.Architecture, bin.Machine), nil
}

// checkLazyBinding: functions of the driver are bound when they are called. One that the driver lacks would else end the process at
// its start.
func checkLazyBinding(img *ociImage) (string, error) {
	bin, err := img.openELF(programPath)
	if err != nil {
		return "", err
	}
	now, err := bin.DynValue(elf.DT_BIND_NOW)
	if err != nil {
		return "", err
	}
	flags, err := bin.DynValue(elf.DT_FLAGS)
	if err != nil {
		return "", err
	}
	flags1, err := bin.DynValue(elf.DT_FLAGS_1)
	if err != nil {
		return "", err
	}
	if len(now) > 0 || hasFlag(flags, uint64(elf.DF_BIND_NOW)) || hasFlag(flags1, uint64(elf.DF_1_NOW)) {
		return "", fmt.Errorf("all of %s is bound at its start", programPath)
	}
	undefined, err := bin.ImportedSymbols()
	if err != nil {
		return "", err
	}
	ofDriver := 0
	for _, symbol := range undefined {
		if strings.HasPrefix(symbol.Name, "nvml") {
			ofDriver++
		}
	}
	if ofDriver == 0 {
		return "", errors.New("it needs nothing of NVML: it was built without cgo")
	}
	return fmt.Sprintf("%d functions of NVML", ofDriver), nil
}

func hasFlag(values []uint64, flag uint64) bool {
	return slices.ContainsFunc(values, func(v uint64) bool { return v&flag != 0 })
}

// checkLibraries: the dynamic linker and each library that is needed are in the image, with the versions of symbols that are
// asked of them.
func checkLibraries(img *ociImage) (string, error) {
	bin, err := img.openELF(programPath)
	if err != nil {
		return "", err
	}
	loader, err := interpreter(bin)
	if err != nil {
		return "", err
	}
	if _, err := img.openELF(loader); err != nil {
		return "", fmt.Errorf("the dynamic linker: %w", err)
	}
	seen := map[string]bool{}
	if err := img.resolveLibraries(bin, programPath, seen); err != nil {
		return "", err
	}
	for name := range seen {
		if strings.HasPrefix(name, "libnvidia") || strings.HasPrefix(name, "libcuda") {
			return "", fmt.Errorf("it needs %s to start", name)
		}
	}
	return fmt.Sprintf("%s and %d more", path.Base(loader), len(seen)), nil
}

func interpreter(bin *elf.File) (string, error) {
	for _, p := range bin.Progs {
		if p.Type != elf.PT_INTERP {
			continue
		}
		name := make([]byte, p.Filesz)
		if _, err := p.ReadAt(name, 0); err != nil {
			return "", err
		}
		return strings.TrimRight(string(name), "\x00"), nil
	}
	return "", errors.New("it is linked statically: it could not load the driver's library")
}

// resolveLibraries finds what a file needs, and what that needs.
func (i *ociImage) resolveLibraries(bin *elf.File, name string, seen map[string]bool) error {
	needs, err := bin.DynamicVersionNeeds()
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	libraries, err := bin.ImportedLibraries()
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	for _, library := range libraries {
		parsed, err := i.findLibrary(library, bin.Machine)
		if err != nil {
			return fmt.Errorf("%s needs %w", name, err)
		}
		if err := checkSymbolVersions(parsed, library, needs); err != nil {
			return fmt.Errorf("%s needs %w", name, err)
		}
		if seen[library] {
			continue
		}
		seen[library] = true
		if err := i.resolveLibraries(parsed, library, seen); err != nil {
			return err
		}
	}
	return nil
}

// libraryDir is the folder of Debian's libraries, and that into which NVIDIA's runtime mounts its own.
func (i *ociImage) libraryDir() string {
	return "/usr/lib/" + map[string]string{"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}[i.config.Architecture]
}

// findLibrary finds one where the dynamic linker of Debian looks without a cache.
func (i *ociImage) findLibrary(name string, machine elf.Machine) (*elf.File, error) {
	for _, folder := range []string{i.libraryDir(), "/lib", "/usr/lib"} {
		parsed, err := i.openELF(path.Join(folder, name))
		if err == nil && parsed.Machine == machine {
			return parsed, nil
		}
	}
	return nil, fmt.Errorf("%s, which is not in the image", name)
}

// checkSymbolVersions wants a library to define each version of symbols that is needed of it.
func checkSymbolVersions(library *elf.File, name string, needs []elf.DynamicVersionNeed) error {
	defined, err := library.DynamicVersions()
	if err != nil {
		return err
	}
	for _, need := range needs {
		if need.Name != name {
			continue
		}
		for _, version := range need.Needs {
			if !slices.ContainsFunc(defined, func(d elf.DynamicVersion) bool { return d.Name == version.Dep }) {
				return fmt.Errorf("%s of %s", version.Dep, name)
			}
		}
	}
	return nil
}
