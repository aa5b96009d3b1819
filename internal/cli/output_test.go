package cli

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

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
	if got := screen.text.String(); got != clearScreen+page+failed+page {
		t.Errorf("got %q", got)
	}
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
		if got := c.output.Table(lines, c.rows); got != c.want {
			t.Errorf("%+v: got %q, want %q", c.output, got, c.want)
		}
	}
}
