package repo

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/podgauge/podgauge/internal/dcgm"
	"github.com/podgauge/podgauge/internal/nvml/metric"
	"github.com/podgauge/podgauge/test/helpers/docs"
	"github.com/podgauge/podgauge/test/helpers/testfile"
)

// peerFiles are dcgm-exporter's counters files, in etc/.
var peerFiles = []string{"default-counters.csv", "dcp-metrics-included.csv", "1.x-compatibility-metrics.csv"}

// peerField is a row of peerFields.
type peerField struct {
	file, field, kind string
	isComment         bool
}

// peerFields is a stored list of the fields in peerFiles: file, # for a row in a comment, field, type.
const peerFields = "testdata/dcgm_exporter_fields.csv"

// TestPeerFields compares the stored list, and the default families, with the files of a checkout of dcgm-exporter in the folder
// PODGAUGE_PEERS (make bench-peers); -update writes the list.
func TestPeerFields(t *testing.T) {
	folder := os.Getenv("PODGAUGE_PEERS")
	if folder == "" {
		t.Skip("PODGAUGE_PEERS is not set: make bench-peers")
	}
	var list strings.Builder
	for _, file := range peerFiles {
		text := testfile.Read(t, filepath.Join(folder, "dcgm-exporter/etc", file))
		for line := range strings.Lines(text) {
			row, mark := strings.CutPrefix(strings.TrimSpace(line), "#")
			if cells := strings.SplitN(row, ",", 3); len(cells) == 3 && !strings.Contains(row, "DCGM FIELD") {
				fmt.Fprintf(&list, "%s,%s,%s,%s\n", file, map[bool]string{true: "#"}[mark], strings.TrimSpace(cells[0]), strings.TrimSpace(cells[1]))
			}
		}
		if file != peerFiles[0] {
			continue
		}
		peer, generation := dcgm.Parse(file, text), dcgm.V48
		for _, f := range peer.Families {
			generation = max(generation, f.Generations[0])
		}
		own := dcgm.Defaults(generation)
		for _, want := range peer.Families {
			i := slices.IndexFunc(own.Families, func(f dcgm.Family) bool { return f.Name == want.Name })
			if i < 0 || own.Families[i].Type != want.Type || own.Families[i].Help != want.Help {
				t.Errorf("%s: want a default family of type %s with help %q", want.Name, want.Type, want.Help)
			}
		}
		if len(own.Families) != len(peer.Families) {
			t.Errorf("got %d default families, want %d", len(own.Families), len(peer.Families))
		}
	}
	testfile.CheckGolden(t, *update, peerFields, list.String())
}

func readPeerFields(t *testing.T) (rows []peerField) {
	t.Helper()
	for line := range strings.Lines(testfile.Read(t, peerFields)) {
		cells := strings.Split(strings.TrimSpace(line), ",")
		rows = append(rows, peerField{cells[0], cells[2], cells[3], cells[1] == "#"})
	}
	return rows
}

// TestDCGMDefaults checks the default families of 4.8 against the stored list of the peer's.
func TestDCGMDefaults(t *testing.T) {
	var want, got []string
	for _, row := range readPeerFields(t) {
		if row.file == peerFiles[0] && !row.isComment && row.field != "DCGM_FI_DEV_VGPU_LICENSE_STATUS" {
			want = append(want, row.field+" "+row.kind)
		}
	}
	for _, f := range dcgm.Defaults(dcgm.V48).Families {
		got = append(got, f.Name+" "+string(f.Type))
	}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("default families: got %q, want %q", got, want)
	}
}

// TestDCGMPage checks the tables in docs/reference/dcgm.md, and that each field derives from rows of the NVML backend.
func TestDCGMPage(t *testing.T) {
	rows := map[string]bool{}
	for _, m := range metric.MetricsPerLink() {
		rows[m.Selector()] = true
	}
	peer, others := &strings.Builder{}, &strings.Builder{}
	peer.WriteString("|field|since 4.9|default, dcp, 1.x|answer|in PromQL|\n|---|---|---|---|---|\n")
	others.WriteString("|field|since 4.9|answer|in PromQL|\n|---|---|---|---|\n")
	listed := map[string]bool{}
	for _, row := range readPeerFields(t) {
		f, _ := dcgm.Find(row.field)
		name := row.field
		if f != nil {
			name = f.Names[dcgm.V48].Name
		}
		if listed[name] {
			continue
		}
		listed[name] = true
		fmt.Fprintf(peer, "%s|%s|%s\n", nameCells(f, name), peerFileCell(t, name), answerCells(f, name))
	}
	var unknown []string
	for i := range dcgm.Fields {
		f := &dcgm.Fields[i]
		name := f.Names[dcgm.V48].Name
		for _, s := range slices.Concat(f.Sources, f.Per) {
			if !rows[s.Selector] && !f.Xid {
				t.Errorf("%s derives from %s, which is not a row of NVML", name, s.Selector)
			}
		}
		if furtherLink.MatchString(name) {
			continue
		}
		if f.Names[dcgm.V49].Name == "" {
			unknown = append(unknown, "- `"+name+"`\n")
		}
		if !listed[name] {
			fmt.Fprintf(others, "%s|%s\n", nameCells(f, name), answerCells(f, name))
		}
	}
	docs.CheckTables(t, *update, "../../docs/reference/dcgm.md", map[string]string{
		"peer": peer.String(), "others": others.String(), "unknown": strings.Join(unknown, ""),
	})
}

