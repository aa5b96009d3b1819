package nvmltest

import (
	"bytes"
	"embed"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// libraryName is what go-nvml and everyone else opens.
const libraryName = "libnvidia-ml.so.1"

//go:embed standin
var sources embed.FS

// Build compiles the stand-in into dir and returns the library's path. The hidden
// functions are left out, as an older driver lacks them. It needs gcc, and the go
// command in a module that requires go-nvml, for NVML's header.
func Build(dir string, hidden ...string) (lib string, err error) {
	include, err := headerDir()
	if err != nil {
		return "", err
	}
	header, err := os.ReadFile(filepath.Join(include, "nvml.h"))
	if err != nil {
		return "", fmt.Errorf("read NVML's header: %w", err)
	}
	functions := parseHeader(string(header))
	for _, name := range hidden {
		if !slices.ContainsFunc(functions, func(f function) bool { return f.name == name }) {
			return "", fmt.Errorf("hide %s: NVML has no such function", name)
		}
	}
	// Compiled beside its place, it gets there by one rename: a program that has
	// the old one open keeps it whole.
	work, err := os.MkdirTemp(dir, "standin-")
	if err != nil {
		return "", fmt.Errorf("make a folder to compile in: %w", err)
	}
	defer func() { _ = os.RemoveAll(work) }() // what is left over does no harm
	if err := writeSources(work, functions, hidden); err != nil {
		return "", fmt.Errorf("write the stand-in's sources: %w", err)
	}
	if err := compile(work, include); err != nil {
		return "", fmt.Errorf("compile the stand-in: %w", err)
	}
	lib = filepath.Join(dir, libraryName)
	return lib, os.Rename(filepath.Join(work, libraryName), lib)
}

// headerDir is where go-nvml keeps nvml.h: the stand-in has the very functions
// and structs that the program was compiled against.
func headerDir() (string, error) {
	out, err := command("", "go", "list", "-m", "-f", "{{.Dir}}", "github.com/NVIDIA/go-nvml")
	if err != nil {
		return "", fmt.Errorf("look for go-nvml: %w", err)
	}
	return filepath.Join(strings.TrimSpace(out), "pkg", "nvml"), nil
}

func writeSources(dir string, functions []function, hidden []string) error {
	embedded, err := fs.Sub(sources, "standin")
	if err != nil {
		return err
	}
	if err := os.CopyFS(dir, embedded); err != nil {
		return err
	}
	defaults, err := defaultHeader(embedded)
	if err != nil {
		return err
	}
	for name, content := range map[string]string{
		"functions.h": functionsHeader(functions),
		"default.h":   defaults,
		"stubs.c":     stubs(functions),
		"exports.map": exports(hidden),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// compile never asks for the unversioned names to be mapped to the newest, as
// go-nvml does not: both are functions of the library.
func compile(dir, include string) error {
	files, err := filepath.Glob(filepath.Join(dir, "*.c"))
	if err != nil {
		return err
	}
	args := []string{
		"-std=c11", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-pthread",
		"-DNVML_NO_UNVERSIONED_FUNC_DEFS=1", "-I", include,
		"-Wl,-soname," + libraryName, "-Wl,--version-script=exports.map", "-o", libraryName,
	}
	_, err = command(dir, "gcc", append(args, files...)...)
	return err
}

// command runs a command and returns what it prints. What it complains about
// becomes part of the error.
func command(dir, name string, args ...string) (string, error) {
	var complaint bytes.Buffer
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	cmd.Stderr = &complaint
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w\n%s", name, err, complaint.String())
	}
	return string(out), nil
}
