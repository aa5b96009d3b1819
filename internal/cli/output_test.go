package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/podgauge/podgauge/test/helpers/expect"
	"github.com/podgauge/podgauge/test/helpers/require"
)

// TestWatch checks that a page overwrites the previous page, also after an error.
func TestWatch(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	rendered := 0
	render := func(context.Context) (string, error) {
		if rendered++; rendered == 2 {
			return "partial\n", errors.New("502 \x1b[2J")
		}
		return "page\n", nil
	}
	screen := &screenRecorder{stop: cancel, after: 3}
	require.NoError(t, watchScreen(ctx, screen, time.Millisecond, render))
	page := cursorHome + "page" + eraseLineRight + "\n" + eraseBelow
	failed := cursorHome + "partial" + eraseLineRight + "\n502 \uFFFD[2J" + eraseLineRight + "\n" + eraseBelow
	expect.Equal(t, screen.text.String(), clearScreen+page+failed+page)
}

// screenRecorder is a terminal that is interrupted after a number of pages.
type screenRecorder struct {
	text  strings.Builder
	stop  func()
	after int
}

func (s *screenRecorder) Write(b []byte) (int, error) {
	if s.text.Write(b); strings.Count(s.text.String(), cursorHome) >= s.after {
		s.stop()
	}
	return len(b), nil
}

// TestPrint checks that only a watch on a terminal repeats, and that an interrupt is no error.
func TestPrint(t *testing.T) {
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	for _, o := range []Output{{}, {Watch: true}, {Terminal: true}} {
		var out strings.Builder
		err := o.Print(canceled, &out, func(context.Context) (string, error) { return "part\n", io.ErrUnexpectedEOF })
		if out.String() != "part\n" || !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%+v: got %q, %v", o, out.String(), err)
		}
	}
	watch := Output{Watch: true, Terminal: true}
	if err := watch.Print(canceled, io.Discard, func(ctx context.Context) (string, error) { return "", ctx.Err() }); err != nil {
		t.Error(err)
	}
}

func TestFlags(t *testing.T) {
	for args, valid := range map[string]bool{"": true, "-o wide": true, "-o=yaml": true, "--output json --no-headers": true, "-o xml": false, "-o=": false} {
		var o Output
		f := pflag.NewFlagSet("", pflag.ContinueOnError)
		o.AddFlags(f)
		require.NoError(t, f.Parse(strings.Fields(args)))
		if err := o.Check(); (err == nil) != valid {
			t.Errorf("%q: got error %v", args, err)
		}
	}
}

// TestDocument checks that JSON is unchanged for a program and without control characters on a terminal. YAML has the same values.
func TestDocument(t *testing.T) {
	const body = "{\"id\":1795262220000,\"a\":\"\u009b31m\u202e\\u001b\",\"yes\":\"no\",\"n\":null,\"list\":[{\"x\":1.5},\"1\"],\"empty\":[]}\n"
	const printable = "{\"id\":1795262220000,\"a\":\"\uFFFD31m\uFFFD\\u001b\",\"yes\":\"no\",\"n\":null,\"list\":[{\"x\":1.5},\"1\"],\"empty\":[]}\n"
	const asYAML = "id: 1795262220000\na: \"\uFFFD31m\uFFFD\\e\"\n\"yes\": \"no\"\n\"n\": null\nlist:\n  - x: 1.5\n  - \"1\"\nempty: []\n"
	for _, c := range []struct {
		output Output
		want   string
	}{{Output{Format: "json"}, body}, {Output{Format: "json", Terminal: true}, printable}, {Output{Format: "yaml"}, asYAML}} {
		if got, err := c.output.Document([]byte(body)); err != nil || got != c.want {
			t.Errorf("%+v: got %q, %v, want %q", c.output, got, err, c.want)
		}
	}
	yaml := Output{Format: "yaml"}
	if got, err := yaml.Document([]byte("<html>")); err == nil {
		t.Errorf("output is not JSON: %q", got)
	}
}

func TestTable(t *testing.T) {
	lines, rows := []string{"a\x1bb"}, [][]string{{"NAME", "X"}, {"n\n", "1"}}
	for _, c := range []struct {
		output Output
		rows   [][]string
		want   string
	}{
		{Output{}, rows, "a\uFFFDb\nNAME  X\nn\uFFFD    1\n"},
		{Output{NoHeaders: true}, rows, "n\uFFFD  1\n"},
		{Output{NoHeaders: true}, nil, ""},
	} {
		expect.Equal(t, c.output.Table(lines, c.rows), c.want, c.output)
	}
}

func TestAgo(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	for d, want := range map[time.Duration]string{
		-time.Hour: "now", 0: "now", 999 * time.Millisecond: "now", time.Second: "1 s ago", 59 * time.Second: "59 s ago", time.Minute: "1 min ago",
		59*time.Minute + 59*time.Second: "59 min ago", time.Hour: "1 h ago", 47 * time.Hour: "47 h ago", 48 * time.Hour: "2 days ago", 9000 * time.Hour: "375 days ago",
	} {
		expect.Equal(t, Ago(now, now.Add(-d)), want, d)
	}
	expect.Equal(t, Ago(now, time.Time{}), "-", "never")
}

func TestIncidentQuery(t *testing.T) {
	for args, want := range map[string]string{
		"": "", "-d 1 -n serving --pod=llm-0 --since 24h --limit=1": "device=1&limit=1&namespace=serving&pod=llm-0&since=24h",
		"--limit=0": `--limit "0": expected a number from 1 to 1000`, "--pod=": `--pod "": expected a value`, "--since=x": `--since "x": expected a time (2006-01-02T15:04:05Z) or a duration (90m, 24h)`,
	} {
		f := pflag.NewFlagSet("", pflag.ContinueOnError)
		filters := AddIncidentFilters(f)
		require.NoError(t, f.Parse(strings.Fields(args)))
		query, err := IncidentQuery(f, filters)
		got := query.Encode()
		if err != nil {
			got = err.Error()
		}
		expect.Equal(t, got, want, args)
	}
}

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
