package app

import (
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"

	"github.com/podgauge/podgauge/internal/text"
	"golang.org/x/sys/unix"
)

// Control sequences of a terminal (ECMA-48). A watch overwrites the screen, because clearing flickers.
const (
	clearScreen    = "\x1b[2J"
	cursorHome     = "\x1b[H"
	eraseLineRight = "\x1b[K"
	eraseBelow     = "\x1b[J"
)

// redraw returns a text to overwrite the screen.
func redraw(page string) string {
	return cursorHome + strings.ReplaceAll(page, "\n", eraseLineRight+"\n") + eraseBelow
}

// isTerminal reports whether w is a terminal.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// formatTable aligns the columns of rows with untrusted cells.
func formatTable(rows [][]string) string {
	var table strings.Builder
	tw := tabwriter.NewWriter(&table, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		cells := make([]string, len(row))
		for i, cell := range row {
			cells[i] = text.Printable(cell)
		}
		fmt.Fprintln(tw, strings.Join(cells, "\t"))
	}
	tw.Flush() //nolint:errcheck // to memory
	return table.String()
}
