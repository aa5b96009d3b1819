package app

import (
	"strings"
	"unicode/utf8"
)

// textTable is what a terminal shows: rows of cells, the first of which is the head.
type textTable [][]tableCell

type tableCell struct {
	text  string
	color ansiColor
}

// ansiColor is a terminal's, and few are used.
type ansiColor string

const (
	colorNone   ansiColor = ""
	colorRed    ansiColor = "\x1b[31m"
	colorYellow ansiColor = "\x1b[33m"
	colorReset            = "\x1b[0m"
)

// columnGap is what stands between two columns.
const columnGap = "  "

func headerRow(names ...string) []tableCell {
	cells := make([]tableCell, len(names))
	for i, name := range names {
		cells[i].text = name
	}
	return cells
}

// write sets the columns as wide as their widest cell, and the last as it is.
func (t textTable) write(w *strings.Builder, colored bool) {
	var widths []int
	for _, row := range t {
		for i := range row {
			row[i].text = sanitize(row[i].text)
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(row[i].text))
		}
	}
	for _, row := range t {
		for i, c := range row {
			if colored && c.color != colorNone {
				w.WriteString(string(c.color) + c.text + colorReset)
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
