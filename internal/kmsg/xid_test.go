package kmsg

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/podgauge/podgauge/internal/xid"
)

func TestParseXidLine(t *testing.T) {
	at := func(pci string, xid uint64) XidLine {
		return XidLine{PCI: pci, Xid: xid, GI: NoInstanceID, CI: NoInstanceID}
	}
	withVerdict := func(v xid.Verdict, l XidLine) XidLine { l.Verdict = v; return l }
	for _, c := range []struct {
		message string
		want    XidLine
	}{
		{"NVRM: Xid (PCI:0000:1a:00): 79, pid=1234, name=python3, GPU has fallen off the bus.", at("0000:1a:00", 79)},
		{"NVRM: Xid (PCI:0000:1a:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.", at("0000:1a:00", 79)},
		{"NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.", at("0000:01:00", 79)},
		{"NVRM: Xid (PCI:0000:b4:00): 31, pid=77, Ch 00000007, intr 10000000. MMU Fault", at("0000:b4:00", 31)},
		{"NVRM: Xid (PCI:0000:B4:00): 119", at("0000:b4:00", 119)},
		{"NVRM: Xid (PCI:00000000:1A:00.0): 48, pid=1, name=a, b", at("0000:1a:00", 48)},
		{"NVRM: Xid (PCI:000c:01:00): 62, x", at("000c:01:00", 62)},
		{"NVRM: Xid (PCI:10000:01:1f): 62, x", at("10000:01:1f", 62)}, // domains behind a VMD
		{
			"NVRM: Xid (PCI:0000:01:00 GPU-I:05): 94, pid=7194, Contained: CE User Channel (0x9). RST: No, D-RST: No",
			XidLine{PCI: "0000:01:00", Xid: 94, GI: 5, CI: NoInstanceID},
		},
		{"NVRM: Xid (PCI:0000:01:00 GPU-I:05 GPU-CI:00): 94, pid=7194", XidLine{PCI: "0000:01:00", Xid: 94, GI: 5}},
		{"NVRM: Xid (0000:03:00): 13, 0002 00000000", at("0000:03:00", 13)},
		{"NVRM: Xid (0003:00): 13, 0002 00000000", at("0000:03:00", 13)},
		{"NVRM: Xid (PCI:03:00): 13 0002", at("0000:03:00", 13)},
		{
			"NVRM: Xid (PCI:0000:c5:00): 145, RLW_SRC_TRACK Nonfatal XC1 i0 Link 17 (0x04084507 0x00000004 0x00000000)",
			withVerdict(xid.VerdictEvaluate, at("0000:c5:00", 145)),
		},
		{
			"NVRM: Xid (PCI:0000:00:1e): 145, pid=4, name=<unknown>, RLW_SRC_TRACK Fatal XC0 i1 Link 00 (0x00000001)",
			withVerdict(xid.VerdictFatal, at("0000:00:1e", 145)),
		},
		{"NVRM: Xid (PCI:0019:01:00): 149, NETIR Fatal XC0 i0 Link -1 (0x000fe406 0x00000000)", withVerdict(xid.VerdictReset, at("0019:01:00", 149))},
		// from public reports
		{
			"NVRM: Xid (PCI:0008:01:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004505c6 0x00000000 0x00000000 0x00000000 0x00000000 0x00000000)",
			withVerdict(xid.VerdictReset, at("0008:01:00", 149)),
		},
		{
			"NVRM: Xid (PCI:0000:00:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 00 (0x026001c6 0x00000000 0x00000000 0x00000000 0x00000000 0x00000000)",
			withVerdict(xid.VerdictNonfatal, at("0000:00:00", 149)), // a link taken down by software
		},
		{
			"NVRM: Xid (PCI:0018:01:00): 149, NETIR_BER_EVENT Nonfatal XC0 i0 Link 03 (0x00086226 0x00000001 0x00000000 0x00000000 0x00000000 0x00000000)",
			withVerdict(xid.VerdictNonfatal, at("0018:01:00", 149)),
		},
		{
			"NVRM: Xid (PCI:0018:01:00): 145, pid=876767, name=ray::WorkerDict, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2 0x00000008 0x00000001 0x00000000 0x00100000 0x00000004)",
			withVerdict(xid.VerdictNonfatal, at("0018:01:00", 145)),
		},
		{
			"NVRM: Xid (PCI:0019:01:00): 145, RLW_SRC_TRACK Nonfatal XC1 i0 Link 12 (0x040988e2 0x00000008 0x00000000 0x00000000 0x00000000 0x00000000)",
			withVerdict(xid.VerdictEvaluate, at("0019:01:00", 145)),
		},
		{
			"NVRM: Xid (PCI:0000:01:00): 144, SAW_MVB Nonfatal XC0 i0 Link 0 (0x00000001 0x00000008 0x00000000 0x00000000 0x00000000 0x00000000)",
			withVerdict(xid.VerdictNonfatal, at("0000:01:00", 144)),
		},
		// before R575
		{"NVRM: Xid (PCI:0000:00:1e): 149, NETIR_LINK_EVT Fatal XC 1 i 2 Link 01 [0x0000000a]", withVerdict(xid.VerdictFatal, at("0000:00:1e", 149))},
		{
			"NVRM: Xid (PCI:0000:00:1e): 145, pid=4, name=A Nonfatal XC0, RLW_CTRL Fatal XC0 i0 Link 00 (0x00000001)",
			withVerdict(xid.VerdictFatal, at("0000:00:1e", 145)),
		},
		{"NVRM: Xid (PCI:0000:00:1e): 145, pid=4, name=A Nonfatal XC0, channel 0x00000010", at("0000:00:1e", 145)},
	} {
		if got, ok := ParseXidLine(c.message); !ok || got != c.want {
			t.Errorf("%s\ngot  %+v, %v\nwant %+v", c.message, got, ok, c.want)
		}
	}
}

