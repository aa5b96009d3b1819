package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/podgauge/podgauge/internal/cli"
	"github.com/podgauge/podgauge/internal/text"
	"github.com/spf13/cobra"
)

// reportFunc returns the content of a report at one moment.
type reportFunc func(ctx context.Context) (result, error)

// result is the content of a report at one moment.
type result struct {
	document any        // of JSON and YAML
	rows     [][]string // of the table, headers first
	wide     int        // number of the last columns, which only -o wide has
	notes    []string   // above the table
	failed   []string   // a line for each node that failed
	problems bool       // exit status 1 without a failed node
}

// table returns the rows with the columns of the output.
func (r *result) table(wide bool) [][]string {
	if !wide {
		for i, row := range r.rows {
			r.rows[i] = row[:len(row)-r.wide]
		}
	}
	return withDashes(r.rows)
}

// withDashes puts a dash into empty cells.
func withDashes(rows [][]string) [][]string {
	for _, row := range rows {
		for i := range row {
			row[i] = cmp.Or(row[i], "-")
		}
	}
	return rows
}

// newResult returns the result of a report with an answer for each node.
func newResult[T any](answers []answer[T]) result {
	return result{document: map[string]any{"nodes": answers}, failed: failedNodes(answers)}
}

// nodeRows returns the headers, and the rows of each node that responded, after
// the node's name.
func nodeRows[T any](answers []answer[T], headers []string, rowsOf func(*T) [][]string) [][]string {
	rows := [][]string{append([]string{"NODE"}, headers...)}
	for node, response := range responses(answers) {
		for _, row := range rowsOf(response) {
			rows = append(rows, append([]string{node}, row...))
		}
	}
	return rows
}

// command returns a command without arguments that prints a report.
func (c *client) command(use, short, example string, run reportFunc) *cobra.Command {
	var out cli.Output
	command := &cobra.Command{Use: use, Short: short, Long: short + ".", Example: example, Args: cobra.ExactArgs(0)}
	out.AddFlags(command.Flags())
	out.AddWatchFlag(command.Flags())
	cli.CompleteOutput(command)
	command.RunE = func(command *cobra.Command, _ []string) error {
		if err := out.Check(); err != nil {
			return err
		}
		if err := c.connect(); err != nil {
			return err
		}
		out.Terminal = c.isTerminal(c.streams.Out)
		c.progress = c.isTerminal(c.streams.ErrOut) && (!out.Watch || !out.Terminal)
		return cli.Failed(out.Print(command.Context(), c.streams.Out, func(ctx context.Context) (string, error) {
			return c.render(ctx, run, out)
		}))
	}
	return command
}

// render returns the text of a report, and writes failed nodes to stderr. A
// watch has failed nodes in its text.
func (c *client) render(ctx context.Context, run reportFunc, out cli.Output) (string, error) {
	res, err := run(ctx)
	if err != nil {
		return "", err
	}
	page, err := res.page(out)
	if err != nil {
		return "", err
	}
	var failed strings.Builder
	for _, line := range res.failed {
		failed.WriteString(text.Printable(line) + "\n")
	}
	if out.Watch && out.Terminal {
		return page + failed.String(), nil
	}
	fmt.Fprint(c.streams.ErrOut, failed.String())
	if failed.Len() > 0 || res.problems {
		return page, cli.ErrReported
	}
	return page, nil
}

// page returns the table or the document.
func (r *result) page(out cli.Output) (string, error) {
	if out.IsTable() {
		return out.Table(r.notes, r.table(out.Wide())), nil
	}
	body, err := json.MarshalIndent(r.document, "", "  ")
	if err != nil {
		return "", err
	}
	return out.Document(append(body, '\n'))
}

// xidCell returns the number of an Xid; empty: none.
func xidCell(number uint64) string {
	return strings.TrimPrefix(strconv.FormatUint(number, 10), "0")
}

// failedNodes returns a line for each node without a response.
func failedNodes[T any](answers []answer[T]) (lines []string) {
	for _, a := range answers {
		if a.Response == nil {
			lines = append(lines, fmt.Sprintf("%s: %s (%s)", a.Node, a.Error, a.Pod))
		}
	}
	return lines
}
