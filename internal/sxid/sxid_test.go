package sxid_test

import (
	"log/slog"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/sxid"
	"github.com/podgauge/podgauge/test/helpers/expect"
	"github.com/podgauge/podgauge/test/helpers/require"
	"github.com/podgauge/podgauge/test/helpers/testfile"
)

// TestErrorsOfTheCatalogue compares the table with the driver's numbers and the user guide's severities.
func TestErrorsOfTheCatalogue(t *testing.T) {
	catalogue := map[uint32]bool{}
	for line := range strings.Lines(testfile.Read(t, "testdata/sxids.txt")) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		fields := strings.Fields(line)
		number, err := strconv.ParseUint(fields[0], 10, 32)
		require.NoError(t, err)
		n := uint32(number)
		catalogue[n] = true
		row, has := sxid.Errors[n]
		if severity := fields[2]; severity == "-" {
			expect.Equal(t, row.Severity, sxid.Unknown, line)
		} else {
			expect.Equal(t, row.Severity.String(), severity, line)
		}
		if has && row.Name == "" || sxid.Units[n/1000] == "" {
			t.Errorf("%q: got name %q", line, sxid.Name(n))
		}
	}
	expect.Equal(t, len(catalogue), 399, "rows of the catalogue")
	for n := range sxid.Errors {
		expect.Equal(t, catalogue[n], true, "in the catalogue", n)
	}
}

func TestName(t *testing.T) {
	for number, want := range map[uint32]string{
		20034: "link layer: link went down", 11002: "ingress port error", 99001: "NVSwitch error 99001",
	} {
		expect.Equal(t, sxid.Name(number), want)
	}
}

const address = "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): "

func at(number uint32, severity sxid.Severity, link int) sxid.Line {
	return sxid.Line{PCI: "0000:05:00.0", Number: number, Severity: severity, Link: link}
}

// TestParseLine parses lines of public reports and of the driver's sources.
func TestParseLine(t *testing.T) {
	for message, want := range map[string]sxid.Line{
		address + "12028, Non-fatal, Link 32 egress non-posted PRIV error (First)":                at(12028, sxid.Nonfatal, 32),
		address + "20034, Fatal, Link 30 LTSSM Fault Up":                                          at(20034, sxid.Fatal, 30),
		address + "20009, Non-fatal, Link 04 RX Short Error Rate":                                 at(20009, sxid.Nonfatal, 4),
		address + "11012, Correctable, Link 07 ingress header ECC error limit":                    at(11012, sxid.Nonfatal, 7),
		address + "22003, Fatal, Link 00 MINION HALT":                                             at(22003, sxid.AlwaysFatal, 0),
		address + "22003, Non-fatal, Link 00 MINION HALT":                                         at(22003, sxid.Nonfatal, 0), // the driver knows better
		address + "10002, Non-fatal, PBUS PRI SQUASH error, instance=0, chiplet=0":                at(10002, sxid.Nonfatal, sxid.NoLink),
		address + "10003, Host_unhandled_interrupt":                                               at(10003, sxid.AlwaysFatal, sxid.NoLink),
		address + "26006, SOE HALTED":                                                             at(26006, sxid.Unknown, sxid.NoLink),
		address + "28002, Non-fatal, Link 12 Therm Warn Deactivated":                              at(28002, sxid.Nonfatal, 12),
		address + "10004, Thermal Slowdown Engaged | Temp higher than WARN Threshold":             at(10004, sxid.Nonfatal, sxid.NoLink),
		address + "99999, Non-fatal, Link 3":                                                      at(99999, sxid.Nonfatal, 3),
		address + "11001, Fatal, ingress invalid command":                                         at(11001, sxid.Fatal, sxid.NoLink),
		"nvidia-nvswitch11: SXid (PCI:0001:05:00.0): 22013, Non-fatal, Link 44 Minion Link DLREQ": {PCI: "0001:05:00.0", Number: 22013, Severity: sxid.Nonfatal, Link: 44},
	} {
		if got, ok := sxid.ParseLine(message); !ok || got != want {
			t.Errorf("%s\ngot  %+v, %v\nwant %+v", message, got, ok, want)
		}
	}
}