// furtherLink matches the fields of NVLinks 1 to 17.
var furtherLink = regexp.MustCompile(`NVLINK.*_L[1-9]`)

// peerFileCell returns the files with a field: yes, or # in a comment.
func peerFileCell(t *testing.T, name string) string {
	t.Helper()
	cells := make([]string, len(peerFiles))
	for i, file := range peerFiles {
		cells[i] = "–"
		for _, row := range readPeerFields(t) {
			if f, _ := dcgm.Find(row.field); row.file == file && (row.field == name || f != nil && f.Names[dcgm.V48].Name == name) {
				cells[i] = map[bool]string{true: "#", false: "yes"}[row.isComment]
			}
		}
	}
	return strings.Join(cells, ", ")
}

func nameCells(f *dcgm.Field, name string) string {
	renamed := ""
	if f != nil {
		renamed = "`" + f.Names[dcgm.V49].Name + "`"
	}
	switch renamed {
	case "``":
		renamed = "unknown"
	case "`" + name + "`":
		renamed = ""
	}
	return "|`" + name + "`|" + renamed
}

// answerCells returns podgauge's answer, and the field in PromQL.
func answerCells(f *dcgm.Field, name string) string {
	switch {
	case f == nil:
		return "not possible: " + dcgm.ReasonFor(name) + "||"
	case f.Missing == "podgauge does not read it":
		return "not read||"
	case f.Missing != "":
		return "not possible: " + f.Missing + "||"
	case f.InfoLabel != "":
		return "served|label `" + f.InfoLabel + "` of `nvidia_gpu_info`|"
	}
	answer := "served"
	scale := f.Names[dcgm.V48].Scale
	if scale != 1 || f.Rate {
		answer = "translated"
	}
	if f.Note != "" {
		answer += "; " + f.Note
	}
	expression := sumText(f.Sources, f.Rate)
	if len(f.Per) > 0 {
		expression += " / (" + sumText(f.Per, false) + ")"
	}
	if scale != 1 && len(f.Sources) > 1 {
		expression = "(" + expression + ")"
	}
	if f.Xid {
		expression = "`nvidia_gpu_xid_errors_total`, `nvidia_gpu_xid_last_timestamp_seconds`"
		return answer + "|" + expression + "|"
	}
	if scale != 1 {
		expression = scaleText(scale) + " * " + expression
	}
	return answer + "|`" + expression + "`|"
}

// scaleText returns a scale in PromQL, as a quotient if it is one of binary units.
func scaleText(scale float64) string {
	switch scale {
	case 1.0 / (1 << 20):
		return "1 / 2^20"
	case 1.0 / 1024 / 1000:
		return "1 / 1024000"
	}
	return strconv.FormatFloat(scale, 'g', -1, 64)
}

// sumText returns the sum of sources. Series of one family differ in a label, which no operator would match.
func sumText(sources []dcgm.Source, rate bool) (text string) {
	plus := " + "
	if len(sources) > 1 && sources[0].Family() == sources[1].Family() {
		plus = " or "
		_, labels, _ := strings.Cut(sources[0].Selector, "{")
		label, _, _ := strings.Cut(labels, "=")
		defer func() { text = "sum without (" + label + ") (" + text + ")" }()
	}
	for _, s := range sources {
		term := s.Selector
		if rate {
			term += "[1m]"
			term = "rate(" + term + ")"
		}
		switch {
		case s.Weight == -1:
			text += " - " + term
			continue
		case s.Weight != 1:
			term = strconv.FormatFloat(s.Weight, 'g', -1, 64) + " * " + term
		}
		if text != "" {
			text += plus
		}
		text += term
	}
	return text
}
