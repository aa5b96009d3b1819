package nvmltest

import (
	"cmp"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// nvmlFunction is one that NVML's header declares.
type nvmlFunction struct {
	name    string
	returns string // "nvmlReturn_t", but for one
	params  string // "nvmlDevice_t device, unsigned int *power"
}

var (
	commentPattern     = regexp.MustCompile(`(?s)/\*.*?\*/|//[^\n]*`)
	declarationPattern = regexp.MustCompile(`(?m)^(?:DEPRECATED\([\d.]+\)\s+)?([\w ]+?)\s+DECLDIR\s+([\w *]*?)(nvml\w+)\s*\(([^)]*)\)\s*;`)
	devicePattern      = regexp.MustCompile(`^nvmlDevice_t (\w+)`)
	// numberPattern matches the parameters of a function that returns a number of a GPU, or of a part of it.
	numberPattern = regexp.MustCompile(`^nvmlDevice_t (\w+), (?:unsigned int (\w+), )?((?:unsigned )?(?:int|long long)) ?\* ?(\w+)$`)
)

// parseHeader returns the functions that the header declares, ordered by name.
func parseHeader(header string) []nvmlFunction {
	var functions []nvmlFunction
	for _, m := range declarationPattern.FindAllStringSubmatch(commentPattern.ReplaceAllString(header, ""), -1) {
		functions = append(functions, nvmlFunction{
			name:    m[3],
			returns: strings.TrimSpace(m[1] + " " + m[2]),
			params:  strings.Join(strings.Fields(m[4]), " "),
		})
	}
	slices.SortFunc(functions, func(a, b nvmlFunction) int { return cmp.Compare(a.name, b.name) })
	return functions
}

// functionsHeader lists all functions as an X macro.
func functionsHeader(functions []nvmlFunction) string {
	var b strings.Builder
	b.WriteString("#define FUNCTIONS(X)")
	for _, f := range functions {
		fmt.Fprintf(&b, " \\\n    X(%s)", f.name)
	}
	b.WriteString("\n")
	return b.String()
}

// stubSource gives every function a body: a number of the scenario if the function returns one, otherwise NOT_SUPPORTED. Bodies are weak:
// the linker prefers those of standin.
func stubSource(functions []nvmlFunction) string {
	var b strings.Builder
	b.WriteString("#include \"call.h\"\n\n#pragma GCC diagnostic ignored \"-Wunused-parameter\"\n")
	for _, f := range functions {
		if f.returns != "nvmlReturn_t" {
			continue
		}
		gpu := "NO_GPU"
		if m := devicePattern.FindStringSubmatch(f.params); m != nil {
			gpu = "gpu_of(" + m[1] + ")"
		}
		number := ""
		if m := numberPattern.FindStringSubmatch(f.params); m != nil {
			number = fmt.Sprintf(`    int64_t number;
    if (%s && !is_slice(%s) && read_result(&call, %s, &number)) {
        *%s = (%s)number;
        return NVML_SUCCESS;
    }
`, m[4], m[1], cmp.Or(m[2], "0"), m[4], m[3])
		}
		fmt.Fprintf(&b, `
__attribute__((weak)) nvmlReturn_t %s(%s)
{
    CALL(%s);
%s    return NVML_ERROR_NOT_SUPPORTED;
}
`, f.name, f.params, gpu, number)
	}
	return b.String()
}

// defaultHeader makes strings of C of the scenario that all begin with and of the
// models, which it lists as an X macro.
func defaultHeader(standin fs.FS) (string, error) {
	defaults, err := fs.ReadFile(standin, "default.scenario")
	if err != nil {
		return "", err
	}
	models, err := fs.Glob(standin, "models/*.scenario")
	if err != nil {
		return "", err
	}
	b := new(strings.Builder)
	fmt.Fprintf(b, "#define DEFAULT_SCENARIO%s\n\n#define MODELS(X)", quoteC(string(defaults)))
	for _, file := range models {
		text, err := fs.ReadFile(standin, file)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(b, " \\\n    X(%q,%s)", strings.TrimSuffix(path.Base(file), ".scenario"), quoteC(string(text)))
	}
	b.WriteString("\n")
	return b.String(), nil
}

// quoteC makes a text a string of C, in pieces of a line each.
func quoteC(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		b.WriteString(" \\\n    " + strconv.Quote(line))
	}
	return b.String()
}

// versionScript is a version script for the linker: it shows NVML's functions, but for
// the hidden ones, and nothing else.
func versionScript(hidden []string) string {
	local := append(slices.Clone(hidden), "*")
	return "{ global: nvml*; local: " + strings.Join(local, "; ") + "; };\n"
}
