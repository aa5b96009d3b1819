package dcgm_test

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/podgauge/podgauge/internal/dcgm"
)

// TestParse checks each kind of line of a counters file.
func TestParse(t *testing.T) {
	const good, help = "DCGM_FI_DEV_GPU_TEMP, gauge, Temperature.", "Temperature."
	for line, want := range map[string]struct{ err, unserved, help string }{
		good: {help: help},
		"\uFEFFDCGM_FI_DEV_GPU_TEMP,gauge,Temperature.\r\n": {help: help},
		"  DCGM_FI_DEV_GPU_TEMP ,\tgauge , Temperature. ":   {help: help},
		`DCGM_FI_DEV_GPU_TEMP, gauge, "Degrees, Celsius"`:   {help: "Degrees, Celsius"},
		"DCGM_FI_DEV_GPU_TEMP, gauge, Degrees, Celsius":     {help: "Degrees, Celsius"},
		"dcgm_gpu_temp,counter,Temperature.":                {help: help},
		"DCGM_FI_DEV_GPU_TEMP_CELSIUS,label,Temperature.":   {help: help},
		"":                                     {},
		"  # DCGM_FI_DEV_GPU_TEMP,gauge":       {},
		"DCGM_FI_DEV_GPU_TEMP":                 {err: "file:1: got 1 of field, type, help"},
		"DCGM_FI_DEV_GPU_TEMP gauge, x":        {err: "file:1: got 2 of field, type, help"},
		",gauge,x":                             {err: `file:1: "" is not the name of a field`},
		"a b,gauge,x":                          {err: `file:1: "a b" is not the name of a field`},
		"\xff,gauge,x":                         {err: `file:1: "\uFFFD" is not the name of a field`},
		"DCGM_FI_DEV_GPU_TEMP,gage,x":          {err: `file:1: type "gage" of DCGM_FI_DEV_GPU_TEMP: expected gauge, counter or label`},
		`DCGM_FI_DEV_GPU_TEMP,gauge,"x`:        {err: `file:1: expected field, type, help: extraneous or missing " in quoted-field`},
		good + "\n" + good:                     {err: "file:2: DCGM_FI_DEV_GPU_TEMP is already on line 1", help: help},
		"DCGM_FI_DEV_GPU_TEMP,histogram,x":     {unserved: "a field has a single value: use type gauge or counter"},
		"DCGM_FI_DEV_SERIAL,gauge,x":           {unserved: "a text: use type label"},
		"DCGM_FI_DEV_NVML_INDEX,gauge,Index.":  {help: "Index."},
		"DCGM_FI_DEV_BRAND,label,x":            {unserved: "podgauge does not read it"},
		"DCGM_FI_DEV_NVSWITCH_TEMP,gauge,x":    {unserved: "field of an NVSwitch"},
		"DCGM_FI_DEV_CPU_TEMP_CURRENT,gauge,x": {unserved: "field of a CPU"},
		"DCGM_FI_DEV_CPU_AFFINITY_0,gauge,x":   {unserved: "podgauge does not read it"},
		"DCGM_EXP_P2P_STATUS,gauge,x":          {unserved: "family of dcgm-exporter itself"},
		"some_other_field,gauge,x":             {unserved: "not in podgauge's table of DCGM's fields"},
	} {
		c := dcgm.Parse("file", line)
		var got struct{ err, unserved, help string }
		for _, err := range c.Errors {
			got.err += err.Error()
		}
		for _, u := range c.Unserved {
			got.unserved += u.Reason
		}
		for _, f := range c.Families {
			got.help += f.Help
		}
		if want.err = strings.ReplaceAll(want.err, `\uFFFD`, "\uFFFD"); got != want {
			t.Errorf("%q: got %q, want %q", line, got, want)
		}
	}
}