func TestParseXidLineErrors(t *testing.T) {
	for _, message := range []string{
		"",
		"NVRM: GPU at PCI:0000:01:00: GPU-c4a80165-86e4-bfbb-ecfa-1d81a70b138a",
		"nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error",
		"x NVRM: Xid (PCI:0000:1a:00): 79, pid=1",
		"NVRM: x (PCI:0000:01:00): 31, name=NVRM: Xid (PCI:0000:1a:00): 79, ",
		"NVRM: Xid (PCI:0000:1a:00): ",
		"NVRM: Xid (PCI:0000:1a:00): 0, nothing",
		"NVRM: Xid (PCI:0000:1a:00): 79a, pid=1",
		"NVRM: Xid (PCI:0000:1a:00): 4294967296, pid=1",
		"NVRM: Xid (PCI:0000:1g:00): 79, pid=1",
		"NVRM: Xid (PCI:0000:1a:20): 79, pid=1", // a bus has 32 devices
		"NVRM: Xid (PCI:0000:1a:00.8): 79, pid=1",
		"NVRM: Xid (1a): 79, pid=1",
		"NVRM: Xid (PCI:0000:1a:00 GPU-I:): 79, pid=1",
		"NVRM: Xid (PCI:0000:1a:00 GPU-X:1): 79, pid=1",
		"NVRM: Xid (PCI:0000:1a:00 " + strings.Repeat("GPU-I:01 ", 20) + "): 79, pid=1",
	} {
		if got, ok := ParseXidLine(message); ok {
			t.Errorf("%s\ngot %+v, want no Xid", message, got)
		}
	}
}

var canonical = regexp.MustCompile(`^[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]$`)

// FuzzParse checks that parsed lines have valid values, and that the driver's
// spelling of them parses to the same values.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		"NVRM: Xid (PCI:0000:1a:00): 79, pid=1234, name=python3, GPU has fallen off the bus.",
		"NVRM: Xid (PCI:0000:01:00 GPU-I:05 GPU-CI:00): 94, pid=7194",
		"NVRM: Xid (PCI:0008:01:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004505c6 0x00000000 0x00000000)",
		"NVRM: Xid (0003:00): 13, 0002", "NVRM: Xid (", "NVRM: Xid (PCI:0000:1a:00.7): 1", "\xff",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, message string) {
		line, ok := ParseXidLine(message)
		if !ok {
			return
		}
		if !canonical.MatchString(line.PCI) || line.Xid == 0 || line.Xid > NoInstanceID {
			t.Fatalf("%q: got %+v, want a valid line", message, line)
		}
		where := "PCI:" + line.PCI
		if line.GI != NoInstanceID {
			where += fmt.Sprintf(" GPU-I:%02d", line.GI)
		}
		if line.CI != NoInstanceID {
			where += fmt.Sprintf(" GPU-CI:%02d", line.CI)
		}
		reparsed, ok := ParseXidLine(fmt.Sprintf("NVRM: Xid (%s): %d, x", where, line.Xid))
		reparsed.Verdict = line.Verdict
		if !ok || reparsed != line || line.Verdict > xid.VerdictFatal {
			t.Fatalf("%q: got %+v, then %+v", message, line, reparsed)
		}
	})
}

func TestParseRecord(t *testing.T) {
	for _, c := range []struct {
		data string
		want logRecord
		ok   bool
	}{
		{"6,339,5140900,-;NVRM: loading\n", logRecord{339, 5140900000, "NVRM: loading"}, true},
		{"4,7,5,c,caller=T1;a;b,c\n SUBSYSTEM=pci\n DEVICE=+pci:0000:1a:00.0\n", logRecord{7, 5000, "a;b,c"}, true},
		{"0,0,0,-;", logRecord{0, 0, ""}, true},
		// facility 1: user space
		{"12,8,5,-;NVRM: Xid (PCI:0000:1a:00): 79, written by a program\n", logRecord{}, false},
		{"30,8,5,-;systemd\n", logRecord{}, false},
		{"6,8,5;short\n", logRecord{8, 5000, "short"}, true},
		{"6,8;short\n", logRecord{}, false},
		{"6,8,5,-,no message", logRecord{}, false},
		{"x,8,5,-;a", logRecord{}, false},
		{"6,x,5,-;a", logRecord{}, false},
		{"6,8,x,-;a", logRecord{}, false},
		{"-6,8,5,-;a", logRecord{}, false},
		{"6,8,18446744073709551615,-;a", logRecord{}, false},
		{"", logRecord{}, false},
	} {
		if got, ok := parseRecord([]byte(c.data)); ok != c.ok || got != c.want {
			t.Errorf("%q: got %+v, %v; want %+v, %v", c.data, got, ok, c.want, c.ok)
		}
	}
}

// FuzzRecord checks that only the kernel's records parse, with a valid time.
func FuzzRecord(f *testing.F) {
	f.Add([]byte("6,339,5140900,-;NVRM: Xid (PCI:0000:1a:00): 79, a\n KEY=value\n"))
	f.Add([]byte("12,8,5,-;a"))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, ok := parseRecord(data)
		if !ok {
			return
		}
		if r.uptime < 0 || strings.Contains(r.message, "\n") || !regexp.MustCompile(`^0*[0-7],`).Match(data) {
			t.Fatalf("%q: got %+v, want no record", data, r)
		}
	})
}
