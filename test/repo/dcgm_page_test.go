package repo

import (
	"cmp"
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
	file, field, kind, help string
	isComment               bool
}

// peerFields is a stored list of the fields in peerFiles: file, # for a row in a comment, field, type, help of a default family.
const peerFields = "testdata/dcgm_exporter_fields.csv"

// TestPeerFields compares the stored list with the files of a checkout of dcgm-exporter in the folder PODGAUGE_PEERS (make bench-peers);
// -update writes the list.
func TestPeerFields(t *testing.T) {
	folder := os.Getenv("PODGAUGE_PEERS")
	if folder == "" {
		t.Skip("PODGAUGE_PEERS is not set: make bench-peers")
	}
	var list strings.Builder
	for _, file := range peerFiles {
		for line := range strings.Lines(testfile.Read(t, filepath.Join(folder, "dcgm-exporter/etc", file))) {
			row, mark := strings.CutPrefix(strings.TrimSpace(line), "#")
			if c := strings.SplitN(row, ",", 3); len(c) == 3 && !strings.Contains(row, "DCGM FIELD") {
				help := map[bool]string{file == peerFiles[0] && !mark: strings.TrimSpace(c[2])}[true]
				fmt.Fprintf(&list, "%s,%s,%s,%s,%s\n", file, map[bool]string{true: "#"}[mark], strings.TrimSpace(c[0]), strings.TrimSpace(c[1]), help)
			}
		}
	}
	testfile.CheckGolden(t, *update, peerFields, list.String())
}

func readPeerFields(t *testing.T) (rows []peerField) {
	t.Helper()
	for line := range strings.Lines(testfile.Read(t, peerFields)) {
		cells := strings.SplitN(strings.TrimSpace(line), ",", 5)
		rows = append(rows, peerField{cells[0], cells[2], cells[3], cells[4], cells[1] == "#"})
	}
	return rows
}

// TestDCGMDefaults checks the default families against stored lists: of the peer's file up to 4.8, and of public sources on 4.9.
func TestDCGMDefaults(t *testing.T) {
	want, got := [2][]string{}, [2][]string{}
	for _, row := range readPeerFields(t) {
		if row.file == peerFiles[0] && !row.isComment && row.field != "DCGM_FI_DEV_VGPU_LICENSE_STATUS" {
			want[dcgm.V48] = append(want[dcgm.V48], row.field+","+row.kind+","+row.help)
		}
	}
	for line := range strings.Lines(testfile.Read(t, "testdata/dcgm_exporter_4.9_defaults.csv")) {
		if line[0] != '#' {
			want[dcgm.V49] = append(want[dcgm.V49], strings.TrimSpace(line))
		}
	}
	for _, f := range dcgm.Defaults(dcgm.V48).Families {
		got[dcgm.V48] = append(got[dcgm.V48], f.Name+","+string(f.Type)+","+f.Help)
	}
	renamed, rescaled := 0, 0
	for _, f := range dcgm.Defaults(dcgm.V49).Families {
		old, factor := f.Names[dcgm.V48], 1.0
		if f.Type != dcgm.Label {
			factor = f.Scale / old.Scale
		}
		if old.Help == "" {
			old.Name = ""
		} else if old.Name != f.Name {
			renamed++
			rescaled += map[bool]int{factor != 1: 1}[true]
		}
		got[dcgm.V49] = append(got[dcgm.V49], fmt.Sprintf("%s,%s,%.10g", old.Name, f.Name, factor))
	}
	for g := range got {
		slices.Sort(want[g])
		slices.Sort(got[g])
		if !slices.Equal(got[g], want[g]) {
			t.Errorf("default families: got %q, want %q", got[g], want[g])
		}
	}
	if renamed != 23 || rescaled != 11 {
		t.Errorf("got %d renamed families, %d of them rescaled; want 23 and 11, as in the release notes", renamed, rescaled)
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
	for i := range dcgm.Fields() {
		f := &dcgm.Fields()[i]
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
	cells := "|`" + name + "`|"
	switch {
	case f == nil, f.Names[dcgm.V49].Name == name:
		return cells
	case f.Names[dcgm.V49].Name == "":
		return cells + "unknown"
	}
	return cells + "`" + f.Names[dcgm.V49].Name + "`"
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
	case f.Xid:
		return "served; " + f.Note + "|`nvidia_gpu_xid_errors_total`, `nvidia_gpu_xid_last_timestamp_seconds`|"
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
	if scale != 1 {
		expression = cmp.Or(quotients[scale], strconv.FormatFloat(scale, 'g', -1, 64)) + " * " + expression
	}
	return answer + "|`" + expression + "`|"
}

// quotients are scales of binary units in PromQL.
var quotients = map[float64]string{1.0 / (1 << 20): "1 / 2^20", 1.0 / 1024 / 1000: "1 / 1024000"}

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
			term = "rate(" + term + "[1m])"
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
