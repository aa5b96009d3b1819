package nvmltest

import (
	"bytes"
	"cmp"
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

// libraryName is the file name that programs open.
const libraryName = "libnvidia-ml.so.1"

//go:embed standin
var sources embed.FS

// Build builds the stand-in in dir without the hidden functions, as in an older
// driver, and returns the library's path. Build needs $CC or gcc, and the go
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
	// A rename, so that programs that have loaded the old library keep the old
	// file.
	work, err := os.MkdirTemp(dir, "standin-")
	if err != nil {
		return "", fmt.Errorf("create link folder: %w", err)
	}
	defer func() { _ = os.RemoveAll(work) }() // leftovers are harmless
	if err := o.link(work, hidden); err != nil {
		return "", fmt.Errorf("link the stand-in: %w", err)
	}
	lib = filepath.Join(dir, libraryName)
	return lib, os.Rename(filepath.Join(work, libraryName), lib)
}

// Functions returns the names of all functions that Build can hide.
func Functions() (names []string, err error) {
	o, err := compileOnce()
	for _, f := range o.functions {
		names = append(names, f.name)
	}
	return names, err
}

// LargeMaxGPUs is the largest number of GPUs in a scenario of BuildLarge's
// library.
const LargeMaxGPUs = 64

// BuildLarge builds the stand-in for up to LargeMaxGPUs GPUs in dir, and
// returns the library's path. The library takes more memory than Build's.
// ReadCalls cannot read the library's counts.
func BuildLarge(dir string) (lib string, err error) {
	o, err := compileStandin(fmt.Sprintf("-DMAX_GPUS=%d", LargeMaxGPUs))
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, libraryName), o.link(dir, nil)
}

// compiledObject is the compiled stand-in. Libraries differ only in what they
// export.
type compiledObject struct {
	functions []nvmlFunction
	code      []byte // a relocatable object file
}

// compileOnce compiles the stand-in once per process, because tests build a
// dozen libraries and compiling takes 2 s of CPU.
var compileOnce = sync.OnceValues(func() (compiledObject, error) { return compileStandin() })

func compileStandin(flags ...string) (o compiledObject, err error) {
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
		return o, fmt.Errorf("create compile folder: %w", err)
	}
	defer func() { _ = os.RemoveAll(work) }()
	if err := writeSources(work, o.functions); err != nil {
		return o, fmt.Errorf("write the stand-in's sources: %w", err)
	}
	if o.code, err = compile(work, include, flags); err != nil {
		return o, fmt.Errorf("compile the stand-in: %w", err)
	}
	return o, nil
}

// nvmlHeaderDir returns the folder of go-nvml's nvml.h. With this header the
// stand-in has the functions and structs of the compiled program. Only
// podgauge's module requires go-nvml: elsewhere, Go would download the go.mod
// files of all modules.
func nvmlHeaderDir() (string, error) {
	var dir string
	for _, module := range []string{"github.com/podgauge/podgauge", "github.com/NVIDIA/go-nvml"} {
		out, err := command(dir, "go", "list", "-m", "-f", "{{.Dir}}", module)
		if err != nil {
			return "", fmt.Errorf("find %s: %w", module, err)
		}
		dir = strings.TrimSpace(out)
	}
	return filepath.Join(dir, "pkg", "nvml"), nil
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

// compile returns the stand-in as an object file. Unversioned names stay
// functions of the library, as in go-nvml, and are not mapped to the newest
// version.
func compile(dir, include string, flags []string) ([]byte, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.c"))
	if err != nil {
		return nil, err
	}
	const name = "standin.o"
	args := []string{
		"-std=c11", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-pthread",
		"-DNVML_NO_UNVERSIONED_FUNC_DEFS=1", "-I", include, "-r", "-o", name,
	}
	if err := runCompiler(dir, slices.Concat(args, flags, files)...); err != nil {
		return nil, err
	}
	return os.ReadFile(filepath.Join(dir, name))
}

// link links the library in dir.
func (o compiledObject) link(dir string, hidden []string) error {
	const code, visible = "standin.o", "exports.map"
	if err := os.WriteFile(filepath.Join(dir, code), o.code, 0o600); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, visible), []byte(versionScript(hidden)), 0o600); err != nil {
		return err
	}
	return runCompiler(dir, "-shared", "-pthread", "-Wl,-soname,"+libraryName, "-Wl,--version-script="+visible,
		"-o", libraryName, code)
}

// runCompiler runs the compiler of cgo, so that the stand-in is for the
// architecture of the programs that load it.
func runCompiler(dir string, args ...string) error {
	cc := strings.Fields(cmp.Or(os.Getenv("CC"), "gcc"))
	_, err := command(dir, cc[0], append(cc[1:], args...)...)
	return err
}

// command runs a command and returns the standard output. The error includes
// the standard error output.
func command(dir, name string, args ...string) (string, error) {
	var stderr bytes.Buffer
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w\n%s", name, err, stderr.String())
	}
	return string(out), nil
}
