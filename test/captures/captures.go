// Package captures reads outputs of nvidia-smi on real GPUs, and compares them
// with the series of a model: which readings exist, units, values and ranges.
//
// The files are from https://github.com/utkuozdemir/nvidia_gpu_exporter,
// internal/captures, with masked UUIDs and serials. They are not part of this
// repository.
package captures

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// EnvDir is the environment variable with the folder of the files. The default
// is shared/captures beside the repository.
const EnvDir = "PODGAUGE_CAPTURES"

// Capture is the output about a machine with one GPU.
type Capture struct {
	Model string // of the stand-in
	// Symbols are the functions of the driver's library; empty: not captured.
	Symbols    []string
	Idle, Load State
}

// State is the output at a moment.
type State struct {
	Readings
	MIGDevices []MIGDevice
	Processes  []Process
}

// Readings are texts by the name in nvidia-smi --query-gpu, and by the path in
// nvidia-smi -q: "Fabric/Health/Summary". "N/A" is the GPU's lack of a reading;
// nvidia-smi may lack the name as well.
type Readings map[string]string

// MIGDevice is a MIG device with its readings in nvidia-smi -q.
type MIGDevice struct {
	Readings
	Profile       string
	Index, GI, CI int
}

// Process is a process of nvidia-smi -q. GI and CI are -1 on a whole GPU. Kind
// is C, G or C+G.
type Process struct {
	PID, GI, CI int
	Kind        string
	MemoryMiB   int
}

// models are the models of the stand-in for captured GPUs.
var models = map[string]string{
	"geforce-rtx-2080-super": "rtx2080s",
	"geforce-rtx-4080-super": "rtx4080s",
	"l40s":                   "l40s",
	"h100-80gb-hbm3":         "h100",
	"h100-mig":               "h100",
	"h200":                   "h200",
	"h200-mig":               "h200",
}

// Read returns all captures by the model and the driver in their names, as
// "l40s__595.80". The test is skipped without the folder. The repository is at
// root.
func Read(t testing.TB, root string) map[string]*Capture {
	t.Helper()
	dir := cmp.Or(os.Getenv(EnvDir), filepath.Join(root, "..", "shared", "captures"))
	files, err := filepath.Glob(filepath.Join(dir, "linux-*__nvidia-*.txt"))
	if err != nil || len(files) == 0 {
		t.Skipf("no captures of real GPUs in %s (error %v); %s selects the folder", dir, err, EnvDir)
	}
	all := map[string]*Capture{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		_, name, _ := strings.Cut(strings.TrimSuffix(filepath.Base(file), ".txt"), "__nvidia-")
		c := parse(string(text))
		gpu, _, _ := strings.Cut(name, "__")
		if c.Model = models[gpu]; c.Model == "" {
			t.Errorf("%s: the stand-in has no model", name)
			continue
		}
		all[name] = c
	}
	return all
}

// sectionPattern matches the frame of a section: "# idle :: query (-q)".
var sectionPattern = regexp.MustCompile(`(?m)^#{80}\n# (\w+ :: [^\n]*)\n(?:# [^\n]*\n)*#{80}\n`)

func parse(text string) *Capture {
	sections := map[string]string{}
	frames := sectionPattern.FindAllStringSubmatchIndex(text, -1)
	for i, f := range frames {
		end := len(text)
		if i+1 < len(frames) {
			end = frames[i+1][0]
		}
		sections[text[f[2]:f[3]]] = text[f[1]:end]
	}
	list, links := sections["capabilities :: list (-L)"], sections["capabilities :: nvlink -s"]
	return &Capture{
		Symbols: strings.Fields(sections["capabilities :: nvml-symbols"]),
		Idle:    parseState(sections, "idle", list, links),
		Load:    parseState(sections, "load", list, links),
	}
}

var (
	profilePattern = regexp.MustCompile(`MIG (\S+) +Device +(\d+):`)
	linkPattern    = regexp.MustCompile(`Link \d+: ([\d.]+ GB/s)`)
)

func parseState(sections map[string]string, name, list, links string) State {
	readings := parseTree(sections[name+" :: query (-q)"])
	addTable(readings, sections[name+" :: query-gpu (csv, what the exporter parses)"])
	addLinks(readings, links)
	s := State{Readings: readings}
	for i, m := range profilePattern.FindAllStringSubmatch(list, -1) {
		prefix := nth("MIG Device", i+1) + "/"
		d := MIGDevice{Profile: m[1], Readings: Readings{}}
		for key, value := range readings {
			if rest, ok := strings.CutPrefix(key, prefix); ok {
				d.Readings[rest] = value
			}
		}
		d.Index, d.GI, d.CI = d.int("Index"), d.int("GPU Instance ID"), d.int("Compute Instance ID")
		s.MIGDevices = append(s.MIGDevices, d)
	}
	for i := 1; readings[nth("Processes/Process ID", i)] != ""; i++ {
		id := nth("Processes/Process ID", i)
		s.Processes = append(s.Processes, Process{
			PID: readings.int(id), Kind: readings[id+"/Type"], MemoryMiB: readings.int(id + "/Used GPU Memory"),
			GI: readings.int(nth("Processes/GPU instance ID", i)),
			CI: readings.int(nth("Processes/Compute instance ID", i)),
		})
	}
	return s
}

