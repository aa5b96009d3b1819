package xid_test

import (
	"strconv"
	"strings"
	"testing"

	"github.com/podgauge/podgauge/internal/xid"
	"github.com/podgauge/podgauge/test/helpers/expect"
	"github.com/podgauge/podgauge/test/helpers/require"
	"github.com/podgauge/podgauge/test/helpers/testfile"
)

// TestNVLinkErrorsOfTheCatalogue compares the verdicts with the catalogue, with both names of a unit, and against the severity of the log.
func TestNVLinkErrorsOfTheCatalogue(t *testing.T) {
	verdicts := map[string]xid.Verdict{"IGNORE": xid.VerdictNonfatal, "XID_154_EVAL": xid.VerdictEvaluate, "RESET_GPU": xid.VerdictReset}
	rows := 0
	for line := range strings.Lines(testfile.Read(t, "testdata/nvlink5.txt")) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		rows++
		fields := strings.Fields(line)
		number, err := strconv.ParseUint(fields[0], 10, 64)
		require.NoError(t, err)
		event, err := strconv.ParseUint(fields[2], 10, 64)
		require.NoError(t, err)
		status, err := strconv.ParseUint(fields[3], 0, 64)
		require.NoError(t, err)
		want := verdicts[fields[4]]
		for _, unit := range append(strings.Split(fields[1], "/"), fields[1]) {
			for _, fatal := range []bool{false, true} {
				got := xid.NVLinkVerdict(number, unit, fatal, 0xFC0FFFFF|event<<20, status)
				expect.Equal(t, got, want, line)
			}
		}
	}
	expect.Equal(t, rows, 94, "rows of the catalogue")
}

// TestNVLinkErrorsWithoutRow checks that the log has the severity of all other errors.
func TestNVLinkErrorsWithoutRow(t *testing.T) {
	for _, c := range []struct {
		xid          uint64
		unit         string
		info, status uint64
	}{
		{145, "RLW_RSPCOL", 0, 4},
		{145, "RLW_RSPCOL", 0, 3}, // two errors at once
		{145, "RLW_RSPCOL", 1 << 20, 2},
		{146, "RLW_RSPCOL", 0, 2},
		{145, "RLW", 0, 2},
		{149, "NETIR_LINK_EVT", 0, xid.NoErrorStatus},
		{149, "NETIR_LINK_EVT", 63 << 20, 0},
	} {
		expect.Equal(t, xid.NVLinkVerdict(c.xid, c.unit, true, c.info, c.status), xid.VerdictFatal, c)
		expect.Equal(t, xid.NVLinkVerdict(c.xid, c.unit, false, c.info, c.status), xid.VerdictNonfatal, c)
	}
}