func TestParseLineErrors(t *testing.T) {
	for _, message := range []string{
		"", "x " + address + "20034, Fatal, Link 30 LTSSM Fault Up",
		address, address + "20034", address + "20034a, Fatal", address + "2003, Fatal, Link 1", address + "0020034, Fatal",
		// further lines of an error
		address + "12028, Severity 0 Engine instance 32 Sub-engine instance 00",
		address + "12028, Data {0x000001c0, 0x00bd5c8a, 0x00000500}",
		address + "10004, NVSWITCH Temperature 95C | TSENSE WARN Threshold 90C",
		address + "26006, SOE HALT data[0] = 0x0000000000000001",
		"NVRM: Xid (PCI:0000:05:00): 79, GPU has fallen off the bus.",
		"nvidia-nvswitch3: SXid (PCI:0000:05:00): 20034, Fatal",
		"nvidia-nvswitch: Probing device 0000:02:00.0, Vendor Id = 0x10de",
	} {
		if got, ok := sxid.ParseLine(message); ok {
			t.Errorf("%s\ngot %+v, want no error", message, got)
		}
	}
}

// FuzzParseLine checks that parsed lines have valid values, without a comma in a part of a key.
func FuzzParseLine(f *testing.F) {
	f.Add(address + "12028, Non-fatal, Link 32 egress non-posted PRIV error (First)")
	f.Add(address + "26006, SOE HALTED")
	f.Fuzz(func(t *testing.T, message string) {
		e, ok := sxid.ParseLine(message)
		if !ok {
			return
		}
		if strings.Contains(e.PCI, ",") || e.Number < 10000 || e.Number > 99999 || e.Link < sxid.NoLink || e.Link > 999 || e.Severity > sxid.AlwaysFatal {
			t.Fatalf("%q: got %+v", message, e)
		}
	})
}

// TestLog checks the counts and the newest errors, before and after a start and a loaded driver.
func TestLog(t *testing.T) {
	var logged strings.Builder
	l := sxid.NewLog(slog.New(slog.NewTextHandler(&logged, nil)))
	begin := time.Unix(1700000000, 0)
	expect.Equal(t, len(l.Counts()), 0, "series without an error")
	l.Record(at(20034, sxid.Fatal, 30), begin, true)
	l.Record(at(20034, sxid.Fatal, 31), begin.Add(time.Minute), false)
	l.Record(at(20034, sxid.Fatal, 32), begin.Add(time.Hour), false)
	l.Record(at(26006, sxid.Unknown, sxid.NoLink), begin, true)
	const fatal, unknown = "0000:05:00.0,20034,fatal", "0000:05:00.0,26006,unknown"
	expect.DeepEqual(t, l.Counts(), map[string]float64{fatal: 2, unknown: 0}, "counts") // 0: increase() needs a value before the first event
	expect.DeepEqual(t, l.LastTimes(), map[string]float64{fatal: 1700003600, unknown: 1700000000}, "times")
	expect.DeepEqual(t, l.LastLinks(), map[string]float64{fatal: 32}, "links")
	l.OnDriverLoaded()
	expect.DeepEqual(t, l.Counts(), map[string]float64{fatal: 2, unknown: 0}, "counts after a load")
	expect.DeepEqual(t, l.LastTimes(), map[string]float64{}, "times after a load")
	expect.DeepEqual(t, l.LastLinks(), map[string]float64{}, "links after a load")
	for n := range uint32(1000) {
		l.Record(at(30000+n, sxid.Nonfatal, 0), begin, false)
	}
	expect.Equal(t, strings.Count(logged.String(), "too many kinds of NVSwitch errors"), 1, "messages about many kinds")
	expect.Equal(t, len(l.Counts()), 256, "series of many kinds of errors")
}