// nth is the key of the nth part with the same path.
func nth(path string, n int) string {
	if n == 1 {
		return path
	}
	return fmt.Sprintf("%s#%d", path, n)
}

// parseTree reads nvidia-smi -q, in which indentation makes the path.
func parseTree(text string) Readings {
	readings, times := Readings{}, map[string]int{}
	type level struct {
		indent int
		path   string
	}
	var open []level
	for line := range strings.Lines(text) {
		name, value, hasValue := strings.Cut(line, " : ")
		indent := len(name) - len(strings.TrimLeft(name, " "))
		for len(open) > 0 && open[len(open)-1].indent >= indent {
			open = open[:len(open)-1]
		}
		path := strings.TrimSpace(name)
		if path == "" || strings.HasPrefix(path, "GPU 0000") { // the only GPU
			continue
		}
		if len(open) > 0 {
			path = open[len(open)-1].path + "/" + path
		}
		times[path]++
		path = nth(path, times[path])
		if hasValue {
			readings[path] = strings.TrimSpace(value)
		}
		open = append(open, level{indent, path})
	}
	return readings
}

// addTable adds the table of nvidia-smi --query-gpu, with a line of names and
// units, and a line of values.
func addTable(readings Readings, table string) {
	names, values, _ := strings.Cut(strings.TrimSpace(table), "\n")
	texts := strings.Split(values, ", ")
	for i, name := range strings.Split(names, ", ") {
		name, _, _ = strings.Cut(name, " [")
		if i < len(texts) {
			readings[name] = strings.Trim(texts[i], "[]")
		}
	}
}

// addLinks adds the number and the speed of NVLinks. A GPU in MIG mode has no
// answer, which is no lack.
func addLinks(readings Readings, text string) {
	links := linkPattern.FindAllStringSubmatch(text, -1)
	switch {
	case len(links) > 0:
		readings["NVLinks"], readings["NVLink Speed"] = strconv.Itoa(len(links)), links[0][1]
	case strings.Contains(text, "does not have or support"):
		readings["NVLinks"], readings["NVLink Speed"] = "N/A", "N/A"
	case strings.Contains(text, "all links are inActive"):
		readings["NVLinks"] = "0"
	}
}

// int returns a number, or -1.
func (r Readings) int(name string) int {
	number, _, _ := strings.Cut(r[name], " ")
	n, err := strconv.Atoi(number)
	if err != nil {
		return -1
	}
	return n
}

// text returns a reading, which a group without readings has as a whole:
// "Remapped Rows: N/A".
func (r Readings) text(name string) (text string, ok bool) {
	for {
		if text, ok = r[name]; ok {
			return text, ok
		}
		at := strings.LastIndex(name, "/")
		if at < 0 {
			return "", false
		}
		if name = name[:at]; r[name] != "N/A" {
			return "", false
		}
	}
}

// units of nvidia-smi in base units.
var units = map[string]float64{
	"": 1, "MiB": 1 << 20, "W": 1, "MHz": 1e6, "C": 1, "%": 0.01, "us": 1e-6, "GB/s": 1e9, "bank(s)": 1,
}

// words are states with a number: 1 is the state that the series is about.
var words = map[string]float64{
	"Enabled": 1, "Active": 1, "Yes": 1, "Completed": 1, "None": 1, "Default": 1,
	"Disabled": 0, "Not Active": 0, "No": 0,
}

// value returns a reading in base units, and the weight of its last digit.
func value(text string) (v, digit float64, err error) {
	if v, ok := words[text]; ok {
		return v, 0, nil
	}
	number, unit, _ := strings.Cut(strings.TrimSuffix(strings.TrimPrefix(text, "P"), "x"), " ")
	scale, known := units[unit]
	if v, err = strconv.ParseFloat(number, 64); err != nil || !known {
		return 0, 0, fmt.Errorf("parse %q: unknown form", text)
	}
	digit = scale
	if _, decimals, ok := strings.Cut(number, "."); ok {
		for range decimals {
			digit /= 10
		}
	}
	return v * scale, digit, nil
}
