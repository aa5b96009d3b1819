// Package cli has the output of commands: tables, JSON and YAML, printed once
// or redrawn on a terminal.
package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/podgauge/podgauge/internal/retry"
	"github.com/podgauge/podgauge/internal/text"
	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"
)

// redrawInterval is the interval between the pages of a watch.
const redrawInterval = 2 * time.Second

// Formats are the values of --output.
var Formats = []string{"table", "wide", "json", "yaml"}

// Output is the form of a command's output.
type Output struct {
	Format    string // one of Formats
	NoHeaders bool   // only rows
	Watch     bool
	Terminal  bool // the output is a terminal
}

// AddFlags declares --output and --no-headers.
func (o *Output) AddFlags(f *pflag.FlagSet) {
	f.StringVarP(&o.Format, "output", "o", "table", "output `format`: table, wide (more columns), json or yaml")
	f.BoolVar(&o.NoHeaders, "no-headers", false, "print the rows of the table only")
}

// AddWatchFlag declares --watch.
func (o *Output) AddWatchFlag(f *pflag.FlagSet) {
	f.BoolVarP(&o.Watch, "watch", "w", false, "redraw the output every two seconds; without a terminal, print once")
}

// Check checks the format.
func (o *Output) Check() error {
	if !slices.Contains(Formats, o.Format) {
		return fmt.Errorf("--output %q: expected table, wide, json or yaml", o.Format)
	}
	return nil
}

// Wide reports whether tables have all columns.
func (o *Output) Wide() bool { return o.Format == "wide" }

// IsTable reports whether the output is a table, and not a document.
func (o *Output) IsTable() bool { return o.Format == "table" || o.Wide() }

// Table returns untrusted lines and a table, whose first row is the headers.
// Without headers, the lines are left out too.
func (o *Output) Table(lines []string, rows [][]string) string {
	if o.NoHeaders {
		return FormatTable(rows[min(1, len(rows)):])
	}
	var page strings.Builder
	for _, line := range lines {
		page.WriteString(text.Printable(line) + "\n")
	}
	return page.String() + FormatTable(rows)
}

// Document returns a JSON document in the format of the output. JSON for a
// program is unchanged.
func (o *Output) Document(body []byte) (string, error) {
	switch {
	case o.Format == "yaml":
		return toYAML(body)
	case o.Terminal:
		return text.PrintableLines(string(body)), nil
	}
	return string(body), nil
}

// toYAML returns JSON as YAML, with the fields in the same order. JSON is YAML,
// except for control characters.
func toYAML(body []byte) (string, error) {
	if !json.Valid(body) {
		return "", errors.New("invalid JSON")
	}
	var document yaml.Node
	if err := yaml.Unmarshal([]byte(text.PrintableLines(string(body))), &document); err != nil {
		return "", err
	}
	setBlockStyle(&document)
	var encoded strings.Builder
	encoder := yaml.NewEncoder(&encoded)
	encoder.SetIndent(2)
	err := encoder.Encode(&document)
	return encoded.String(), err
}

// setBlockStyle quotes only the strings that YAML 1.1 or 1.2 would read as
// another type.
func setBlockStyle(n *yaml.Node) {
	if n.Tag == "!!str" {
		var encoded yaml.Node
		_ = encoded.Encode(n.Value) // a string can be encoded
		n.Style = encoded.Style
	} else if len(n.Content) > 0 { // {} and [] stay as they are
		n.Style = 0
	}
	for _, child := range n.Content {
		setBlockStyle(child)
	}
}

// Print writes the rendered text or, in a watch on a terminal, repeated texts
// until ctx is done. A text beside an error is written.
func (o *Output) Print(ctx context.Context, w io.Writer, render func(context.Context) (string, error)) error {
	if o.Watch && o.Terminal {
		return watchScreen(ctx, w, redrawInterval, render)
	}
	page, err := render(ctx)
	if _, writeErr := io.WriteString(w, page); err == nil {
		err = writeErr
	}
	return err
}

// Control sequences of a terminal (ECMA-48). A watch overwrites the screen,
// because clearing flickers.
const (
	clearScreen    = "\x1b[2J"
	cursorHome     = "\x1b[H"
	eraseLineRight = "\x1b[K"
	eraseBelow     = "\x1b[J"
)

// watchScreen writes pages to a terminal until ctx is done. An error of render
// is a page.
func watchScreen(ctx context.Context, w io.Writer, interval time.Duration,
	render func(context.Context) (string, error),
) error {
	before := clearScreen
	for {
		page, err := render(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			page += text.Printable(err.Error()) + "\n"
		}
		if _, err := io.WriteString(w, before+redraw(page)); err != nil {
			return err
		}
		before = ""
		if retry.Sleep(ctx, interval) != nil {
			return nil
		}
	}
}

// redraw returns a text to overwrite the screen.
func redraw(page string) string {
	return cursorHome + strings.ReplaceAll(page, "\n", eraseLineRight+"\n") + eraseBelow
}

// FormatTable aligns the columns of rows with untrusted cells.
func FormatTable(rows [][]string) string {
	var table strings.Builder
	tw := tabwriter.NewWriter(&table, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		io.WriteString(tw, strings.Join(text.Each(row, text.Printable), "\t")+"\n") //nolint:errcheck // to memory
	}
	tw.Flush() //nolint:errcheck // to memory
	return table.String()
}
