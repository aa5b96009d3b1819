// Command image checks podgauge's container images, given as OCI archives, and runs them.
//
// The command reads the archives directly, without a container runtime, to check the files as delivered. Exit status 0 means
// that all checks pass.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

const usage = `usage: go run . [-run] archive ...
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	status := runMain(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(status)
}

func runMain(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("image", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() { fmt.Fprint(stderr, usage); flags.PrintDefaults() }
	run := flags.Bool("run", false, "also run podgauge from the images, as root with runc; qemu-user-static runs images of other architectures")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	if flags.NArg() == 0 {
		flags.Usage()
		return 2
	}
	status := 0
	for _, archive := range flags.Args() {
		if !checkImage(ctx, archive, *run, stdout) {
			status = 1
		}
	}
	return status
}

// checkImage reports the result of each check and returns whether all pass.
func checkImage(ctx context.Context, archive string, run bool, out io.Writer) bool {
	passed := true
	report := func(name, found string, err error) {
		verdict := "ok"
		if err != nil {
			passed, verdict, found = false, "FAILED", err.Error()
		}
		fmt.Fprintf(out, "%-7s %s: %s\n", verdict, name, found)
	}
	img, err := readImage(archive)
	if err != nil {
		report("archive", "", err)
		return false
	}
	fmt.Fprintf(out, "%s: %.1f MB, %.1f MB unpacked\n", archive, float64(img.compressed)/1e6, float64(img.uncompressed)/1e6)
	for _, check := range imageChecks {
		found, err := check.run(img)
		report(check.name, found, err)
	}
	if run {
		runScenarios(ctx, img, report)
	}
	return passed
}

func runScenarios(ctx context.Context, img *ociImage, report func(name, found string, err error)) {
	dir, err := os.MkdirTemp("", "podgauge-image-")
	if err != nil {
		report("run", "", err)
		return
	}
	defer os.RemoveAll(dir)
	r, err := newScenarioRunner(ctx, img, dir)
	if err != nil {
		report("run", "", err)
		return
	}
	r.runAll(ctx, report)
}
