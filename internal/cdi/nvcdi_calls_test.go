package cdi_test

import (
	"encoding/json"
	"errors"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const (
	nvcdiPackage = "github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi"
	dgpuPackage  = "github.com/NVIDIA/nvidia-container-toolkit/internal/platform-support/dgpu"
)

// Reasons why nvml_adapter.go does not implement a method.
const (
	implemented = ""
	onlyByID    = "for queries by id; podgauge queries all devices of an inventory with a single GPU"
	onlyMIG     = "for MIG devices; the adapter has none"
	onlyTegra   = "for Tegra's mode"
)

// nvcdiMethods lists the methods of go-nvml, go-nvlib and nvcdi's wrappers that
// nvcdi calls. A method without an implementation in nvml_adapter.go is a nil
// pointer, so new calls in an nvcdi update need a review.
var nvcdiMethods = map[string]string{
	"Interface.Init":                   implemented,
	"Interface.Shutdown":               implemented,
	"Interface.SystemGetDriverVersion": implemented,
	"Interface.VisitDevices":           implemented,
	"Interface.VisitMigDevices":        implemented,
	"Interface.NewDeviceByUUID":        implemented,
	"Device.GetUUID":                   implemented,
	"Device.GetMinorNumber":            implemented,
	"Device.IsMigEnabled":              implemented,
	"Device.IsCoherent":                implemented,
	"requiredInfo.GetMinorNumber":      implemented,
	"requiredInfo.GetPCIBusID":         implemented,
	"requiredInfo.getDevNodePath":      implemented + "by nvcdi, from the minor",

	"Interface.DeviceGetHandleByIndex":          onlyByID,
	"Interface.DeviceGetHandleByUUID":           onlyByID,
	"Interface.NewDevice":                       onlyByID,
	"Device.GetIndex":                           onlyByID,
	"Device.IsMigDeviceHandle":                  onlyByID,
	"Device.GetMigDeviceHandleByIndex":          onlyByID,
	"Device.GetDeviceHandleFromMigDeviceHandle": onlyByID,
	"Interface.NewMigDevice":                    onlyByID,

	"Interface.NewMigDeviceByUUID":     onlyMIG,
	"Device.GetGpuInstanceId":          onlyMIG,
	"Device.GetComputeInstanceId":      onlyMIG,
	"MigDevice.GetProfile":             onlyMIG,
	"MigProfile.GetInfo":               onlyMIG,
	"requiredMigInfo.getDevNodePath":   onlyMIG,
	"requiredMigInfo.getPCIBusID":      onlyMIG,
	"requiredMigInfo.getPlacementInfo": onlyMIG,

	"UUIDer.GetUUID": "for libnvidia-sandboxutils, which is disabled",

	"Interface.DeviceGetCount":             onlyTegra,
	"Interface.SystemGetCudaDriverVersion": onlyTegra,
	"Device.GetName":                       onlyTegra,
	"Device.GetPciInfo":                    onlyTegra,
}

// listedPackage is a package in the output of go list.
type listedPackage struct {
	ImportPath, Dir, Export string
	GoFiles                 []string
}

func TestNVCDICalls(t *testing.T) {
	packages := listPackages(t)
	got := map[string]bool{}
	for _, name := range []string{nvcdiPackage, dgpuPackage} {
		for _, selection := range selections(t, packages, packages[name]) {
			f, isFunc := selection.Obj().(*types.Func)
			if !isFunc || f.Pkg() == nil || !isDriver(f.Pkg().Path()) {
				continue
			}
			if receiver, isNamed := f.Signature().Recv().Type().(*types.Named); isNamed && types.IsInterface(receiver) {
				got[receiver.Obj().Name()+"."+f.Name()] = true
			}
		}
	}
	for call := range got {
		if _, known := nvcdiMethods[call]; !known {
			t.Errorf("nvcdi calls %s, which nvcdiMethods lacks", call)
		}
	}
	for call := range nvcdiMethods {
		if !got[call] {
			t.Errorf("nvcdi does not call %s, which nvcdiMethods lists", call)
		}
	}
}

// isDriver reports whether a package has interfaces of the driver.
func isDriver(path string) bool {
	return path == "github.com/NVIDIA/go-nvml/pkg/nvml" || path == "github.com/NVIDIA/go-nvlib/pkg/nvlib/device" ||
		path == dgpuPackage
}

// selections returns the type-checked selector expressions of a package.
func selections(
	t *testing.T, packages map[string]listedPackage, p listedPackage,
) map[*ast.SelectorExpr]*types.Selection {
	t.Helper()
	set := token.NewFileSet()
	var files []*ast.File
	for _, name := range p.GoFiles {
		file, err := parser.ParseFile(set, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, file)
	}
	imports := importer.ForCompiler(set, "gc",
		func(path string) (io.ReadCloser, error) { return os.Open(packages[path].Export) })
	info := &types.Info{Selections: map[*ast.SelectorExpr]*types.Selection{}}
	if _, err := (&types.Config{Importer: imports}).Check(p.ImportPath, set, files, info); err != nil {
		t.Fatal(err)
	}
	return info.Selections
}

func listPackages(t *testing.T) map[string]listedPackage {
	t.Helper()
	out, err := exec.Command("go", "list", "-export", "-deps", "-json=ImportPath,Dir,Export,GoFiles",
		nvcdiPackage).Output()
	if err != nil {
		t.Fatalf("list packages: %v", err)
	}
	packages := map[string]listedPackage{}
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p listedPackage
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return packages
		} else if err != nil {
			t.Fatal(err)
		}
		packages[p.ImportPath] = p
	}
}
