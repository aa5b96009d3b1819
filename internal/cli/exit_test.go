package cli

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

func TestExit(t *testing.T) {
	usage := errors.New("a\nb")
	for _, c := range []struct {
		err    error
		status int
		line   string
	}{
		{nil, ExitOK, ""},
		{usage, ExitUsage, "podgauge: a\uFFFDb\n"},
		{Failed(usage), ExitError, "podgauge: a\uFFFDb\n"},
		{fmt.Errorf("c: %w", Failed(usage)), ExitError, "podgauge: c: a\uFFFDb\n"},
		{ErrReported, ExitError, ""},
		{Failed(nil), ExitOK, ""},
	} {
		var line strings.Builder
		if status := Exit(&line, "podgauge", c.err); status != c.status || line.String() != c.line {
			t.Errorf("%v: got %d %q", c.err, status, line.String())
		}
	}
}
