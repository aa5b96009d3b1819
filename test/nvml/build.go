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
	"sync"
)

// libraryName is what go-nvml and everyone else opens.
const libraryName = "libnvidia-ml.so.1"

//go:embed standin
var sources embed.FS

// Build makes the stand-in in dir and returns the library's path. The hidden
// functions are left out, as an older driver lacks them. It needs gcc, and the go
// command in a module that requires go-nvml, for NVML's header.
func Build(dir string, hidden ...string) (lib string, err error) {
	o, err := compileOnce()
	if err != nil {
		return "", err
	}
	for _, name := range hidden {
		if !slices.ContainsFunc(o.functions, func(f nvmlFunction) bool { return f.name == name }) {
			return "", fmt.Errorf("hide %s: NVML has no such function", name)
		}
	}
	// Linked beside its place, it gets there by one rename: a program that has
	// the old one open keeps it whole.
	work, err := os.MkdirTemp(dir, "standin-")
	if err != nil {
		return "", fmt.Errorf("make a folder to link in: %w", err)
	}
	defer func() { _ = os.RemoveAll(work) }() // what is left over does no harm
	if err := o.link(work, hidden); err != nil {
		return "", fmt.Errorf("link the stand-in: %w", err)
	}
	lib = filepath.Join(dir, libraryName)
	return lib, os.Rename(filepath.Join(work, libraryName), lib)
}

// compiledObject is the compiled stand-in. Libraries differ only in what they export.
type compiledObject struct {
	functions []nvmlFunction
	code      []byte // a relocatable object file
}

// compileOnce compiles the stand-in once in a process: that takes two seconds of CPU, and tests
// build a dozen libraries.
var compileOnce = sync.OnceValues(func() (o compiledObject, err error) {
	include, err := nvmlHeaderDir()
	if err != nil {
		return o, err
	}
	header, err := os.ReadFile(filepath.Join(include, "nvml.h"))
	if err != nil {
		return o, fmt.Errorf("read NVML's header: %w", err)
	}
	o.functions = parseHeader(string(header))
	work, err := os.MkdirTemp("", "standin-")
	if err != nil {
		return o, fmt.Errorf("make a folder to compile in: %w", err)
	}
	defer func() { _ = os.RemoveAll(work) }()
	if err := writeSources(work, o.functions); err != nil {
		return o, fmt.Errorf("write the stand-in's sources: %w", err)
	}
	if o.code, err = compile(work, include); err != nil {
		return o, fmt.Errorf("compile the stand-in: %w", err)
	}
	return o, nil
})

// nvmlHeaderDir is where go-nvml keeps nvml.h: the stand-in has the very functions
// and structs that the program was compiled against.
func nvmlHeaderDir() (string, error) {
	out, err := command("", "go", "list", "-m", "-f", "{{.Dir}}", "github.com/NVIDIA/go-nvml")
	if err != nil {
		return "", fmt.Errorf("look for go-nvml: %w", err)
	}
	return filepath.Join(strings.TrimSpace(out), "pkg", "nvml"), nil
}

func writeSources(dir string, functions []nvmlFunction) error {
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
		"stubs.c":     stubSource(functions),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// compile never asks for the unversioned names to be mapped to the newest, as
// go-nvml does not: both are functions of the library.
func compile(dir, include string) ([]byte, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.c"))
	if err != nil {
		return nil, err
	}
	const name = "standin.o"
	args := []string{
		"-std=c11", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-pthread",
		"-DNVML_NO_UNVERSIONED_FUNC_DEFS=1", "-I", include, "-r", "-o", name,
	}
	if _, err := command(dir, "gcc", append(args, files...)...); err != nil {
		return nil, err
	}
	return os.ReadFile(filepath.Join(dir, name))
}

// link makes the library in dir.
func (o compiledObject) link(dir string, hidden []string) error {
	const code, visible = "standin.o", "exports.map"
	if err := os.WriteFile(filepath.Join(dir, code), o.code, 0o600); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, visible), []byte(versionScript(hidden)), 0o600); err != nil {
		return err
	}
	_, err := command(dir, "gcc", "-shared", "-pthread", "-Wl,-soname,"+libraryName, "-Wl,--version-script="+visible, "-o", libraryName, code)
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
