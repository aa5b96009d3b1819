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

// nvmlFunction is a function of NVML's header.
type nvmlFunction struct {
	name    string
	returns string // "nvmlReturn_t" with one exception
	params  string // "nvmlDevice_t device, unsigned int *power"
}

var (
	commentPattern     = regexp.MustCompile(`(?s)/\*.*?\*/|//[^\n]*`)
	declarationPattern = regexp.MustCompile(
		`(?m)^(?:DEPRECATED\([\d.]+\)\s+)?([\w ]+?)\s+DECLDIR\s+([\w *]*?)(nvml\w+)\s*\(([^)]*)\)\s*;`)
	devicePattern = regexp.MustCompile(`^nvmlDevice_t (\w+)`)
	// numberPattern matches the parameters of a function that returns a number
	// of a GPU or GPU part.
	numberPattern = regexp.MustCompile(
		`^nvmlDevice_t (\w+), (?:unsigned int (\w+), )?((?:unsigned )?(?:int|long long)) ?\* ?(\w+)$`)
)

// parseHeader returns the functions of the header, ordered by name.
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

// functionsHeader returns all functions as an X macro.
func functionsHeader(functions []nvmlFunction) string {
	var b strings.Builder
	b.WriteString("#define FUNCTIONS(X)")
	for _, f := range functions {
		fmt.Fprintf(&b, " \\\n    X(%s)", f.name)
	}
	b.WriteString("\n")
	return b.String()
}

// stubSource returns a body for each function, with a number of the scenario or
// NOT_SUPPORTED. The bodies are weak, so that the linker prefers the functions
// of standin.
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
    if (%s && !is_mig_device(%s) && read_result(&call, %s, &number)) {
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

// defaultHeader returns the default scenario and the models as C strings, with
// an X macro of all models.
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

// quoteC returns a text as a C string literal per line.
func quoteC(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		b.WriteString(" \\\n    " + strconv.Quote(line))
	}
	return b.String()
}

// versionScript returns a version script for the linker that exports NVML's
// functions except the hidden functions.
func versionScript(hidden []string) string {
	local := append(slices.Clone(hidden), "*")
	return "{ global: nvml*; local: " + strings.Join(local, "; ") + "; };\n"
}
