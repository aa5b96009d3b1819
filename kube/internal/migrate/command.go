package migrate

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/podgauge/podgauge/internal/cli"
	"github.com/podgauge/podgauge/internal/text"
	"github.com/spf13/cobra"
)

// NewCommand returns the command that translates files.
func NewCommand() *cobra.Command {
	var options Options
	write := false
	c := &cobra.Command{
		Use: "migrate FILE...", Short: "Translate queries of dcgm-exporter's series, without a cluster",
		Long: "Translate queries of dcgm-exporter's series to podgauge's: Grafana dashboards, rules of Prometheus,\n" +
			"ScaledObjects of KEDA, rules of prometheus-adapter. The exit status is 1 if a query has no translation.",
		Example: "  kubectl podgauge migrate dashboard.json rules.yaml\n" +
			"  kubectl podgauge migrate --write dashboard.json",
		Args: cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, names []string) error {
			return migrateFiles(c.OutOrStdout(), c.ErrOrStderr(), names, options, write)
		},
	}
	c.Flags().BoolVar(&write, "write", false, "write NAME.podgauge.EXTENSION beside each file with a translated query")
	c.Flags().BoolVar(&options.MIG, "mig", false, "GPUs are partitioned: read MIG devices as dcgm-exporter does")
	return c
}

// migrateFiles prints the queries of files with their translations.
func migrateFiles(out, errOut io.Writer, names []string, options Options, write bool) error {
	var files []*File
	var failures []error
	for _, name := range names {
		data, err := os.ReadFile(name)
		if err != nil {
			failures = append(failures, err)
			continue
		}
		files = append(files, &File{Name: name, Data: data})
	}
	report := Files(files, options)
	printMigration(out, report)
	for _, f := range files {
		if write && f.Translated != nil {
			failures = append(failures, writeTranslated(out, f))
		}
	}
	for _, line := range report.Errors {
		failures = append(failures, errors.New(line))
	}
	if err := errors.Join(failures...); err != nil {
		fmt.Fprintln(errOut, text.PrintableLines(err.Error()))
		return cli.ErrReported
	}
	if !report.Complete() {
		return cli.ErrReported
	}
	return nil
}

func printMigration(out io.Writer, r *Report) {
	translated := 0
	for _, q := range r.Queries {
		fmt.Fprintf(out, "%s: %s\n  - %s\n", q.File, text.Printable(q.Place), line(q.Text))
		if q.Translation != "" {
			translated++
			fmt.Fprintf(out, "  + %s\n", line(q.Translation))
		}
		for _, reason := range q.Reasons {
			fmt.Fprintf(out, "  ! %s\n", line(reason))
		}
	}
	for _, note := range r.Notes {
		fmt.Fprintf(out, "note: %s\n", line(note))
	}
	fmt.Fprintf(out,
		"%d queries of dcgm-exporter's series: %d translated, %d without translation; %d of other series\n",
		len(r.Queries), translated, len(r.Queries)-translated, r.Others)
}

// line returns a text in one line.
func line(s string) string { return text.Printable(strings.Join(strings.Fields(s), " ")) }

// writeTranslated writes NAME.podgauge.EXTENSION. An existing file is an error.
func writeTranslated(out io.Writer, f *File) error {
	extension := filepath.Ext(f.Name)
	name := strings.TrimSuffix(f.Name, extension) + ".podgauge" + extension
	file, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return err
	}
	_, err = file.Write(f.Translated)
	if err = errors.Join(err, file.Close()); err == nil {
		fmt.Fprintf(out, "wrote %s\n", name)
	}
	return err
}
