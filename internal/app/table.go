package app

import (
	"strings"
	"unicode/utf8"
)

// table is what a terminal shows: rows of cells, the first of which is the head.
type table [][]cell

type cell struct {
	text   string
	colour colour
}

// colour is a terminal's, and few are used.
type colour string

const (
	plain  colour = ""
	red    colour = "\x1b[31m"
	yellow colour = "\x1b[33m"
	reset         = "\x1b[0m"
)

// columnGap is what stands between two columns.
const columnGap = "  "

func head(names ...string) []cell {
	cells := make([]cell, len(names))
	for i, name := range names {
		cells[i].text = name
	}
	return cells
}

// write sets the columns as wide as their widest cell, and the last as it is.
func (t table) write(w *strings.Builder, coloured bool) {
	var widths []int
	for _, row := range t {
		for i := range row {
			row[i].text = printable(row[i].text)
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(row[i].text))
		}
	}
	for _, row := range t {
		for i, c := range row {
			if coloured && c.colour != plain {
				w.WriteString(string(c.colour) + c.text + reset)
			} else {
				w.WriteString(c.text)
			}
			if i < len(row)-1 {
				w.WriteString(strings.Repeat(" ", widths[i]-utf8.RuneCountInString(c.text)) + columnGap)
			}
		}
		w.WriteByte('\n')
	}
}
