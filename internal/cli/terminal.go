package cli

import (
	"context"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/podgauge/podgauge/internal/retry"
	"github.com/podgauge/podgauge/internal/text"
)

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
		cells := make([]string, len(row))
		for i, cell := range row {
			cells[i] = text.Printable(cell)
		}
		io.WriteString(tw, strings.Join(cells, "\t")+"\n") //nolint:errcheck // to memory
	}
	tw.Flush() //nolint:errcheck // to memory
	return table.String()
}
