package image

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
)

// openELF parses a program or library of the image.
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

// checkArchitecture checks that the binary matches the image's architecture.
func checkArchitecture(img *ociImage) (string, error) {
	want, known := elfMachines[img.config.Architecture]
	if !known || img.config.OS != "linux" {
		return "", fmt.Errorf("unsupported platform %s/%s", img.config.OS, img.config.Architecture)
	}
	bin, err := img.openELF(programPath)
	if err != nil {
		return "", err
	}
	if bin.Machine != want {
		return "", fmt.Errorf("%s is for %v, image is for %s", programPath, bin.Machine, img.config.Architecture)
	}
	return fmt.Sprintf("%s, %v", img.config.Architecture, bin.Machine), nil
}

// checkLazyBinding checks that functions of the driver are bound at the first call.
// Otherwise the process exits at its start if the driver lacks a function. podgauge-kube uses no driver.
func checkLazyBinding(img *ociImage) (string, error) {
	if img.programName() == kubeName {
		return "no driver", nil
	}
	bin, err := img.openELF(programPath)
	if err != nil {
		return "", err
	}
	for tag, mask := range map[elf.DynTag]uint64{elf.DT_BIND_NOW: 0, elf.DT_FLAGS: uint64(elf.DF_BIND_NOW), elf.DT_FLAGS_1: uint64(elf.DF_1_NOW)} {
		values, err := bin.DynValue(tag)
		if err != nil {
			return "", err
		}
		if slices.ContainsFunc(values, func(v uint64) bool { return v&mask == mask }) {
			return "", fmt.Errorf("%s binds functions at its start", programPath)
		}
	}
	imported, err := bin.ImportedSymbols()
	if err != nil {
		return "", err
	}
	functions := 0
	for _, symbol := range imported {
		if strings.HasPrefix(symbol.Name, "nvml") {
			functions++
		}
	}
	if functions == 0 {
		return "", errors.New("no NVML functions: built without cgo")
	}
	return fmt.Sprintf("%d NVML functions", functions), nil
}

// checkLibraries checks that the image has the dynamic linker and all required libraries and symbol versions. podgauge-kube needs none.
func checkLibraries(img *ociImage) (string, error) {
	bin, err := img.openELF(programPath)
	if err != nil {
		return "", err
	}
	loader, err := interpreter(bin)
	if img.programName() == kubeName {
		if err == nil {
			return "", fmt.Errorf("%s needs %s, want a static program", programPath, loader)
		}
		return "static", nil
	}
	if err != nil {
		return "", err
	}
	if _, err := img.openELF(loader); err != nil {
		return "", fmt.Errorf("dynamic linker: %w", err)
	}
	seen := map[string]bool{}
	if err := img.resolveLibraries(bin, programPath, seen); err != nil {
		return "", err
	}
	for name := range seen {
		if strings.HasPrefix(name, "libnvidia") || strings.HasPrefix(name, "libcuda") {
			return "", fmt.Errorf("%s is required at the start", name)
		}
	}
	return fmt.Sprintf("%s and %d libraries", path.Base(loader), len(seen)), nil
}

// interpreter returns the path of the dynamic linker.
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
	return "", errors.New("statically linked, cannot load the driver's library")
}

// resolveLibraries checks the libraries of a file, recursively.
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
			return fmt.Errorf("%s: %w", name, err)
		}
		if err := checkSymbolVersions(parsed, library, needs); err != nil {
			return fmt.Errorf("%s: %w", name, err)
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

// libraryDir returns the folder of Debian's libraries, into which NVIDIA's runtime mounts the driver's libraries.
func (i *ociImage) libraryDir() string {
	return "/usr/lib/" + map[string]string{"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}[i.config.Architecture]
}

// findLibrary finds a library in the default folders of Debian's dynamic linker.
func (i *ociImage) findLibrary(name string, machine elf.Machine) (*elf.File, error) {
	for _, folder := range []string{i.libraryDir(), "/lib", "/usr/lib"} {
		parsed, err := i.openELF(path.Join(folder, name))
		if err == nil && parsed.Machine == machine {
			return parsed, nil
		}
	}
	return nil, fmt.Errorf("%s is missing", name)
}

// checkSymbolVersions checks that a library defines all required symbol versions.
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
				return fmt.Errorf("%s lacks %s", name, version.Dep)
			}
		}
	}
	return nil
}
