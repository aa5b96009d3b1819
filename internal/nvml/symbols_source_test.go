package nvml

import (
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/podgauge/podgauge/internal/nvml/lib"
	"github.com/podgauge/podgauge/internal/nvml/metric"
)

const goNVML = "github.com/NVIDIA/go-nvml/pkg/nvml"

// sourceDirs are the packages that call go-nvml.
var sourceDirs = []string{".", "lib", "metric", "collect"}

// allFunctions returns the listed functions and the functions of metrics.
func allFunctions() []string { return slices.Concat(lib.Functions, metric.Symbols()) }

// TestCallsAreListed parses the source of these packages. All called go-nvml
// functions and symbol texts are listed, and all listed functions are called.
// No return code is printed: its text is a call into the library.
func TestCallsAreListed(t *testing.T) {
	files, info := checkSource(t)
	called := map[string]bool{}
	for selector, selection := range info.Selections {
		method := selection.Obj()
		if _, isFunc := method.(*types.Func); !isFunc || method.Pkg() == nil || method.Pkg().Path() != goNVML {
			continue
		}
		symbol, row := listedFunction(selection)
		if symbol != "" && row == "" {
			t.Errorf("%s calls %s, which is not listed", selector.Sel.Name, symbol)
		}
		called[row] = true
	}
	for _, symbol := range directSymbols(files) { // called by name
		called[symbol] = true
	}
	for _, f := range allFunctions() {
		if !called[f] {
			t.Errorf("listed function %s is not called", f)
		}
	}
	for _, object := range info.Uses {
		f, isFunc := object.(*types.Func)
		if !isFunc || f.Pkg() == nil || f.Pkg().Path() != goNVML || f.Signature().Recv() != nil {
			continue
		}
		if name := f.Name(); name != "New" && name != "WithLibraryPath" {
			t.Errorf("nvml.%s uses go-nvml's global library", name)
		}
	}
	for _, file := range files {
		ast.Inspect(file, func(n ast.Node) bool {
			checkNode(t, info, n)
			return true
		})
	}
}

// directSymbols returns the functions that raw_symbols.go resolves.
func directSymbols(files []*ast.File) []string {
	rows := slices.Clone(lib.ProcessListSymbols[:])
	for _, file := range files {
		ast.Inspect(file, func(n ast.Node) bool {
			call, is := n.(*ast.CallExpr)
			if !is || types.ExprString(call.Fun) != "lookupSymbol" {
				return true
			}
			if literal, is := call.Args[0].(*ast.BasicLit); is {
				symbol, _ := strconv.Unquote(literal.Value)
				rows = append(rows, symbol)
			}
			return true
		})
	}
	return rows
}

// listedFunction returns the symbol of a go-nvml method, and its listed
// function. A method without a symbol makes no call.
func listedFunction(selection *types.Selection) (symbol, row string) {
	name := selection.Obj().Name()
	switch receiver := selection.Recv().(*types.Named).Obj().Name(); receiver {
	case "Interface":
		if name == "Extensions" {
			return "", ""
		}
		symbol = "nvml" + name
	case "Device":
		symbol = "nvmlDevice" + name
		if strings.HasPrefix(name, "Gpm") {
			symbol = "nvml" + name
		}
	case "GpuInstance":
		symbol = "nvmlGpuInstance" + name
	case "GpuFabricInfoHandler": // GetGpuFabricInfoV returns one, without a call
		symbol = "nvmlDeviceGetGpuFabricInfoV"
	case "EventSet":
		symbol = "nvmlEventSet" + name
	case "ExtendedInterface":
		return "", ""
	default: // for example Return's Error and String
		return receiver + "." + name, ""
	}
	for _, f := range allFunctions() {
		if f == symbol || slices.Contains(lib.OlderVersions[f], symbol) {
			return symbol, f
		}
	}
	return symbol, ""
}

func checkNode(t *testing.T, info *types.Info, n ast.Node) {
	t.Helper()
	switch n := n.(type) {
	case *ast.BasicLit:
		text, err := strconv.Unquote(n.Value)
		if n.Kind != token.STRING || err != nil || !strings.HasPrefix(text, "nvml") ||
			strings.ContainsAny(text, " :/") {
			return
		}
		for _, f := range allFunctions() {
			if f == text || slices.Contains(lib.OlderVersions[f], text) {
				return
			}
		}
		t.Errorf("symbol %q is not listed", text)
	case *ast.CallExpr:
		for _, argument := range n.Args {
			named, isNamed := info.Types[argument].Type.(*types.Named)
			if !isNamed || named.Obj().Name() != "Return" || named.Obj().Pkg().Path() != goNVML {
				continue
			}
			if f, isFunc := info.Types[n.Fun].Type.(*types.Signature); isFunc && f.Variadic() {
				t.Errorf("a Return is printed: %s", types.ExprString(n))
			}
			if info.Types[n.Fun].IsType() && types.IsInterface(info.Types[n.Fun].Type) {
				t.Errorf("a Return becomes an error: %s", types.ExprString(n))
			}
		}
	}
}

// checkSource parses the packages and resolves all types.
func checkSource(t *testing.T) (files []*ast.File, info *types.Info) {
	t.Helper()
	set, byPackage := token.NewFileSet(), map[string][]*ast.File{}
	for _, dir := range sourceDirs {
		names, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			file, err := parser.ParseFile(set, name, nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			files = append(files, file)
			byPackage[dir] = append(byPackage[dir], file)
		}
	}
	exports := exportData(t)
	imports := importer.ForCompiler(set, "gc",
		func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })
	info = &types.Info{
		Types: map[ast.Expr]types.TypeAndValue{}, Uses: map[*ast.Ident]types.Object{},
		Selections: map[*ast.SelectorExpr]*types.Selection{},
	}
	for dir, files := range byPackage {
		if _, err := (&types.Config{Importer: imports, FakeImportC: true}).Check(dir, set, files, info); err != nil {
			t.Fatal(err)
		}
	}
	return files, info
}

// exportData returns the files with the types of imported packages.
func exportData(t *testing.T) map[string]string {
	t.Helper()
	out, err := exec.Command("go", "list", "-export", "-deps", "-f", "{{.ImportPath}} {{.Export}}", ".").Output()
	if err != nil {
		t.Fatalf("list export data: %v", err)
	}
	files := map[string]string{}
	for line := range strings.Lines(string(out)) {
		path, file, _ := strings.Cut(strings.TrimSpace(line), " ")
		files[path] = file
	}
	return files
}