// TestGenerations checks which labels the families of a file have.
func TestGenerations(t *testing.T) {
	const mixed = "DCGM_FI_DEV_GPU_TEMP,gauge,x\nDCGM_FI_DEV_SM_CLOCK_HERTZ,gauge,x"
	for _, c := range []struct {
		file, flag string
		want       [][]dcgm.Generation
	}{
		{"DCGM_FI_DEV_GPU_TEMP,gauge,x\nDCGM_FI_DEV_ROW_REMAP_PENDING,gauge,x", "", [][]dcgm.Generation{{dcgm.V48}, {dcgm.V48}}},
		{mixed, "", [][]dcgm.Generation{{dcgm.V49}, {dcgm.V49}}},
		{mixed, "4.8", [][]dcgm.Generation{{dcgm.V48}, {dcgm.V48}}},
		{mixed, "both", [][]dcgm.Generation{{dcgm.V48}, {dcgm.V49}}},
		{"DCGM_FI_DEV_SERIAL,label,x\nDCGM_FI_DEV_MIG_MODE,gauge,x", "both", [][]dcgm.Generation{{dcgm.V48, dcgm.V49}, {dcgm.V48, dcgm.V49}}},
		{"DCGM_FI_DEV_GPU_TEMP,gauge,x", "TRUE", [][]dcgm.Generation{{dcgm.V48}}},
	} {
		generations, err := dcgm.ParseGenerations(c.flag)
		if err != nil {
			t.Error(err)
		}
		var got [][]dcgm.Generation
		for _, f := range dcgm.Parse("file", c.file, generations...).Families {
			got = append(got, f.Generations)
		}
		if !slices.EqualFunc(got, c.want, slices.Equal[[]dcgm.Generation]) {
			t.Errorf("%q with %q: got %v, want %v", c.file, c.flag, got, c.want)
		}
	}
}

// TestProblems checks that a long list of problems names the first hundred of a kind.
func TestProblems(t *testing.T) {
	var file strings.Builder
	for i := range 150 {
		fmt.Fprintf(&file, "a%d,gauge,x\nb%d,gauge\n", i, i)
	}
	c := dcgm.Parse("file", file.String())
	problems := c.Problems()
	if len(problems) != 102 || strings.Count(problems[100], ", ") != 99 || problems[101] != "100 more lines" || len(c.FirstUnserved()) != 100 {
		t.Errorf("got %d problems, the last ones %q", len(problems), problems[max(0, len(problems)-2):])
	}
}

// FuzzParse checks that each line of a file is either served, unserved, wrong or a comment, and that names are unique
// and valid as labels of a metric.
func FuzzParse(f *testing.F) {
	name := regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_]*$`)
	f.Add("DCGM_FI_DEV_GPU_TEMP, gauge, Temperature.\n# comment\n\nDCGM_FI_DEV_SERIAL,label,Serial\nDCGM_FI_DEV_GPU_TEMP")
	f.Add("\uFEFFdcgm_gpu_temp,gauge,\"a, b\"\r\n,,\n\"\n\xff,gauge,x\nDCGM_EXP_X,counter,a,b")
	f.Fuzz(func(t *testing.T, text string) {
		c := dcgm.Parse("file", text)
		lines := 0
		for line := range strings.Lines(strings.TrimPrefix(text, "\uFEFF")) {
			if line = strings.TrimSpace(line); line != "" && line[0] != '#' {
				lines++
			}
		}
		if answers := len(c.Families) + len(c.Unserved) + len(c.Errors); answers != lines {
			t.Fatalf("%q: got %d answers for %d lines", text, answers, lines)
		}
		seen := map[string]bool{}
		for _, family := range c.Families {
			if !name.MatchString(family.Name) || seen[family.Name] || len(family.Generations) != 1 {
				t.Fatalf("%q: got family %+v", text, family)
			}
			seen[family.Name] = true
		}
		for _, u := range c.Unserved {
			if u.Reason == "" || strings.ContainsAny(u.Field, ", \n\"") || seen[u.Field] {
				t.Fatalf("%q: got unserved %+v", text, u)
			}
			seen[u.Field] = true
		}
	})
}
