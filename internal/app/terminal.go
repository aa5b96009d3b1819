package app

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"unicode"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// Control sequences of a terminal (ECMA-48). A watch overwrites the screen, because clearing flickers.
const (
	clearScreen    = "\x1b[2J"
	cursorHome     = "\x1b[H"
	eraseLineRight = "\x1b[K"
	eraseBelow     = "\x1b[J"

	colorDefault = "\x1b[39m"
	colorRed     = "\x1b[31m"
	colorYellow  = "\x1b[33m"
	colorReset   = "\x1b[0m"
)

// redraw returns a text to overwrite the screen.
func redraw(text string) string {
	return cursorHome + strings.ReplaceAll(text, "\n", eraseLineRight+"\n") + eraseBelow
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

// useColor reports whether to write colors to a terminal; see https://no-color.org.
func useColor(terminal bool, lookupEnv envLookup) bool {
	noColor, _ := lookupEnv("NO_COLOR")
	return terminal && noColor == ""
}

// sanitize escapes the control characters of terminals. Names come from drivers, kubelets and any HTTP server: an escape sequence
// must not move the cursor, and a change of direction must not disguise a name.
func sanitize(text string) string {
	if strings.IndexFunc(text, isUnprintable) < 0 {
		return text
	}
	var b strings.Builder
	for i, r := range text {
		switch {
		case !isUnprintable(r):
			b.WriteRune(r)
		case r == utf8.RuneError && !strings.HasPrefix(text[i:], "\uFFFD"): // an invalid byte
			fmt.Fprintf(&b, `\x%02x`, text[i])
		case r < utf8.RuneSelf:
			fmt.Fprintf(&b, `\x%02x`, r)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.String()
}

func isUnprintable(r rune) bool { return r == utf8.RuneError || !unicode.IsPrint(r) }

// sanitizeLines sanitizes each line. JSON keeps its meaning: unprintable characters are in strings, and the escapes are JSON's.
func sanitizeLines(text string) string {
	lines := strings.Split(text, "\n")
	for i := range lines {
		lines[i] = sanitize(lines[i])
	}
	return strings.Join(lines, "\n")
}

// textTable is a table with a header in the first row, and a column in color.
type textTable struct {
	rows        []tableRow
	colorColumn int
}

type tableRow struct {
	cells []string
	color string // empty: the terminal's default
}

func newTextTable(colorColumn int, header ...string) *textTable {
	return &textTable{rows: []tableRow{{cells: header}}, colorColumn: colorColumn}
}

func (t *textTable) add(color string, cells ...string) {
	t.rows = append(t.rows, tableRow{cells, color})
}

// write aligns the columns. Each cell of the colored column has a control sequence, because the sequences count in the width.
func (t *textTable) write(w io.Writer, colored bool) {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, row := range t.rows {
		for i, cell := range row.cells {
			row.cells[i] = sanitize(cell)
			if colored && i == t.colorColumn {
				row.cells[i] = cmp.Or(row.color, colorDefault) + row.cells[i] + colorReset
			}
		}
		fmt.Fprintln(tw, strings.Join(row.cells, "\t"))
	}
	tw.Flush() //nolint:errcheck // the caller writes to memory
}
